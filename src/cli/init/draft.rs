//! The text of a new configuration, with a comment for each key from the tables of keys.

use std::path::Path;

use greenroom_keys::near::nearest_or_all;
use greenroom_keys::{KeySpec, KeyTable, ValueType, schema, size};
use greenroom_providers::first_pool::Given;
use greenroom_providers::registration::Registration;
use toml::{Table, Value};

use crate::config;
use crate::provider;

/// Columns of comments.
const WIDTH: usize = 110;
const HEAD: &str = "# Greenroom's configuration. docs/configuration.md describes each key. A running keeper reads a changed file by \
                    itself;\n# `greenroom doctor` shows its mistakes.\n";

/// The reasons for which a text does not set a key of a new pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyError {
    #[error("`{0}` is not KEY=VALUE")]
    NoAssignment(String),
    #[error("`{name}` is a key neither of provider `{kind}` nor of a pool: {help}")]
    Unknown { name: String, kind: &'static str, help: String },
    #[error("`{name}` must be {ty}")]
    Value { name: &'static str, ty: ValueType },
}

/// A pool to be written, of which [`file`](Self::file) makes the text.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) known: &'static Registration,
    /// The keys of the pool, in the order in which they are written.
    pub(super) pool: Vec<(String, Value)>,
    pub(super) provider: Vec<(String, Value)>,
    /// The tables `[[pool.NAME.provider.host]]`.
    pub(super) hosts: Vec<Table>,
}

impl Draft {
    /// A pool without keys.
    pub(super) fn new(name: String, known: &'static Registration) -> Self {
        Self { name, known, pool: Vec::new(), provider: Vec::new(), hosts: Vec::new() }
    }

    /// The keys that are set so far.
    pub(super) fn given(&self) -> Given<'_> {
        Given { provider: &self.provider, hosts: &self.hosts }
    }

    /// Sets a key of the pool, unless it is set.
    pub(super) fn put_of_pool(&mut self, name: &str, value: Value) {
        if !self.pool.iter().any(|(known, _)| known == name) {
            self.pool.push((name.to_owned(), value));
        }
    }

    /// Sets a key of the provider, or of the pool, as `KEY=VALUE` gives it.
    pub(super) fn set(&mut self, given: &str) -> Result<(), KeyError> {
        let (name, text) = given.split_once('=').ok_or_else(|| KeyError::NoAssignment(given.to_owned()))?;
        let own = self.own_keys();
        let shared = pool_keys().keys;
        let (key, list) = match (find(own, name), find(shared, name)) {
            (Some(key), _) => (key, &mut self.provider),
            (None, Some(key)) => (key, &mut self.pool),
            (None, None) => {
                let known = own.iter().chain(shared).map(|key| key.name);
                let help = nearest_or_all(name, known.collect::<Vec<_>>().into_iter());
                return Err(KeyError::Unknown { name: name.to_owned(), kind: self.known.kind, help });
            }
        };
        let value = value(key, text)?;
        match list.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => list.push((name.to_owned(), value)),
        }
        Ok(())
    }

    pub(super) fn own_keys(&self) -> &'static [KeySpec] {
        provider::KEYS
            .iter()
            .find(|(kind, _)| *kind == self.known.kind)
            .map_or(&[], |(_, tables)| tables[0].keys)
    }

    /// The whole file.
    pub(super) fn file(&self, state_dir: Option<&Path>) -> String {
        let mut text = format!("{}\n{HEAD}\n", schema::LINE);
        if let Some(dir) = state_dir {
            let line = ("state_dir".to_owned(), Value::String(dir.display().to_string()));
            text += &lines(config::KEYS[0].keys, std::slice::from_ref(&line));
            text += "\n";
        }
        text + &self.tables()
    }

    /// The pool's own tables.
    pub(super) fn tables(&self) -> String {
        let name = &self.name;
        let own = self.own_keys();
        let mut text = format!(
            "# A pool is a set of instances of one provider. Each job gets an instance, or a slot of one.\n[pool.{name}]\n\
             {}\n[pool.{name}.provider]\nkind = \"{}\"\n{}",
            lines(pool_keys().keys, &self.pool),
            self.known.kind,
            lines(own, &self.provider),
        );
        let given = self.given();
        for (key, shown) in self.known.first_pool.comments.iter().filter(|(key, _)| !given.has(key)) {
            text += &find(own, key).map(comment).unwrap_or_default();
            text.extend(["#", key, " = ", shown, "\n"]);
        }
        for host in &self.hosts {
            text.extend(["\n[[pool.", name, ".provider.host]]\n"]);
            for (key, value) in host {
                text.extend([key, " = ", &value.to_string(), "\n"]);
            }
        }
        text
    }
}

fn pool_keys() -> &'static KeyTable {
    let is_pool = |table: &&KeyTable| table.path() == "pool.NAME";
    config::KEYS.iter().find(is_pool).unwrap_or(&config::KEYS[0])
}

