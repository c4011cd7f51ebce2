//! Reads one table key by key.
//!
//! Does not use serde, which stops at the first error and cannot report which table a key would belong to. Every getter
//! checks against the table of keys (keys/), adds its diagnostics to the sink, and lets the caller continue.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{Diagnostic, Span};
use super::keys::Section;
use super::near;
use crate::keys::near::nearest;
use crate::keys::{Key, Takes, duration};

/// Any larger number is a typo.
const MOST: u32 = 1_000_000;

/// One table of the file.
pub(super) struct Table<'a> {
    pub(super) section: Section,
    /// As the operator writes it: `[pool.linux]`.
    pub(super) header: String,
    pub(super) span: Span,
    values: &'a DeTable<'a>,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Got<T> {
    Absent,
    /// Not of the expected kind; already reported.
    Bad,
    Good(T, Range<usize>),
}

impl<T: Clone> Got<T> {
    pub(super) fn or(&self, default: T) -> T {
        match self {
            Self::Good(value, _) => value.clone(),
            Self::Absent | Self::Bad => default,
        }
    }

    pub(super) fn value(&self) -> Option<&T> {
        match self {
            Self::Good(value, _) => Some(value),
            Self::Absent | Self::Bad => None,
        }
    }

    pub(super) fn span(&self) -> Option<Span> {
        match self {
            Self::Good(_, span) => Some(span.clone()),
            Self::Absent | Self::Bad => None,
        }
    }

    pub(super) fn is_bad(&self) -> bool {
        matches!(self, Self::Bad)
    }

    /// This one, or if it is missing, the one below it.
    pub(super) fn over<'a>(&'a self, below: &'a Self) -> &'a Self {
        if matches!(self, Self::Absent) { below } else { self }
    }
}

pub(super) type Sink = Vec<Diagnostic>;

impl<'a> Table<'a> {
    /// Opens a table and reports every key that does not belong there.
    pub(super) fn open(
        section: Section,
        header: String,
        span: Span,
        values: &'a DeTable<'a>,
        sink: &mut Sink,
    ) -> Self {
        let table = Self { section, header, span, values };
        if section != Section::Provider {
            for key in values.keys() {
                if !section.keys().any(|known| known.name == key.get_ref().as_ref()) {
                    sink.push(table.stranger(key));
                }
            }
        }
        table
    }

