//! Reads JSON of any size within bounded memory.
//!
//! [`Clipped`] leaves out the rest of long strings, so that a script or a variable of any size takes no memory. [`Budget`] reads a
//! part of a job's response as a value of JSON that cannot become larger than intended.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The cost of a value beside its text, in bytes.
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

/// A value within a budget of memory. What does not fit becomes null, and [`is_over`](Budget::is_over) reports it.
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
    /// The budget of each element.
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

/// Strings are cut to about this many bytes, as written in JSON, where a character takes up to six.
pub(super) const LONGEST: usize = 1 << 20;
/// Values within values. `serde_json` allows as many, but not where it skips a value.
const DEEPEST: usize = 128;

/// Reads JSON. What it passes on is JSON if the original is.
#[derive(Debug)]
pub(super) struct Clipped<R> {
    inner: R,
    depth: usize,
    place: ClipState,
}

/// The position of the next byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClipState {
    Outside,
    /// A position within a string of which so many bytes have passed.
    Text(usize),
    /// Behind a backslash.
    Escape(usize),
    /// Behind `\u`: so many digits are missing, and the value of those before.
    Digits(usize, u8, u16),
    /// Behind the first half of a pair of `\u`, which cannot stand alone.
    Half(usize),
    /// A position within the part of a string that is left out.
    Cut,
    CutEscape,
}

impl<R: Read> Clipped<R> {
    pub(super) const fn new(inner: R) -> Self {
        Self { inner, depth: 0, place: ClipState::Outside }
    }

    /// True if the byte is passed on.
    fn step(&mut self, byte: u8) -> io::Result<bool> {
        self.place = match (self.place, byte) {
            (ClipState::Outside, b'"') => ClipState::Text(0),
            (ClipState::Outside, b'[' | b'{') => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(io::Error::from(io::ErrorKind::InvalidData));
                }
                ClipState::Outside
            }
            (ClipState::Outside, b']' | b'}') => {
                self.depth = self.depth.saturating_sub(1);
                ClipState::Outside
            }
            (ClipState::Outside, _) | (ClipState::Text(_) | ClipState::Half(_) | ClipState::Cut, b'"') => {
                ClipState::Outside
            }
            // A character of several bytes is not cut.
            (ClipState::Text(length), byte) if length >= LONGEST && !(0x80..0xc0).contains(&byte) => {
                self.place = if byte == b'\\' { ClipState::CutEscape } else { ClipState::Cut };
                return Ok(false);
            }
            (ClipState::Text(length) | ClipState::Half(length), b'\\') => ClipState::Escape(length + 1),
            (ClipState::Escape(length), b'u') => ClipState::Digits(length + 1, 4, 0),
            (ClipState::Text(length) | ClipState::Half(length) | ClipState::Escape(length), _) => {
                ClipState::Text(length + 1)
            }
            (ClipState::Digits(length, missing, value), byte) => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                let value = value << 4 | u16::try_from(digit).unwrap_or_default();
                match missing {
                    1 if (0xd800..0xdc00).contains(&value) => ClipState::Half(length + 1),
                    1 => ClipState::Text(length + 1),
                    _ => ClipState::Digits(length + 1, missing - 1, value),
                }
            }
            (ClipState::Cut, b'\\') => {
                self.place = ClipState::CutEscape;
                return Ok(false);
            }
            (ClipState::Cut | ClipState::CutEscape, _) => {
                self.place = ClipState::Cut;
                return Ok(false);
            }
        };
        Ok(true)
    }
}

impl<R: Read> Read for Clipped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.inner.read(buffer)?;
            if read == 0 {
                return Ok(0);
            }
            let mut kept = 0;
            for at in 0..read {
                let byte = buffer[at];
                if self.step(byte)? {
                    buffer[kept] = byte;
                    kept += 1;
                }
            }
            if kept > 0 {
                return Ok(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Deserializer, Value, json};

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

    fn clipped(text: &[u8]) -> io::Result<Vec<u8>> {
        let mut passed = Vec::new();
        Clipped::new(text).read_to_end(&mut passed).map(|_| passed)
    }

    #[test]
    fn a_long_string_is_cut_and_what_follows_is_not() {
        let long = 4 * LONGEST;
        for unit in ["x", "ä", "𝄞", "\n", "\\", "\"", "\u{1}"] {
            let text = unit.repeat(long / unit.len());
            let value = json!({ "script": [text], "after": "x\"\\" });
            let passed = clipped(value.to_string().as_bytes()).unwrap();
            assert!(passed.len() < LONGEST + 100, "{unit:?}: {}", passed.len());
            let read: Value = serde_json::from_slice(&passed).unwrap();
            assert_eq!(read["after"], value["after"], "{unit:?}");
            let cut = read["script"][0].as_str().unwrap();
            assert!(text.starts_with(cut) && cut.len() >= LONGEST / 6 - 1, "{unit:?}: {}", cut.len());
        }
    }

    #[test]
    fn escaped_pairs_are_not_torn() {
        for ahead in 0..12 {
            let text = format!("{}{}", "x".repeat(LONGEST - ahead), "\\ud834\\udd1e".repeat(40));
            let passed = clipped(format!("[\"{text}\", 1]").as_bytes()).unwrap();
            let read: Value = serde_json::from_slice(&passed).unwrap();
            assert_eq!(read[1], 1);
        }
    }

    #[test]
    fn nesting_without_end_is_an_error() {
        let depth = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(clipped(depth(DEEPEST).as_bytes()).is_ok());
        assert!(clipped(depth(DEEPEST + 1).as_bytes()).is_err());
        let brackets = json!(["[".repeat(10 * DEEPEST)]).to_string();
        assert_eq!(clipped(brackets.as_bytes()).unwrap(), brackets.as_bytes());
    }

    proptest! {
        #[test]
        fn what_has_no_long_string_passes_unchanged(text in r#"[\[\]{}"\\u0-9a-dä ]{0,60}"#) {
            prop_assert_eq!(clipped(text.as_bytes()).unwrap(), text.as_bytes());
        }
    }
}
