//! Diagnostics that point at the line.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use greenroom_keys::problem::{Problem, printable};

/// Shows at most this many diagnostics; a binary file would have thousands.
const SHOWN: usize = 10;

/// A position in the text: byte offsets.
pub(super) type Span = Range<usize>;

/// A mistake whose places are known.
pub(super) type Diagnostic = Problem<Span>;

/// Everything that is wrong with one configuration, in the order of the file.
///
/// `render` is the full text with the lines concerned, for operators. `Display` is one line without them, for job logs
/// and reports, which must not show a line of the file (such as a provider's password).
#[derive(Clone)]
pub struct Diagnostics {
    file: String,
    source: Arc<str>,
    found: Vec<Diagnostic>,
}

impl Diagnostics {
    pub(super) fn new(file: &str, source: Arc<str>, mut found: Vec<Diagnostic>) -> Self {
        found.sort_by_key(|one| one.marks.first().map_or(0, |(span, _)| span.start));
        Self { file: file.to_owned(), source, found }
    }

    /// The number of mistakes.
    pub fn count(&self) -> usize {
        self.found.len()
    }

    /// The full text; `colour` adds terminal escapes.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut parts: Vec<String> =
            self.found.iter().take(SHOWN).map(|one| renderer.render(&[self.group(one)])).collect();
        if let Some(more) = self.found.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            parts.push(format!("and {more} more"));
        }
        parts.join("\n\n")
    }

    /// One line: the first diagnostic with file, line and column, and the number of further ones.
    fn summary(&self) -> String {
        let Some(first) = self.found.first() else { return self.file.clone() };
        let place = match first.marks.first() {
            Some((span, _)) => {
                let (line, column) = line_and_column(&self.source, span.start);
                format!("{}:{line}:{column}", self.file)
            }
            None => self.file.clone(),
        };
        match self.found.len() - 1 {
            0 => format!("{place}: {first}"),
            more => format!("{place}: {first}, and {more} more"),
        }
    }

    fn group<'a>(&'a self, one: &'a Diagnostic) -> Group<'a> {
        let title = Level::ERROR.primary_title(one.title.as_str());
        let mut group = if one.marks.is_empty() {
            title.element(Origin::path(self.file.as_str()))
        } else {
            let marks = one.marks.iter().enumerate().map(|(index, (span, label))| {
                let kind = if index == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
                kind.span(within(&self.source, span)).label(label.as_str())
            });
            title.element(Snippet::source(&*self.source).path(self.file.as_str()).annotations(marks))
        };
        if let Some(help) = &one.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        group
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.summary()))
    }
}

impl fmt::Debug for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Diagnostics({})", self.summary())
    }
}

impl std::error::Error for Diagnostics {}

/// A span inside the text, whatever the label has: the renderer panics on any other.
fn within(source: &str, span: &Span) -> Span {
    let start = floor(source, span.start);
    start..floor(source, span.end).max(start)
}

fn floor(source: &str, offset: usize) -> usize {
    source.floor_char_boundary(offset.min(source.len()))
}

/// Line and column of a byte offset, both from 1, the column in characters.
pub(super) fn line_and_column(source: &str, offset: usize) -> (usize, usize) {
    let before = &source[..floor(source, offset)];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(source: &str, found: Vec<Diagnostic>) -> Diagnostics {
        Diagnostics::new("greenroom.toml", Arc::from(source), found)
    }

    #[test]
    fn lines_and_columns_count_from_one_and_in_characters() {
        for (offset, place) in [(0, (1, 1)), (3, (1, 3)), (4, (2, 1)), (99, (2, 2))] {
            assert_eq!(line_and_column("äb\nc", offset), place, "{offset}");
        }
    }

    #[test]
    fn complaints_come_in_the_order_of_the_file() {
        let found = vec![Diagnostic::new("late").at(4..5, ""), Diagnostic::new("early").at(0..1, "")];
        let text = one("a\nb\nc\n", found).render(false);
        assert!(text.find("early").unwrap() < text.find("late").unwrap(), "{text}");
    }

    #[test]
    fn a_summary_is_one_line_without_a_line_of_the_file() {
        let found = vec![Diagnostic::new("`x` is wrong").at(11..12, "found").help("write y")];
        let diagnostics = one("password = 'hunter2'", found);
        assert_eq!(diagnostics.to_string(), "greenroom.toml:1:12: `x` is wrong (write y)");
        assert!(!format!("{diagnostics:?}").contains("hunter2"));
    }

    #[test]
    fn spans_outside_the_text_are_shown_at_its_end_and_inside_a_character_before_it() {
        let found = vec![Diagnostic::new("a").at(50..70, "x"), Diagnostic::new("b").at(1..1, "y")];
        let text = one("ä", found).render(false);
        assert!(text.contains("error: a") && text.contains("error: b"), "{text}");
    }

    #[test]
    fn no_more_than_ten_are_shown_and_the_rest_is_counted() {
        let found = (0..13).map(|n| Diagnostic::new(format!("no {n}")).at(0..1, "")).collect();
        let text = one("abc", found).render(false);
        assert!(text.ends_with("and 3 more") && text.contains("no 9") && !text.contains("no 10"), "{text}");
    }

    #[test]
    fn colour_adds_escapes_and_nothing_else() {
        let found = vec![Diagnostic::new("t").at(0..1, "l")];
        let diagnostics = one("a", found);
        assert!(diagnostics.render(true).contains('\u{1b}'));
        assert!(!diagnostics.render(false).contains('\u{1b}'));
    }
}
