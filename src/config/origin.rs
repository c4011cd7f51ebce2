//! The position of each key, for messages after the check.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::diagnostic::{Diagnostic, Diagnostics, Span, line_and_column};

/// The positions of all keys of one file.
#[derive(Clone)]
pub(super) struct Origins {
    file: String,
    source: Arc<str>,
    spans: BTreeMap<String, Span>,
}

impl PartialEq for Origins {
    /// Configurations with the same settings are equal, whatever their positions.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Origins {
    pub(super) fn of(file: &str, source: Arc<str>, values: &DeTable<'_>) -> Self {
        let mut spans = BTreeMap::new();
        collect(values, "", &mut spans);
        Self { file: file.to_owned(), source, spans }
    }

    pub(super) fn line(&self, key: &str) -> Option<String> {
        let span = self.spans.get(key)?;
        Some(format!("{}:{}", self.file, line_and_column(&self.source, span.start).0))
    }

    pub(super) fn complain(&self, key: &str, problem: String) -> Diagnostics {
        let mut nearest = Some(key);
        let span = loop {
            match nearest {
                Some(path) => match self.spans.get(path) {
                    Some(span) => break Some(span.clone()),
                    None => nearest = path.rsplit_once('.').map(|(parent, _)| parent),
                },
                None => break None,
            }
        };
        let diagnostic = Diagnostic::new(problem);
        let diagnostic = match span {
            Some(span) => diagnostic.at(span, if nearest == Some(key) { "here" } else { "in this table" }),
            None => diagnostic,
        };
        Diagnostics::new(&self.file, Arc::clone(&self.source), vec![diagnostic])
    }
}

fn collect(values: &DeTable<'_>, above: &str, spans: &mut BTreeMap<String, Span>) {
    for (key, value) in values {
        let path =
            if above.is_empty() { key.get_ref().to_string() } else { format!("{above}.{}", key.get_ref()) };
        spans.insert(path.clone(), key.span());
        descend(value.get_ref(), &path, spans);
    }
}

fn descend(value: &DeValue<'_>, path: &str, spans: &mut BTreeMap<String, Span>) {
    match value {
        DeValue::Table(table) => collect(table, path, spans),
        DeValue::Array(list) => {
            for (index, one) in list.iter().enumerate() {
                let path = format!("{path}.{index}");
                spans.insert(path.clone(), one.span());
                descend(one.get_ref(), &path, spans);
            }
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => {}
    }
}