    fn stranger(&self, key: &Spanned<toml::de::DeString<'_>>) -> Diagnostic {
        let name: &str = key.get_ref();
        let place = match self.section {
            Section::Top => "a key of the top level".to_owned(),
            _ => format!("a key of `{}`", self.header),
        };
        let diagnostic = Diagnostic::new(format!("`{name}` is not {place}")).at(key.span(), "unknown key");
        diagnostic.help(near::key_help(self.section, name))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    fn find(&self, name: &str) -> Option<(&'a Spanned<DeValue<'a>>, &'static Key)> {
        let known = self.section.keys().find(|key| key.name == name);
        let known =
            known.expect("getters are called with names out of the tables of keys; a test reads them all");
        self.values.get(name).map(|value| (value, known))
    }

    /// The common part of all getters: `read` returns what is wrong with a value of the right type.
    fn take<T>(
        &self,
        name: &str,
        sink: &mut Sink,
        read: impl FnOnce(&'a DeValue<'a>, Takes) -> Result<T, Wrong>,
    ) -> Got<T> {
        let Some((value, key)) = self.find(name) else { return Got::Absent };
        match read(value.get_ref(), key.takes) {
            Ok(read) => Got::Good(read, value.span()),
            Err(wrong) => {
                sink.push(self.wrong(key, value, wrong));
                Got::Bad
            }
        }
    }

    fn wrong(&self, key: &Key, value: &Spanned<DeValue<'a>>, wrong: Wrong) -> Diagnostic {
        let title = format!("`{}`{} must be {}", key.name, self.inside(), key.takes);
        match wrong {
            Wrong::Type => {
                let diagnostic = Diagnostic::new(title).at(value.span(), found(value.get_ref()));
                match self.section.opened_by(key) {
                    Some(header) => diagnostic.help(format!("write it as `{header}`")),
                    None => diagnostic,
                }
            }
            Wrong::Value(label) => Diagnostic::new(title).at(value.span(), label),
            Wrong::Near(label, help) => Diagnostic::new(title).at(value.span(), label).help(help),
        }
    }

    /// ` in [pool.linux]`, or nothing at the top.
    fn inside(&self) -> String {
        if self.section == Section::Top { String::new() } else { format!(" in `{}`", self.header) }
    }

    pub(super) fn count(&self, name: &str, sink: &mut Sink) -> Got<u32> {
        self.take(name, sink, |value, takes| {
            let least = if let Takes::Count(least) = takes { least } else { 0 };
            let DeValue::Integer(number) = value else { return Err(Wrong::Type) };
            let number = i128::from_str_radix(number.as_str(), number.radix())
                .map_err(|_| Wrong::Value(format!("more than {MOST}")))?;
            match u32::try_from(number) {
                Ok(count) if (least..=MOST).contains(&count) => Ok(count),
                _ if number > i128::from(MOST) => Err(Wrong::Value(format!("more than {MOST}"))),
                _ => Err(Wrong::Value(format!("found {number}"))),
            }
        })
    }

    pub(super) fn factor(&self, name: &str, sink: &mut Sink) -> Got<f64> {
        self.take(name, sink, |value, _| {
            let text = match value {
                DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
                DeValue::Float(number) => number.as_str(),
                _ => return Err(Wrong::Type),
            };
            match text.parse::<f64>() {
                Ok(number) if number >= 0.0 && number <= f64::from(MOST) => Ok(number),
                Ok(number) if number > 0.0 => Err(Wrong::Value(format!("more than {MOST}"))),
                _ => Err(Wrong::Value(format!("found {text}"))),
            }
        })
    }

    pub(super) fn duration(&self, name: &str, sink: &mut Sink) -> Got<Duration> {
        self.take(name, sink, |value, takes| {
            let least =
                if let Takes::Duration(ms) = takes { Duration::from_millis(ms) } else { Duration::ZERO };
            match value {
                DeValue::String(text) => match duration::parse(text) {
                    Ok(duration) if duration >= least => Ok(duration),
                    Ok(_) => Err(Wrong::Value(format!("less than the minimum, {} ms", least.as_millis()))),
                    Err(problem) => Err(Wrong::Value(problem)),
                },
                DeValue::Integer(number) if !number.as_str().starts_with('-') => {
                    Err(Wrong::Value(duration::no_unit(&number.to_string())))
                }
                DeValue::Integer(number) => Err(Wrong::Value(format!("found {number}"))),
                _ => Err(Wrong::Type),
            }
        })
    }

    pub(super) fn flag(&self, name: &str, sink: &mut Sink) -> Got<bool> {
        self.take(name, sink, |value, _| value.as_bool().ok_or(Wrong::Type))
    }

    /// A string that is not empty.
    pub(super) fn text(&self, name: &str, sink: &mut Sink) -> Got<String> {
        self.take(name, sink, |value, _| match value.as_str() {
            Some(text) if text.trim().is_empty() => Err(Wrong::Value("empty".to_owned())),
            Some(text) => Ok(text.to_owned()),
            None => Err(Wrong::Type),
        })
    }

    /// The index of a word among those that the key allows.
    pub(super) fn word(&self, name: &str, sink: &mut Sink) -> Got<usize> {
        self.take(name, sink, |value, takes| {
            let words = if let Takes::Word(words) = takes { words } else { &[] };
            let text = value.as_str().ok_or(Wrong::Type)?;
            words.iter().position(|word| *word == text).ok_or_else(|| {
                let label = format!("found \"{text}\"");
                match nearest(text, words.iter().copied()) {
                    Some(word) => Wrong::Near(label, format!("did you mean \"{word}\"?")),
                    None => Wrong::Value(label),
                }
            })
        })
    }

    pub(super) fn host_path(&self, name: &str, sink: &mut Sink) -> Got<String> {
        self.take(name, sink, |value, _| match value.as_str() {
            Some(text) if text.starts_with('/') => Ok(text.to_owned()),
            Some(_) => Err(Wrong::Value(
                "a relative path: GitLab Runner starts each call in a new directory".to_owned(),
            )),
            None => Err(Wrong::Type),
        })
    }

    pub(super) fn guest_path(&self, name: &str, sink: &mut Sink) -> Got<String> {
        self.take(name, sink, |value, _| match value.as_str() {
            Some(text) if is_absolute_in_guest(text) => Ok(text.trim_end_matches(['/', '\\']).to_owned()),
            Some(_) => Err(Wrong::Value("not an absolute path".to_owned())),
            None => Err(Wrong::Type),
        })
    }

    /// Strings with their positions, at least one. A single string counts as a list if the key takes patterns.
    pub(super) fn texts(&self, name: &str, sink: &mut Sink) -> Got<Vec<Spanned<String>>> {
        let whole = self.values.get(name).map(Spanned::span);
        self.take(name, sink, |value, takes| match value {
            DeValue::Array(list) if list.is_empty() => Err(Wrong::Value("the list is empty".to_owned())),
            DeValue::Array(list) => list
                .iter()
                .map(|one| one.get_ref().as_str().map(|text| Spanned::new(one.span(), text.to_owned())))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| Wrong::Value("not all elements are strings".to_owned())),
            DeValue::String(text) if takes == Takes::Globs => {
                Ok(vec![Spanned::new(whole.unwrap_or_default(), text.clone().into_owned())])
            }
            _ => Err(Wrong::Type),
        })
    }

