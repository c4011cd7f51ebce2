//! Reads a provider's table, key by key.
//!
//! Every error names the key, the expected and the actual value. For an unknown key it suggests the most similar one.
//! Each key that the code reads counts as known, so a provider cannot forget to list one.

use std::fmt;
use std::time::Duration;

use toml::Value;

use crate::keys::duration;
use crate::keys::near::nearest;

/// An error in a key of a provider's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyError {
    /// Dotted within the table (`fail_launch.class`), so that the configuration can find its line.
    pub key: String,
    pub problem: String,
}

impl std::error::Error for KeyError {}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.key, self.problem)
    }
}

impl KeyError {
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }

    /// The error for a value that is not one of the choices.
    pub fn choice(key: impl Into<String>, found: &str, choices: &[&str]) -> Self {
        let list: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
        let list = list.join(" or ");
        let near = nearest(found, choices.iter().copied()).map(|near| format!(": did you mean {near:?}?"));
        Self::new(key, format!("is {found:?}, expected {list}{}", near.unwrap_or_default()))
    }

    fn kind(key: &str, expected: &str, found: &Value) -> Self {
        Self::new(key, format!("is {}, expected {expected}", shown(found)))
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Table(_) => "a table".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        plain => plain.to_string(),
    }
}

/// A table that is being read.
#[derive(Debug)]
pub struct Keys<'a> {
    table: &'a toml::Table,
    /// With a trailing dot: `fail_launch.`.
    prefix: String,
    known: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    pub fn of(table: &'a toml::Table) -> Self {
        Self { table, prefix: String::new(), known: Vec::new() }
    }

    fn value(&mut self, key: &'static str) -> Option<&'a Value> {
        self.known.push(key);
        self.table.get(key)
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || KeyError::kind(&self.name(key), "`true` or `false`", value);
        value.as_bool().ok_or_else(wrong).map(Some)
    }

    /// A whole number within `u32`.
    pub fn count(&mut self, key: &'static str) -> Result<Option<u32>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || KeyError::kind(&self.name(key), "a whole number from 0", value);
        value.as_integer().and_then(|number| u32::try_from(number).ok()).ok_or_else(wrong).map(Some)
    }

    pub fn text(&mut self, key: &'static str) -> Result<Option<&'a str>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().ok_or_else(|| KeyError::kind(&self.name(key), "a string", value)).map(Some)
    }

    /// A list of strings, none of them empty; a single string counts as a list of one.
    pub fn texts(&mut self, key: &'static str) -> Result<Option<Vec<&'a str>>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || KeyError::kind(&self.name(key), "a string or a list of strings", value);
        let texts: Vec<&str> = match value {
            Value::String(one) => vec![one],
            Value::Array(list) => list.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        if texts.is_empty() || texts.iter().any(|text| text.trim().is_empty()) {
            return Err(KeyError::new(self.name(key), "is empty or contains an empty string"));
        }
        Ok(Some(texts))
    }

    /// A table of strings, with names that the operator chooses.
    pub fn map_of_texts(&mut self, key: &'static str) -> Result<Vec<(String, String)>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        let table =
            value.as_table().ok_or_else(|| KeyError::kind(&self.name(key), "a table of strings", value))?;
        let inner = |(name, value): (&String, &'a Value)| {
            let wrong = || KeyError::kind(&self.name(&format!("{key}.{name}")), "a string", value);
            Ok((name.clone(), value.as_str().ok_or_else(wrong)?.to_owned()))
        };
        table.iter().map(inner).collect()
    }

    /// A duration (`"1m 30s"`, `"1.5h"`, `"7d"` with days of 24 hours), never negative.
    pub fn duration(&mut self, key: &'static str) -> Result<Option<Duration>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || KeyError::kind(&self.name(key), "a duration such as \"1m 30s\"", value);
        let text = value.as_str().ok_or_else(wrong)?;
        let parsed = duration::parse(text);
        parsed.map(Some).map_err(|problem| KeyError::new(self.name(key), format!("is {text:?}: {problem}")))
    }

    /// A size in bytes with a binary unit (`"512M"`, `"8G"`), greater than zero.
    pub fn size(&mut self, key: &'static str) -> Result<Option<u64>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || KeyError::kind(&self.name(key), "a size such as \"512M\" or \"8G\"", value);
        let text = value.as_str().ok_or_else(wrong)?;
        size(text).filter(|bytes| *bytes > 0).ok_or_else(wrong).map(Some)
    }

    /// One of the choices.
    pub fn choice(
        &mut self,
        key: &'static str,
        choices: &[&'static str],
    ) -> Result<Option<&'static str>, KeyError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let known = choices.iter().find(|choice| **choice == text);
        known.copied().ok_or_else(|| KeyError::choice(self.name(key), text, choices)).map(Some)
    }

    /// An inner table; the caller calls `finish` on it, too.
    pub fn table(&mut self, key: &'static str) -> Result<Option<Keys<'a>>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let table = value.as_table().ok_or_else(|| KeyError::kind(&self.name(key), "a table", value))?;
        Ok(Some(Keys { table, prefix: format!("{}{key}.", self.prefix), known: Vec::new() }))
    }

    /// A list of inner tables, numbered from 0 in names; the caller calls `finish` on each.
    pub fn tables(&mut self, key: &'static str) -> Result<Vec<Keys<'a>>, KeyError> {
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        let wrong = || KeyError::kind(&self.name(key), "a list of tables", value);
        let list = value.as_array().ok_or_else(wrong)?;
        let inner = |(at, one): (usize, &'a Value)| {
            let table = one.as_table().ok_or_else(wrong)?;
            Ok(Keys { table, prefix: format!("{}{key}.{at}.", self.prefix), known: Vec::new() })
        };
        list.iter().enumerate().map(inner).collect()
    }

    /// The name of a key in messages, which includes the names of the enclosing tables.
    pub fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Refuses keys that the code has not read.
    pub fn finish(self) -> Result<(), KeyError> {
        let Some(key) = self.table.keys().find(|key| !self.known.contains(&key.as_str())) else {
            return Ok(());
        };
        let known = || self.known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let problem = match nearest(key, self.known.iter().copied()) {
            Some(near) => format!("is not a key of this table: did you mean `{near}`?"),
            None => format!("is not a key of this table; known keys: {}", known()),
        };
        Err(KeyError::new(self.name(key), problem))
    }
}

/// Parses a size. K, M, G and T are powers of 1024, with or without `iB`; `None`: the text is not a size.
pub fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].trim_end_matches("iB");
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    fn duration(text: &str) -> Result<Option<Duration>, String> {
        let table = table(&format!("wait = {text}"));
        Keys::of(&table).duration("wait").map_err(|error| error.to_string())
    }

    #[test]
    fn durations_read_as_people_write_them_and_never_negative() {
        assert_eq!(duration("\"5s\"").unwrap(), Some(Duration::from_secs(5)));
        assert_eq!(duration("\"1m 30s\"").unwrap(), Some(Duration::from_secs(90)));
        assert_eq!(duration("\"250ms\"").unwrap(), Some(Duration::from_millis(250)));
        assert_eq!(duration("\"2d\"").unwrap(), Some(Duration::from_hours(48)));
        assert_eq!(duration("\"-5s\"").unwrap_err(), "`wait` is \"-5s\": a duration cannot be negative");
        let wrong = "`wait` is 5, expected a duration such as \"1m 30s\"";
        assert_eq!(duration("5").unwrap_err(), wrong);
        assert!(duration("\"soon\"").unwrap_err().contains("\"soon\": not a duration such as"));
        assert!(duration("\"1 month\"").is_err(), "a month has no length");
    }

    #[test]
    fn sizes_have_a_unit_and_are_never_nothing() {
        let read = |text: &str| {
            let table = table(&format!("memory = {text}"));
            Keys::of(&table).size("memory").map_err(|error| error.to_string())
        };
        assert_eq!(read("\"512M\"").unwrap(), Some(512 << 20));
        assert_eq!(read("\"2GiB\"").unwrap(), Some(2 << 30));
        for wrong in ["\"2\"", "2048", "\"0G\"", "\"1.5G\"", "\"99999999999T\"", "\"2GB\"", "\"\""] {
            let message = read(wrong).unwrap_err();
            assert!(message.ends_with("expected a size such as \"512M\" or \"8G\""), "{message}");
        }
    }

    #[test]
    fn an_unknown_key_names_its_neighbour_or_all_keys() {
        let near = table("boot_dealy = \"5s\"");
        let mut keys = Keys::of(&near);
        assert_eq!(keys.duration("boot_delay"), Ok(None));
        let error = keys.finish().unwrap_err();
        assert_eq!(error.key, "boot_dealy");
        assert_eq!(error.to_string(), "`boot_dealy` is not a key of this table: did you mean `boot_delay`?");
        let far = table("zzz = 1");
        let mut keys = Keys::of(&far);
        assert_eq!(keys.flag("allow_root"), Ok(None));
        assert!(keys.finish().unwrap_err().to_string().ends_with("known keys: `allow_root`"));
    }

    #[test]
    fn a_key_in_an_inner_table_is_named_with_its_path() {
        let text = table("fail_launch = { class = \"transiet\" }");
        let mut keys = Keys::of(&text);
        let mut inner = keys.table("fail_launch").unwrap().unwrap();
        let error = inner.choice("class", &["transient", "quota"]).unwrap_err();
        let expected = "`fail_launch.class` is \"transiet\", expected \"transient\" or \"quota\": \
                    did you mean \"transient\"?";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_wrong_kind_says_what_was_expected_and_found() {
        let text = table("allow_root = \"yes\"\nno_capacity = -1\nserver = {}");
        let mut keys = Keys::of(&text);
        let message = |error: KeyError| error.to_string();
        assert_eq!(
            message(keys.flag("allow_root").unwrap_err()),
            "`allow_root` is \"yes\", expected `true` or `false`"
        );
        assert_eq!(
            message(keys.count("no_capacity").unwrap_err()),
            "`no_capacity` is -1, expected a whole number from 0"
        );
        assert_eq!(message(keys.text("server").unwrap_err()), "`server` is a table, expected a string");
    }
}
