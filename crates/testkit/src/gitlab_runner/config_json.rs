//! The answer of `config`, read as strictly and as leniently as Go's `encoding/json` reads it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub driver_name: Option<String>,
    pub driver_version: Option<String>,
    pub hostname: Option<String>,
    pub builds_dir: Option<String>,
    pub cache_dir: Option<String>,
    pub builds_dir_is_shared: Option<bool>,
    pub job_env: Vec<(String, String)>,
    pub shell: Option<String>,
}

/// An object in the order in which it was written, duplicates included: the last one wins, as in Go.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object or null")
            }

            fn visit_unit<E: Error>(self) -> Result<Pairs, E> {
                Ok(Pairs(Vec::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_any(Collect)
    }
}

/// Reads the whole of stdout; empty output is valid, a lone newline is not.
pub(super) fn parse(stdout: &[u8]) -> Result<Answer, String> {
    let mut answer = Answer::default();
    if stdout.is_empty() {
        return Ok(answer);
    }
    let text = String::from_utf8_lossy(stdout);
    let Pairs(pairs) = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for (key, value) in pairs {
        match key.to_ascii_lowercase().as_str() {
            "driver" => driver(&mut answer, &value)?,
            "hostname" => answer.hostname = text_or_null(&key, &value)?,
            "builds_dir" => answer.builds_dir = text_or_null(&key, &value)?,
            "cache_dir" => answer.cache_dir = text_or_null(&key, &value)?,
            "builds_dir_is_shared" => answer.builds_dir_is_shared = truth_or_null(&key, &value)?,
            "job_env" => job_env(&mut answer, &value)?,
            "shell" => answer.shell = text_or_null(&key, &value)?,
            _ => {}
        }
    }
    Ok(answer)
}

fn wrong(key: &str, value: &Value) -> String {
    format!("json: cannot unmarshal {value} into field {key}")
}

fn text_or_null(key: &str, value: &Value) -> Result<Option<String>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(wrong(key, value)),
    }
}

fn truth_or_null(key: &str, value: &Value) -> Result<Option<bool>, String> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(truth) => Ok(Some(*truth)),
        _ => Err(wrong(key, value)),
    }
}

fn driver(answer: &mut Answer, value: &Value) -> Result<(), String> {
    let Value::Object(fields) = value else {
        return if value.is_null() { Ok(()) } else { Err(wrong("driver", value)) };
    };
    for (key, value) in fields {
        match key.to_ascii_lowercase().as_str() {
            "name" => answer.driver_name = text_or_null(key, value)?,
            "version" => answer.driver_version = text_or_null(key, value)?,
            _ => {}
        }
    }
    Ok(())
}

fn job_env(answer: &mut Answer, value: &Value) -> Result<(), String> {
    let Value::Object(fields) = value else {
        return if value.is_null() { Ok(()) } else { Err(wrong("job_env", value)) };
    };
    for (key, value) in fields {
        answer.job_env.push((key.clone(), text_or_null(key, value)?.unwrap_or_default()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Answer, parse};

    #[test]
    fn config_may_say_nothing_but_not_a_lone_newline() {
        assert_eq!(parse(b""), Ok(Answer::default()));
        assert_eq!(parse(b" \n{}\n"), Ok(Answer::default()));
        assert_eq!(parse(b"null"), Ok(Answer::default()));
        for broken in ["\n", " ", "[]", "7", "\"x\"", "log line\n{}", "{} trailing", "\u{feff}{}", "{,}"] {
            assert!(parse(broken.as_bytes()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn config_keys_know_no_case_and_the_last_of_two_wins() {
        let answer = parse(br#"{"Builds_Dir":"/a","builds_dir":"/b","unknown":[1],"cache_dir":null}"#);
        let answer = answer.expect("valid for Go");
        assert_eq!(answer.builds_dir.as_deref(), Some("/b"));
        assert_eq!(answer.cache_dir, None);
        let answer = parse(br#"{"builds_dir":"/b","BUILDS_DIR":"/a"}"#).expect("valid for Go");
        assert_eq!(answer.builds_dir.as_deref(), Some("/a"));
    }

    #[test]
    fn config_values_of_a_wrong_type_are_an_error() {
        for broken in [
            r#"{"builds_dir":1}"#,
            r#"{"builds_dir_is_shared":"true"}"#,
            r#"{"job_env":{"A":1}}"#,
            r#"{"job_env":[]}"#,
            r#"{"driver":"x"}"#,
            r#"{"driver":{"name":false}}"#,
            r#"{"hostname":true}"#,
        ] {
            assert!(parse(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
