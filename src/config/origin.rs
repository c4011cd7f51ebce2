//! The positions of all keys, and the file's values without them.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_keys::problem::{Part, Place, Problems, join};
use toml::de::{DeInteger, DeTable, DeValue};
use toml::{Table, Value};

use super::diagnostic::{Diagnostics, Span, line_and_column};

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
