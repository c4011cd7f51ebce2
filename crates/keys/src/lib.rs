//! Configuration keys as data: for the reader of tables and for docs/configuration.md.
//!
//! `config` and each provider have tables of their keys in this form, and one reader for them: [`table`]. Tests show that
//! every declared key is read, and has its true default.

pub mod duration;
pub mod near;
pub mod page;
pub mod problem;
pub mod schema;
pub mod size;
pub mod table;
mod value;
pub mod value_error;

use std::fmt;

/// A kind of table in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTable {
    /// The table's header: `[timing]`.
    pub header: &'static str,
    /// The table's purpose, as Markdown.
    pub about: &'static str,
    /// The table's keys, in the order of the page.
    pub keys: &'static [KeySpec],
}

impl KeyTable {
    /// The table's dotted path: `pool.NAME.provider`; empty for the top of the file.
    pub fn path(&self) -> &'static str {
        if self.header.starts_with('[') { self.header.trim_matches(['[', ']']) } else { "" }
    }
}

/// The declaration of a key. The [reader](table::Table), the [reference page](page) and the [schema] follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySpec {
    pub name: &'static str,
    pub ty: ValueType,
    pub default: DefaultValue,
    pub takes_effect: TakesEffect,
    /// The unit of a number; empty if it has none.
    pub unit: &'static str,
    /// The meaning of the key: a sentence, as Markdown.
    pub doc: &'static str,
    /// Interactions with other keys, GitLab Runner's keys, the provider. Sentences; may be empty.
    pub notes: &'static str,
}

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// A whole number, this or more, and at most a million.
    Count(u32),
    /// A whole number from this one to that one.
    Range(u32, u32),
    /// A number, 0 or more.
    Factor,
    /// A duration of at least so many milliseconds.
    Duration(u64),
    /// A size in bytes, greater than 0.
    Size,
    Text,
    Flag,
    /// One of these values.
    Word(&'static [&'static str]),
    /// One of these values, or a list of them.
    Words(&'static [&'static str]),
    /// A list of strings, not empty.
    Texts,
    /// A string or a list of strings, none of them empty.
    TextOrTexts,
    /// A pattern or a list of patterns.
    Globs,
    /// True or false, one of these values, or a list of patterns.
    Choice(&'static [&'static str]),
    /// An absolute path on the runner host.
    HostPath,
    /// An absolute path on the instance.
    GuestPath,
    /// Strings under names of the operator's choosing.
    Map,
    /// Any values under names of the operator's choosing.
    Values,
    /// A table with keys of its own.
    Table,
    /// A list of such tables.
    Tables,
}

/// The value of a key that takes a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    Flag(bool),
    Word(&'static str),
    Globs(Vec<String>),
}

/// The default of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultValue {
    /// No default: the key is required.
    Required,
    /// A value, as written in the file. [`Got::or_declared`](value_error::Got::or_declared) reads it.
    Value(&'static str),
    /// A description, as Markdown: the default depends on something else than the table.
    Described(&'static str),
}

/// The moment at which a change of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakesEffect {
    /// With the keeper's next pass, for instances and waiting jobs.
    Pass,
    /// For instances that are launched after the keeper's next pass.
    Launch,
    /// For jobs that begin after the keeper's next pass.
    Request,
    /// For jobs that begin afterwards: their calls read the file.
    Job,
    /// For processes that start afterwards.
    Start,
    /// The change takes effect as set for the keys in the table.
    Within,
}

/// A key without a unit and notes; [`doc`](method@KeySpec::doc) has to follow.
pub const fn key(
    name: &'static str,
    ty: ValueType,
    default: DefaultValue,
    takes_effect: TakesEffect,
) -> KeySpec {
    KeySpec { name, ty, default, takes_effect, unit: "", doc: "", notes: "" }
}

impl KeySpec {
    #[must_use]
    pub const fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    #[must_use]
    pub const fn doc(self, doc: &'static str) -> Self {
        Self { doc, ..self }
    }

    #[must_use]
    pub const fn notes(self, notes: &'static str) -> Self {
        Self { notes, ..self }
    }

    /// Returns this key for another table, with another default.
    #[must_use]
    pub const fn with_default(self, default: DefaultValue) -> Self {
        Self { default, ..self }
    }

    /// The default as written in the file; `None` if the key is required or its default is only described.
    pub const fn default_text(&self) -> Option<&'static str> {
        match self.default {
            DefaultValue::Value(value) => Some(value),
            DefaultValue::Required | DefaultValue::Described(_) => None,
        }
    }

    /// The default as a value; `None` as for [`default_text`](Self::default_text).
    pub fn default_value(&self) -> Option<toml::Value> {
        self.default_text().map(value::written)
    }

    /// True if the value is a table or a list of tables.
    pub const fn opens_table(&self) -> bool {
        matches!(self.ty, ValueType::Table | ValueType::Tables)
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |words: &[&str]| {
            let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            quoted.join(", ")
        };
        match self {
            Self::Count(least) | Self::Range(least, u32::MAX) => {
                write!(f, "a whole number, {least} or more")
            }
            Self::Range(least, most) => write!(f, "a whole number from {least} to {most}"),
            Self::Factor => f.write_str("a number, 0 or more"),
            Self::Duration(_) => f.write_str("a duration like \"30s\", \"20m\" or \"1h 30m\""),
            Self::Size => f.write_str("a size like \"512M\" or \"8G\""),
            Self::Text => f.write_str("a string"),
            Self::Flag => f.write_str("true or false"),
            Self::Word(words) => write!(f, "one of {}", quoted(words)),
            Self::Words(words) => write!(f, "one of {}, or a list of them", quoted(words)),
            Self::Texts => f.write_str("a list of strings"),
            Self::TextOrTexts => f.write_str("a string or a list of strings"),
            Self::Globs => f.write_str("a pattern or a list of patterns"),
            Self::Choice(words) => write!(f, "true, false, {} or a list of patterns", quoted(words)),
            Self::HostPath => f.write_str("an absolute path"),
            Self::GuestPath => f.write_str("an absolute path on the instance"),
            Self::Map => f.write_str("a table of strings"),
            Self::Values | Self::Table => f.write_str("a table"),
            Self::Tables => f.write_str("a list of tables"),
        }
    }
}
