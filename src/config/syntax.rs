//! Text that is not valid TOML, as Greenroom's own diagnostics.

use std::collections::BTreeSet;

use toml::de::DeTable;

use super::diagnostic::{Diagnostic, Span, line_and_column};

/// Parses the text, or returns its mistakes, several together.
pub(super) fn parse(source: &str) -> Result<DeTable<'_>, Vec<Diagnostic>> {
    if let Some(offset) = source.find('\0') {
        let title = "not a text file";
        return Err(vec![Diagnostic::new(title).at(offset..offset + 1, "a zero byte")]);
    }
    let (table, errors) = DeTable::parse_recoverable(source);
    if errors.is_empty() {
        return Ok(table.into_inner());
    }
    let mut again = false;
    let mut found = Vec::new();
    let mut lines = BTreeSet::new();
    for error in &errors {
        // Further errors on a line follow from the first one.
        let offset = error.span().map_or(source.len(), |span| span.start);
        if !lines.insert(line_and_column(source, offset).0) {
            continue;
        }
        let (kind, diagnostic) = diagnosed(source, error);
        // A table that is defined twice repeats its keys too; those are not further mistakes.
        if kind != Kind::KeyTwice || !again {
            found.push(diagnostic);
        }
        again |= kind == Kind::TableTwice;
    }
    Err(found)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    TableTwice,
    KeyTwice,
    Other,
}

fn diagnosed(source: &str, error: &toml::de::Error) -> (Kind, Diagnostic) {
    let span = error.span().unwrap_or(source.len()..source.len());
    if error.message() == "duplicate key" {
        return twice(source, span);
    }
    let title = format!("not valid TOML: {}", error.message());
    (Kind::Other, Diagnostic::new(title).at(span, "here"))
}

/// A key or a table that is defined twice: shows both lines.
fn twice(source: &str, span: Span) -> (Kind, Diagnostic) {
    let start = source[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
    let line = source[start..].lines().next().unwrap_or_default();
    let subject = Line::of(line);
    let what = match &subject {
        Line::Table(path) => match path.strip_prefix("pool.").filter(|name| !name.contains('.')) {
            Some(name) => format!("pool `{name}`"),
            None => format!("`[{path}]`"),
        },
        Line::Key(key) => format!("`{key}`"),
        Line::Other => format!("`{}`", &source[span.clone()]),
    };
    let diagnostic = Diagnostic::new(format!("{what} is defined twice")).at(span, "second definition");
    let kind = match &subject {
        Line::Table(_) => Kind::TableTwice,
        Line::Key(_) => Kind::KeyTwice,
        Line::Other => Kind::Other,
    };
    match first_time(&source[..start], &subject) {
        Some(first) => (kind, diagnostic.at(first, "first definition")),
        None => (kind, diagnostic),
    }
}

/// What a line defines, without blanks and quotes.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Table(String),
    Key(String),
    Other,
}

impl Line {
    fn of(line: &str) -> Self {
        let line = line.trim_start();
        let tidy = |text: &str| {
            text.split('.').map(|part| part.trim().trim_matches(['"', '\''])).collect::<Vec<_>>().join(".")
        };
        if let Some(inside) = line.strip_prefix('[') {
            return match inside.strip_prefix('[').unwrap_or(inside).split_once(']') {
                Some((path, _)) => Self::Table(tidy(path)),
                None => Self::Other,
            };
        }
        match line.split_once('=') {
            Some((key, _)) if !line.starts_with('#') => Self::Key(tidy(key)),
            _ => Self::Other,
        }
    }
}

/// The nearest earlier line that defines the same; for a key, within the same table.
fn first_time(before: &str, subject: &Line) -> Option<Span> {
    let mut end = before.len();
    while let Some(start) = before[..end].strip_suffix('\n').map(|rest| rest.rfind('\n').map_or(0, |n| n + 1))
    {
        let line = &before[start..end];
        let found = Line::of(line);
        if *subject != Line::Other && found == *subject {
            let indent = line.len() - line.trim_start().len();
            return Some(start + indent..start + line.trim_end().len());
        }
        if matches!((subject, &found), (Line::Key(_), Line::Table(_))) {
            return None;
        }
        end = start;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_by_what_they_define() {
        assert_eq!(Line::of("[ pool . \"linux\" ]  # x"), Line::Table("pool.linux".into()));
        assert_eq!(Line::of("[[rule]]"), Line::Table("rule".into()));
        assert_eq!(Line::of("  'a' = 1"), Line::Key("a".into()));
        assert_eq!(Line::of("# a = 1"), Line::Other);
    }

    #[test]
    fn the_same_key_in_another_table_is_no_first_time() {
        assert_eq!(first_time("x = 1\n[b]\n", &Line::Key("x".into())), None);
        assert_eq!(first_time("[b]\n x = 1 \ny = 2\n", &Line::Key("x".into())), Some(5..10));
    }
}
