//! Checks a provider's tables of keys against the code that reads them; for the tests of each provider's settings.

use std::collections::BTreeSet;
use std::fmt::Debug;

use toml::{Table, Value};

use super::keys::KeyError;
use crate::keys::{Key, KeyTable, Takes, Unset};

/// A name that no key has or resembles.
const UNKNOWN: &str = "0000";

/// `least` is a minimal valid provider table, with an entry for each inner table. Panics if the code reads a key that
/// the tables lack, or the reverse, or if they differ in its type, choices or default.
pub(crate) fn hold<T: Debug + PartialEq>(
    tables: &[KeyTable],
    least: &str,
    read: impl Fn(&Table) -> Result<T, KeyError>,
) {
    let least: Table = least.parse().unwrap();
    let plain = read(&least).unwrap_or_else(|wrong| panic!("{wrong}"));
    for table in tables {
        let place = Place::of(table);
        assert_eq!(names_read(&place, &least, &read), names_of(table), "{}", table.header);
        for key in table.keys {
            let what = format!("{} of {}", key.name, table.header);
            let wrong = read(&place.with(&least, key.name, date())).expect_err(&what);
            assert_eq!(wrong.key, place.name(key.name), "{what}: {wrong}");
            assert!(wrong.problem.ends_with(expected(key.takes)), "{what}: {wrong}");
            if let Takes::Word(choices) | Takes::Words(choices) = key.takes {
                let wrong = read(&place.with(&least, key.name, UNKNOWN.into())).expect_err(&what);
                let choices: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
                assert!(
                    wrong.problem.ends_with(&format!("expected {}", choices.join(" or "))),
                    "{what}: {wrong}"
                );
            }
            match key.unset {
                Unset::Required => {
                    let wrong = read(&place.without(&least, key.name)).expect_err(&what);
                    assert!(wrong.key.ends_with(key.name), "{what}: {wrong}");
                }
                Unset::Value(default) => {
                    let default = format!("it = {default}").parse::<Table>().unwrap().remove("it").unwrap();
                    let given = read(&place.with(&least, key.name, default));
                    assert_eq!(given.as_ref(), Ok(&plain), "{what}");
                }
                Unset::Words(_) => {}
            }
        }
    }
}

/// Checks that an example of the file shows each key, commented or not.
pub(crate) fn shown(tables: &[KeyTable], example: &str) {
    let lines = || example.lines().map(|line| line.trim_start_matches(['#', ' ']));
    let opens = |line: &str, name: &str| {
        line.starts_with('[') && line.trim_matches(['[', ']']).rsplit('.').next() == Some(name)
    };
    for key in tables.iter().flat_map(|table| table.keys) {
        let set = format!("{} = ", key.name);
        assert!(lines().any(|line| line.starts_with(&set) || opens(line, key.name)), "{}", key.name);
    }
}

/// The path of a table in the provider's table; for a list, that of its first entry.
struct Place {
    inner: Option<&'static str>,
    is_list: bool,
}

impl Place {
    fn of(table: &KeyTable) -> Self {
        let header = table.header;
        let path = header.trim_matches(['[', ']']).strip_prefix("pool.NAME.provider").expect(header);
        Self { inner: path.strip_prefix('.'), is_list: header.starts_with("[[") }
    }

    /// The name of a key of this table in errors.
    fn name(&self, key: &str) -> String {
        match (self.inner, self.is_list) {
            (None, _) => key.to_owned(),
            (Some(inner), false) => format!("{inner}.{key}"),
            (Some(inner), true) => format!("{inner}.0.{key}"),
        }
    }

    fn with(&self, whole: &Table, key: &str, value: Value) -> Table {
        self.changed(whole, |table| drop(table.insert(key.to_owned(), value)))
    }

    fn without(&self, whole: &Table, key: &str) -> Table {
        self.changed(whole, |table| drop(table.remove(key)))
    }

    fn changed(&self, whole: &Table, change: impl FnOnce(&mut Table)) -> Table {
        let mut whole = whole.clone();
        let table = match self.inner {
            None => Some(&mut whole),
            Some(inner) => {
                let value = whole.get_mut(inner).expect("there is an entry for each table");
                if self.is_list {
                    value.get_mut(0).and_then(Value::as_table_mut)
                } else {
                    value.as_table_mut()
                }
            }
        };
        change(table.expect("it is a table"));
        whole
    }
}

fn names_of(table: &KeyTable) -> BTreeSet<String> {
    let names: BTreeSet<String> = table.keys.iter().map(|key: &Key| key.name.to_owned()).collect();
    assert_eq!(names.len(), table.keys.len(), "a key stands twice in {}", table.header);
    names
}

/// The known names, as the code lists them for an unknown key.
fn names_read<T: Debug>(
    place: &Place,
    least: &Table,
    read: impl Fn(&Table) -> Result<T, KeyError>,
) -> BTreeSet<String> {
    let wrong =
        read(&place.with(least, UNKNOWN, Value::Boolean(true))).expect_err("an unknown key is refused");
    assert_eq!(wrong.key, place.name(UNKNOWN), "{wrong}");
    let (_, known) = wrong.problem.split_once("known keys: ").expect("all keys are listed");
    known.split(", ").map(|name| name.trim_matches('`').to_owned()).collect()
}

/// A value that no key accepts.
fn date() -> Value {
    Value::Datetime("1979-05-27".parse().unwrap())
}

/// The expected value, as `Keys` names it in errors.
fn expected(takes: Takes) -> &'static str {
    match takes {
        Takes::Count(_) => "expected a whole number from 0",
        Takes::Duration(_) => "expected a duration such as \"1m 30s\"",
        Takes::Size => "expected a size such as \"512M\" or \"8G\"",
        Takes::Text | Takes::Word(_) | Takes::HostPath => "expected a string",
        Takes::Flag => "expected `true` or `false`",
        Takes::Words(_) | Takes::TextOrTexts => "expected a string or a list of strings",
        Takes::Map => "expected a table of strings",
        Takes::Table => "expected a table",
        Takes::Tables => "expected a list of tables",
        Takes::Factor | Takes::Texts | Takes::Globs | Takes::GuestPath => {
            panic!("providers read no {takes}")
        }
    }
}