    /// A sub-table with its header's place.
    pub(super) fn table(&self, name: &str, sink: &mut Sink) -> Got<&'a DeTable<'a>> {
        self.take(name, sink, |value, _| value.as_table().ok_or(Wrong::Type))
    }

    /// A list of sub-tables, each with its header's place.
    pub(super) fn tables(&self, name: &str, sink: &mut Sink) -> Vec<(Span, &'a DeTable<'a>)> {
        let read = self.take(name, sink, |value, _| {
            let list = value.as_array().ok_or(Wrong::Type)?;
            let tables = list.iter().map(|one| one.get_ref().as_table().map(|table| (one.span(), table)));
            tables.collect::<Option<Vec<_>>>().ok_or(Wrong::Type)
        });
        read.or(Vec::new())
    }

    /// Reports that a required key is missing.
    pub(super) fn missing(&self, name: &str, sink: &mut Sink, help: impl Into<String>) {
        let title = format!("`{name}` is missing in `{}`", self.header);
        sink.push(Diagnostic::new(title).at(self.span.clone(), "in this table").help(help));
    }
}

/// What is wrong with a value.
enum Wrong {
    Type,
    /// The type is right; the label describes the mistake.
    Value(String),
    Near(String, String),
}

fn found(value: &DeValue<'_>) -> String {
    let what = match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a floating-point number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    format!("found {what}")
}

/// The guest may be Windows, whatever the runner host is.
fn is_absolute_in_guest(path: &str) -> bool {
    let mut chars = path.chars();
    match (chars.next(), chars.next(), chars.next()) {
        (Some('/'), Some(_), _) => true,
        (Some(drive), Some(':'), Some('/' | '\\')) => drive.is_ascii_alphabetic(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_absolute_in_guest;

    #[test]
    fn absolute_means_absolute_for_the_guest() {
        for (path, absolute) in [
            ("/builds", true),
            ("C:\\builds", true),
            ("c:/builds", true),
            ("C:builds", false),
            ("builds", false),
            ("./builds", false),
            ("~/builds", false),
            ("/", false),
            ("", false),
        ] {
            assert_eq!(is_absolute_in_guest(path), absolute, "{path}");
        }
    }
}
