//! A mistake in the configuration, and the collection of all of them.

use std::cell::RefCell;
use std::fmt;

/// A place in the file, by the dotted path of a key; entries of a list by number from 0: `pool.linux.provider.host.0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub path: String,
    pub part: Part,
}

/// The part of a key that a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Name,
    /// For a table, its header.
    Value,
}

impl Place {
    pub fn name_of(path: impl Into<String>) -> Self {
        Self { path: path.into(), part: Part::Name }
    }

    pub fn value_of(path: impl Into<String>) -> Self {
        Self { path: path.into(), part: Part::Value }
    }
}

/// The path of a key in a table, or of an entry in a list. A key with a dot has quotes, as in the file.
pub fn join(path: &str, key: &str) -> String {
    let dot = if path.is_empty() { "" } else { "." };
    let quote = if key.contains('.') { "\"" } else { "" };
    format!("{path}{dot}{quote}{key}{quote}")
}

/// One mistake. `P` is a place, or the position in the text that it has turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem<P = Place> {
    pub title: String,
    /// Labels. The first one marks the mistake itself, further ones what it contradicts.
    pub marks: Vec<(P, String)>,
    pub help: Option<String>,
}

impl<P> Problem<P> {
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), marks: Vec::new(), help: None }
    }

    #[must_use]
    pub fn at(mut self, place: P, label: impl Into<String>) -> Self {
        self.marks.push((place, label.into()));
        self
    }

    #[must_use]
    pub fn help(self, text: impl Into<String>) -> Self {
        Self { help: Some(text.into()), ..self }
    }

    /// Returns this problem with other places.
    pub fn located<Q>(self, position: impl Fn(&P) -> Q) -> Problem<Q> {
        let marks = self.marks.into_iter().map(|(place, label)| (position(&place), label)).collect();
        Problem { title: self.title, marks, help: self.help }
    }
}

impl<P> fmt::Display for Problem<P> {
    /// One line. It shows no label, which may contain a value out of the file, such as a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.title))?;
        match self.help.as_deref().filter(|help| !help.contains('\n')) {
            Some(help) => write!(f, " ({})", printable(help)),
            None => Ok(()),
        }
    }
}

impl<P: fmt::Debug> std::error::Error for Problem<P> {}

/// A text with `?` in place of control characters: a terminal would obey those of a name.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Collects mistakes while tables are read.
#[derive(Debug, Default)]
pub struct Sink(RefCell<Vec<Problem>>);

impl Sink {
    /// Adds a mistake, unless it is known: two entries may have taken the same value from the table around them.
    pub fn push(&self, problem: Problem) {
        let mut found = self.0.borrow_mut();
        if !found.contains(&problem) {
            found.push(problem);
        }
    }

    /// The mistakes, if there are any.
    pub fn finish(self) -> Result<(), Problems> {
        let found = self.0.into_inner();
        if found.is_empty() { Ok(()) } else { Err(Problems(found)) }
    }
}

/// Everything that is wrong; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("; "))
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_label_and_no_control_character() {
        let problem = Problem::new("`a\u{1b}` is wrong").at(Place::value_of("a"), "found \"hunter2\"");
        assert_eq!(problem.clone().help("write b").to_string(), "`a?` is wrong (write b)");
        assert_eq!(problem.help("write\nb").to_string(), "`a?` is wrong");
    }

    #[test]
    fn a_mistake_is_collected_once() {
        let sink = Sink::default();
        for title in ["a", "b", "a"] {
            sink.push(Problem::new(title));
        }
        assert_eq!(sink.finish().unwrap_err().to_string(), "a; b");
        assert_eq!(Sink::default().finish(), Ok(()));
    }

    #[test]
    fn a_dot_in_a_key_separates_nothing() {
        assert_eq!(join("", "a"), "a");
        assert_eq!(join("a.b", "c.d"), "a.b.\"c.d\"");
    }
}