fn find(keys: &'static [KeySpec], name: &str) -> Option<&'static KeySpec> {
    keys.iter().find(|key| key.name == name)
}

fn lines(keys: &'static [KeySpec], values: &[(String, Value)]) -> String {
    let line = |(name, value): &(String, Value)| {
        let about = find(keys, name).map(comment).unwrap_or_default();
        format!("{about}{name} = {value}\n")
    };
    values.iter().map(line).collect()
}

/// The meaning of a key, wrapped.
fn comment(key: &KeySpec) -> String {
    let mut text = String::from("#");
    let mut column = 1;
    for word in schema::plain(key.doc).split_whitespace() {
        if column + 1 + word.chars().count() > WIDTH {
            text += "\n#";
            column = 1;
        }
        text += " ";
        text += word;
        column += 1 + word.chars().count();
    }
    text + "\n"
}

/// A value from the command line or an answer.
pub(super) fn value(key: &KeySpec, text: &str) -> Result<Value, KeyError> {
    let text = text.trim();
    let wrong = || KeyError::Value { name: key.name, ty: key.ty };
    let list = || {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.map(|word| Value::String(word.to_owned())).collect::<Vec<Value>>()
    };
    let as_toml = || -> Option<Value> { format!("it = {text}").parse::<Table>().ok()?.remove("it") };
    match key.ty {
        ValueType::Count(_) | ValueType::Range(..) => text.parse().map(Value::Integer).map_err(|_| wrong()),
        ValueType::Factor => text.parse().map(Value::Float).map_err(|_| wrong()),
        ValueType::Flag => text.parse().map(Value::Boolean).map_err(|_| wrong()),
        ValueType::Choice(_) if text.parse::<bool>().is_ok() => Ok(Value::Boolean(text == "true")),
        ValueType::Map | ValueType::Values | ValueType::Table | ValueType::Tables => {
            as_toml().ok_or_else(wrong)
        }
        ValueType::Texts if !list().is_empty() => Ok(Value::Array(list())),
        ValueType::Words(_) | ValueType::TextOrTexts | ValueType::Globs if text.contains(',') => {
            Ok(Value::Array(list()))
        }
        ValueType::Size if size::parse(text).is_none() => Err(wrong()),
        _ if text.is_empty() => Err(wrong()),
        _ => Ok(Value::String(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn draft() -> Draft {
        let mut draft = Draft::new("vm".into(), provider::find("qemu").unwrap());
        draft.put_of_pool("max_instances", Value::Integer(4));
        draft
    }

    #[test]
    fn keys_from_the_command_line_have_the_types_of_their_keys() {
        let mut draft = draft();
        for given in [
            "vcpus=2",
            "memory=2G",
            "allow=10.0.0.5, git.corp:443",
            "idle_time=1h",
            "capacity_per_instance=2",
            "max_use_count=2",
            "network=internet",
            "clean_unbinds=false",
            "network=open",
            "builds_dir=/a=b",
        ] {
            draft.set(given).unwrap();
        }
        let text = draft.file(None);
        for line in [
            "vcpus = 2",
            "allow = [\"10.0.0.5\", \"git.corp:443\"]",
            "network = \"open\"",
            "builds_dir = \"/a=b\"",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(!text.contains("#memory"), "a key that is set is no hint: {text}");
        Config::parse(&text, "greenroom.toml").unwrap();
        for (given, expected) in [
            ("vcpus", "`vcpus` is not KEY=VALUE"),
            ("vcpus=two", "`vcpus` must be a whole number from 1 to 64"),
            ("memory=2", "`memory` must be a size like \"512M\" or \"8G\""),
            (
                "memroy=2G",
                "`memroy` is a key neither of provider `qemu` nor of a pool: did you mean `memory`?",
            ),
            ("image=", "`image` must be a string"),
        ] {
            assert_eq!(draft.set(given).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_file_names_its_schema_and_explains_its_keys_in_narrow_lines() {
        let text = draft().file(Some(Path::new("/srv/state")));
        assert!(text.starts_with("#:schema ./greenroom.schema.json\n"), "{text}");
        assert!(
            text.contains("\n# Limit of instances at any time,") && text.contains("\n#memory = \"1G\"\n"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 128), "{text}");
        let config = Config::parse(&text, "greenroom.toml").unwrap();
        assert_eq!(config.state_dir, Path::new("/srv/state"));
    }

    #[test]
    fn comments_are_keys_of_their_providers() {
        for known in provider::all() {
            let keys = Draft::new("a".into(), known).own_keys();
            for (name, value) in known.first_pool.comments {
                let key = find(keys, name).unwrap_or_else(|| panic!("`{name}` of `{}`", known.kind));
                if let Some(default) = key.default_text() {
                    assert_eq!(*value, default, "`{name}` of `{}`", known.kind);
                }
            }
        }
    }
}
