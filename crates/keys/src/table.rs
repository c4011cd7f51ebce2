//! Reads one table of the configuration, key by key, against its declared keys.
//!
//! Does not use serde, which stops at the first error. Every getter checks the value, reports what is wrong with it, and
//! lets the caller continue.

use std::fmt;
use std::time::Duration;

use toml::Value;

use super::problem::{Place, Problem, Problems, Sink, join};
use super::value::{self, Wrong};
use crate::value_error::Got;
use crate::{Chosen, KeySpec, KeyTable, ValueType, near};

/// A list of strings with their places.
pub type Texts = Vec<(String, Place)>;

/// One table of the file.
#[derive(Clone)]
pub struct Table<'a> {
    kind: &'static KeyTable,
    /// All kinds of tables of its reader.
    tables: &'static [KeyTable],
    /// Dotted: `pool.linux.provider.host.0`; empty at the top.
    path: String,
    /// The table's header as the operator writes it: `[[pool.linux.provider.host]]`; empty at the top.
    header: String,
    values: &'a toml::Table,
    sink: &'a Sink,
}

/// Reads a table of the first kind, and all that is in it. `name` is that of its pool. What `read` returns counts only
/// if there is no problem, so a wrong value may be replaced by anything.
pub fn read<T>(
    tables: &'static [KeyTable],
    name: &str,
    values: &toml::Table,
    read: impl FnOnce(&Table<'_>) -> T,
) -> Result<T, Problems> {
    let sink = Sink::default();
    let kind = &tables[0];
    let path = kind.path().replace("NAME", name);
    let header = if path.is_empty() { String::new() } else { format!("[{path}]") };
    let table = Table { kind, tables, path, header, values, sink: &sink };
    let read = read(&table.refuse_unknown());
    sink.finish().map(|()| read)
}

impl<'a> Table<'a> {
    pub fn values(&self) -> &'a toml::Table {
        self.values
    }

    /// The table's header as the operator writes it: `[pool.linux]`.
    pub fn header(&self) -> &str {
        &self.header
    }

    pub fn place(&self) -> Place {
        Place::value_of(self.path.as_str())
    }

    /// The path of a key.
    pub fn path(&self, name: &str) -> String {
        join(&self.path, name)
    }

    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// A whole number.
    pub fn count<T: TryFrom<i64>>(&self, name: &str) -> Got<T> {
        self.take(name, value::count)
    }

    pub fn factor(&self, name: &str) -> Got<f64> {
        self.take(name, value::factor)
    }

    pub fn duration(&self, name: &str) -> Got<Duration> {
        self.take(name, value::duration)
    }

    /// In bytes.
    pub fn size(&self, name: &str) -> Got<u64> {
        self.take(name, value::size)
    }

    pub fn flag(&self, name: &str) -> Got<bool> {
        self.take(name, value::flag)
    }

    /// A string that is not empty, or a path.
    pub fn text(&self, name: &str) -> Got<String> {
        self.take(name, value::text)
    }

    pub fn word(&self, name: &str) -> Got<&'static str> {
        self.take(name, value::word)
    }

    pub fn words(&self, name: &str) -> Got<Vec<&'static str>> {
        self.take(name, value::words)
    }

    /// Strings, at least one; a single string counts as a list where the key takes it.
    pub fn texts(&self, name: &str) -> Got<Texts> {
        let path = self.path(name);
        let is_list = self.values.get(name).is_some_and(Value::is_array);
        let place = |at: usize| if is_list { join(&path, &at.to_string()) } else { path.clone() };
        let placed = |(at, text)| (text, Place::value_of(place(at)));
        self.take(name, value::texts).map(|texts| texts.into_iter().enumerate().map(placed).collect())
    }

    /// True or false, a word, or patterns.
    pub fn choice(&self, name: &str) -> Got<Chosen> {
        self.take(name, value::choice)
    }

    /// Strings by names of the operator's choosing.
    pub fn map(&self, name: &str) -> Got<Vec<(String, String)>> {
        self.take(name, value::map)
    }

    /// Any values by names of the operator's choosing.
    pub fn any(&self, name: &str) -> Got<&'a toml::Table> {
        self.take_inside(name, value::values)
    }

    /// An inner table.
    pub fn table(&self, name: &str) -> Got<Table<'a>> {
        self.open_table(name).map(Table::refuse_unknown)
    }

    /// An inner table in which other keys belong to another reader.
    pub fn open_table(&self, name: &str) -> Got<Table<'a>> {
        let header = format!("[{}]", join(self.inner_header(), name));
        self.take_inside(name, value::table).map(|values| self.inner(name, self.path(name), header, values))
    }

    /// An inner table whose keys are names of the operator's choosing: [`named_table`](Self::named_table) opens what they name.
    pub fn names(&self, name: &str) -> Got<&'a toml::Table> {
        self.take_inside(name, value::table)
    }

    /// One of the tables behind [`names`](Self::names).
    #[must_use]
    pub fn named_table(&self, name: &str, entry: &str, values: &'a toml::Table) -> Table<'a> {
        let path = join(&self.path(name), entry);
        let header = format!("[{}.{entry}]", join(self.inner_header(), name));
        self.inner(name, path, header, values).refuse_unknown()
    }

    /// A list of inner tables.
    pub fn tables(&self, name: &str) -> Got<Vec<Table<'a>>> {
        let header = format!("[[{}]]", join(self.inner_header(), name));
        let open = |(at, values): (usize, _)| {
            let path = join(&self.path(name), &at.to_string());
            self.inner(name, path, header.clone(), values).refuse_unknown()
        };
        self.take_inside(name, value::tables).map(|tables| tables.into_iter().enumerate().map(open).collect())
    }

    /// A value as another type. The sentence of an error follows the key, as those of [`ValueError`](crate::value_error::ValueError).
    pub fn parsed<T, U, E: std::error::Error>(
        &self,
        name: &str,
        got: Got<T>,
        parse: impl FnOnce(T) -> Result<U, E>,
    ) -> Got<U> {
        match got.map(parse) {
            Got::Good(Ok(parsed), place) => Got::Good(parsed, place),
            Got::Good(Err(why), place) => {
                self.report(Problem::new(format!("`{name}` {why}")).at(place, "here"));
                Got::Bad(None)
            }
            Got::Absent(default) => Got::Absent(default.and_then(Result::ok)),
            Got::Bad(default) => Got::Bad(default.and_then(Result::ok)),
        }
    }

    /// Reports each string of a list that `check` refuses, as [`Table::parsed`] does.
    pub fn check_each<E: std::error::Error>(
        &self,
        name: &str,
        texts: &Texts,
        check: impl Fn(&str) -> Result<(), E>,
    ) {
        for (text, place) in texts {
            self.parsed(name, Got::Good(text.as_str(), place.clone()), &check);
        }
    }

    /// A required value. If it is missing, reports that, with what to do.
    pub fn required<T>(&self, name: &str, got: Got<T>, help: impl Into<String>) -> Got<T> {
        if !got.is_absent() {
            return got;
        }
        let title = format!("`{name}` is missing in `{}`", self.header);
        self.report(Problem::new(title).at(self.place(), "in this table").help(help));
        Got::Bad(None)
    }

    /// Reports a mistake that is more than a wrong value. `why` ends the sentence that the key begins.
    pub fn refuse(&self, name: &str, why: impl fmt::Display) {
        let problem = Problem::new(format!("`{name}` {why}"));
        let (place, label) = match self.values.get(name) {
            Some(_) => (Place::value_of(self.path(name)), "here"),
            None => (self.place(), "in this table"),
        };
        self.report(problem.at(place, label));
    }

    pub fn report(&self, problem: Problem) {
        self.sink.push(problem);
    }

    /// The common part of the getters of values, with the declared default.
    fn take<T>(&self, name: &str, read: impl Fn(&Value, ValueType) -> Result<T, Wrong>) -> Got<T> {
        let spec = self.key(name);
        let default = || {
            let read = read(&spec.default_value()?, spec.ty);
            Some(read.expect("a declared default is a value of its key; tests read all of them"))
        };
        match self.given(spec, &read) {
            Got::Absent(_) => Got::Absent(default()),
            Got::Bad(_) => Got::Bad(default()),
            good @ Got::Good(..) => good,
        }
    }

    /// The common part of the getters of what may borrow from the table. Such keys have no declared default.
    fn take_inside<T>(
        &self,
        name: &str,
        read: impl FnOnce(&'a Value, ValueType) -> Result<T, Wrong>,
    ) -> Got<T> {
        self.given(self.key(name), read)
    }

    /// The given value of a key, without its default.
    fn given<T>(
        &self,
        spec: &KeySpec,
        read: impl FnOnce(&'a Value, ValueType) -> Result<T, Wrong>,
    ) -> Got<T> {
        let Some(value) = self.values.get(spec.name) else { return Got::Absent(None) };
        match read(value, spec.ty) {
            Ok(read) => Got::Good(read, Place::value_of(self.path(spec.name))),
            Err(wrong) => {
                self.report(self.wrong(spec, wrong));
                Got::Bad(None)
            }
        }
    }

    fn key(&self, name: &str) -> &'static KeySpec {
        let key = self.kind.keys.iter().find(|key| key.name == name);
        key.expect("getters are called with declared keys; tests read all of them")
    }

    fn wrong(&self, key: &KeySpec, wrong: Wrong) -> Problem {
        let Wrong { entry, label, help } = wrong;
        let inside = if self.header.is_empty() { String::new() } else { format!(" in `{}`", self.header) };
        let path = self.path(key.name);
        let place = if entry.is_empty() { path } else { join(&path, &entry) };
        let problem = Problem::new(format!("`{}`{inside} must be {}", key.name, key.ty));
        let opened = || Some(format!("write it as `{}`", opened_by(self.tables, self.kind, key)?.header));
        Problem { help: help.or_else(opened), ..problem.at(Place::value_of(place), label) }
    }

    fn refuse_unknown(self) -> Self {
        let strangers = self.values.keys().filter(|name| self.kind.keys.iter().all(|key| key.name != *name));
        for name in strangers {
            let table = if self.header.is_empty() {
                "the top level".to_owned()
            } else {
                format!("`{}`", self.header)
            };
            let problem = Problem::new(format!("`{name}` is not a key of {table}"));
            let problem = problem.at(Place::name_of(self.path(name)), "unknown key");
            self.report(problem.help(near::help_for_unknown(self.tables, self.kind, name)));
        }
        self
    }

    /// The header without its brackets.
    fn inner_header(&self) -> &str {
        self.header.trim_matches(['[', ']'])
    }

    fn inner(&self, name: &str, path: String, header: String, values: &'a toml::Table) -> Self {
        let kind = opened_by(self.tables, self.kind, self.key(name));
        let kind = kind.expect("each key that is a table has its table of keys; a test opens them all");
        Self { kind, path, header, values, ..self.clone() }
    }
}

/// The kind of table behind a key, if it is one.
pub fn opened_by(tables: &'static [KeyTable], kind: &KeyTable, key: &KeySpec) -> Option<&'static KeyTable> {
    let path = join(kind.path(), key.name);
    let opens = |table: &&KeyTable| table.path().strip_suffix(".NAME").unwrap_or(table.path()) == path;
    tables.iter().find(opens)
}

impl fmt::Debug for Table<'_> {
    /// Shows the table without its values, which may be passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("header", &self.header).finish_non_exhaustive()
    }
}
