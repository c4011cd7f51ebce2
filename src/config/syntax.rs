//! From text to values: mistakes in the TOML as Greenroom's own diagnostics, and the positions of all keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_keys::problem::{Part, Place, Problems, join};
use toml::de::{DeInteger, DeTable, DeValue};
use toml::{Table, Value};

use super::diagnostic::{Diagnostic, Diagnostics, Span, line_and_column};

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

/// The definition on a line, without blanks and quotes.
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

/// The positions of all keys of one file.
#[derive(Clone)]
pub(super) struct Origins {
    file: String,
    source: Arc<str>,
    spans: BTreeMap<String, Spans>,
}

/// The positions of a key and of its value; of an entry of a list, both are the value's.
#[derive(Clone)]
struct Spans {
    name: Span,
    value: Span,
}

impl PartialEq for Origins {
    /// Configurations with the same settings are equal, whatever their positions.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Origins {
    /// Takes a file apart into positions and values.
    pub(super) fn of(file: &str, source: Arc<str>, values: &DeTable<'_>) -> (Self, Table) {
        let mut origins = Self { file: file.to_owned(), source, spans: BTreeMap::new() };
        let values = origins.table(values, "");
        (origins, values)
    }

    pub(super) fn line(&self, key: &str) -> Option<String> {
        let start = self.spans.get(key)?.name.start;
        Some(format!("{}:{}", self.file, line_and_column(&self.source, start).0))
    }

    pub(super) fn diagnostics(&self, problems: Problems) -> Diagnostics {
        let found = problems.0.into_iter().map(|problem| problem.located(|place| self.span(place)));
        Diagnostics::new(&self.file, Arc::clone(&self.source), found.collect())
    }

    /// The position of a place; of one that the file lacks, the table around it.
    fn span(&self, place: &Place) -> Span {
        let mut path = place.path.as_str();
        loop {
            match (self.spans.get(path), path.rsplit_once('.')) {
                (Some(spans), _) if place.part == Part::Name && path == place.path => {
                    return spans.name.clone();
                }
                (Some(spans), _) => return spans.value.clone(),
                (None, Some((around, _))) => path = around,
                (None, None) => return 0..0,
            }
        }
    }

    fn table(&mut self, values: &DeTable<'_>, path: &str) -> Table {
        let entry = |(key, value): (&toml::Spanned<toml::de::DeString<'_>>, &toml::Spanned<DeValue<'_>>)| {
            let path = join(path, key.get_ref());
            self.spans.insert(path.clone(), Spans { name: key.span(), value: value.span() });
            (key.get_ref().to_string(), self.value(value.get_ref(), &path))
        };
        values.iter().map(entry).collect()
    }

    fn value(&mut self, value: &DeValue<'_>, path: &str) -> Value {
        match value {
            DeValue::Table(table) => Value::Table(self.table(table, path)),
            DeValue::Array(list) => {
                let entry = |(at, one): (usize, &toml::Spanned<DeValue<'_>>)| {
                    let path = join(path, &at.to_string());
                    self.spans.insert(path.clone(), Spans { name: one.span(), value: one.span() });
                    self.value(one.get_ref(), &path)
                };
                Value::Array(list.iter().enumerate().map(entry).collect())
            }
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(number) => Value::Integer(integer(number)),
            // The parser has checked the form, and a number that is too large becomes infinite.
            DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Value::Boolean(*flag),
            DeValue::Datetime(time) => Value::Datetime(*time),
        }
    }
}

/// A number beyond 64 bits becomes the largest or the smallest one; no key takes those.
fn integer(number: &DeInteger<'_>) -> i64 {
    let limit = if number.as_str().starts_with('-') { i64::MIN } else { i64::MAX };
    i64::from_str_radix(number.as_str(), number.radix()).unwrap_or(limit)
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
