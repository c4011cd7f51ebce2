//! Parts of a job's response as values of JSON that cannot become larger than intended.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// What a value costs beside its text.
const VALUE: usize = 64;
const OBJECT: usize = 600;

/// The fields that are read. All others are left out, whatever their size.
const FIELDS: &[&str] = &[
    "alias",
    "command",
    "docker",
    "entrypoint",
    "executor_opts",
    "file",
    "key",
    "name",
    "password",
    "pipeline_id",
    "platform",
    "project_full_path",
    "protected",
    "public",
    "pull_policy",
    "raw",
    "ref",
    "stage",
    "timeout",
    "type",
    "url",
    "user",
    "username",
    "value",
    "variables",
];

/// A value within a budget of memory. What does not fit becomes null, and `is_over` reports it.
pub(super) struct Budget(Cell<Option<usize>>);

impl Budget {
    pub(super) const fn new(bytes: usize) -> Self {
        Self(Cell::new(Some(bytes)))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.get().is_none()
    }

    fn take(&self, bytes: usize) -> bool {
        self.0.set(self.0.get().and_then(|left| left.checked_sub(bytes)));
        !self.is_over()
    }

    fn text(&self, text: &str) -> Value {
        if self.take(VALUE + text.len()) { Value::String(text.to_owned()) } else { Value::Null }
    }
}

impl<'de> DeserializeSeed<'de> for &Budget {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &Budget {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(self.text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while self.take(VALUE) {
            match elements.next_element_seed(self)? {
                Some(element) => all.push(element),
                None => return Ok(Value::Array(all)),
            }
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        self.take(OBJECT);
        while let Some(name) = fields.next_key_seed(FieldName(FIELDS))? {
            match name {
                Some(name) if !self.is_over() => {
                    all.insert(name.to_owned(), fields.next_value_seed(self)?);
                }
                Some(_) | None => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(all))
    }
}

/// A field's name, if it is one of these.
pub(super) struct FieldName(pub(super) &'static [&'static str]);

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Option<&'static str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().copied().find(|name| *name == text))
    }
}

/// The elements of a list, one after the other, each within a budget of its own. Another value than a list has none.
pub(super) struct Elements<F> {
    /// Of each element.
    pub(super) bytes: usize,
    /// Gets an element, and whether parts of it are left out; false: no more are wanted.
    pub(super) each: F,
}

impl<'de, F: FnMut(Value, bool) -> bool> DeserializeSeed<'de> for Elements<F> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Value, bool) -> bool> Visitor<'de> for Elements<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        loop {
            let budget = Budget::new(self.bytes);
            let Some(element) = elements.next_element_seed(&budget)? else { return Ok(()) };
            if !(self.each)(element, budget.is_over()) {
                break;
            }
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Deserializer, json};

    use super::*;

    fn within(bytes: usize, text: &str) -> (Value, bool) {
        let budget = Budget::new(bytes);
        let mut from = Deserializer::from_str(text);
        let value = budget.deserialize(&mut from).unwrap();
        from.end().unwrap();
        (value, budget.is_over())
    }

    #[test]
    fn a_value_that_fits_is_complete_but_for_fields_that_no_one_reads() {
        let text =
            r#"{"name":"a","script":["x"],"variables":[{"key":"A","public":true}],"timeout":7,"alias":null}"#;
        let expected =
            json!({"name": "a", "variables": [{"key": "A", "public": true}], "timeout": 7, "alias": null});
        assert_eq!(within(10_000, text), (expected, false));
    }

    #[test]
    fn a_value_that_does_not_fit_is_read_to_its_end() {
        for text in [
            json!({"name": "a".repeat(2000)}),
            json!({"command": vec!["a"; 1000]}),
            json!({"variables": vec![json!({"key": "A"}); 1000]}),
            json!({"command": vec![json!(null); 1000]}),
        ] {
            let (value, is_over) = within(1000, &text.to_string());
            assert!(is_over && value.to_string().len() < 1000, "{value}");
        }
    }

    #[test]
    fn elements_come_until_no_more_are_wanted() {
        let read = |text: &str, most: usize| {
            let mut all = Vec::new();
            let each = |element: Value, is_over: bool| {
                all.push((element, is_over));
                all.len() < most
            };
            let mut from = Deserializer::from_str(text);
            Elements { bytes: 100, each }.deserialize(&mut from).unwrap();
            from.end().unwrap();
            all
        };
        let text = format!(r#"[1, "{}", 2, 3]"#, "x".repeat(200));
        let expected = [(json!(1), false), (json!(null), true), (json!(2), false), (json!(3), false)];
        assert_eq!(read(&text, 9), expected);
        assert_eq!(read(&text, 1), expected[..1]);
        for other in ["1", "-1", "1.5", "true", "null", "\"x\"", "{\"a\":[1]}"] {
            assert!(read(other, 9).is_empty(), "{other}");
        }
    }
}
