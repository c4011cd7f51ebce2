//! Checks a provider's tables of keys against the code that reads them; for the tests of each provider's settings.
#![expect(clippy::unwrap_used, reason = "tables of tests parse")]

use std::fmt::Debug;

use greenroom_keys::problem::{Place, Problem, Problems, join};
use greenroom_keys::table::opened_by;
use greenroom_keys::{DefaultValue, KeySpec, KeyTable, ValueType};
use toml::{Table, Value};

/// A name that no key has or resembles.
const UNKNOWN: &str = "0000";

/// `least` is a minimal valid provider table, with an entry for each inner table. Panics if the code does not read a
/// declared key, does not check its type and limits, accepts another key, or has other choices or another default.
pub fn hold<T: Debug + PartialEq>(
    tables: &'static [KeyTable],
    least: &str,
    read: impl Fn(&Table) -> Result<T, Problems>,
) {
    let least: Table = least.parse().unwrap();
    let plain = read(&least).unwrap_or_else(|wrong| panic!("{wrong}"));
    for table in tables {
        let at = Position::of(table);
        let unknown = at.with(&least, UNKNOWN, Value::Boolean(true));
        let problem = mistake(&read, &unknown, &Place::name_of(at.path(UNKNOWN)));
        assert!(problem.title.ends_with(&format!("is not a key of `{}`", at.header)), "{problem}");
        for (index, key) in table.keys.iter().enumerate() {
            let what = format!("`{}` of {}", key.name, table.header);
            assert!(table.keys[..index].iter().all(|other| other.name != key.name), "{what} stands twice");
            assert_eq!(opened_by(tables, table, key).is_some(), key.opens_table(), "{what}");
            for value in refused(key.ty) {
                let place = Place::value_of(at.path(key.name));
                let problem = mistake(&read, &at.with(&least, key.name, value), &place);
                let title = format!("`{}` in `{}` must be {}", key.name, at.header, key.ty);
                assert_eq!(problem.title, title, "{what}");
            }
            match key.default {
                DefaultValue::Required => {
                    let wrong = read(&at.without(&least, key.name)).expect_err(&what).to_string();
                    assert!(wrong.contains(&format!("`{}` is missing in `", key.name)), "{what}: {wrong}");
                }
                DefaultValue::Value(default) => {
                    // The declared default is the real one if setting it changes nothing.
                    let given = read(&at.with(&least, key.name, value(default)));
                    assert_eq!(given.as_ref(), Ok(&plain), "{what}");
                }
                DefaultValue::Described(_) => {}
            }
        }
    }
}

/// The mistake at a place, or in an entry of the list there.
fn mistake<T: Debug>(read: impl Fn(&Table) -> Result<T, Problems>, table: &Table, at: &Place) -> Problem {
    let wrong = read(table).expect_err(&at.path);
    let is_at = |place: &Place| {
        let entry = place.path.strip_prefix(&at.path);
        place.part == at.part && entry.is_some_and(|entry| entry.is_empty() || entry.starts_with('.'))
    };
    let there = wrong.0.iter().find(|problem| problem.marks.first().is_some_and(|(place, _)| is_at(place)));
    there.unwrap_or_else(|| panic!("no mistake at {}: {wrong}", at.path)).clone()
}

/// Values that a key refuses: one of another type, and those beyond its limits.
fn refused(takes: ValueType) -> Vec<Value> {
    let beyond = match takes {
        ValueType::Count(least) => vec![(i64::from(least) - 1).into(), value("1000001")],
        ValueType::Range(least, most) => vec![(i64::from(least) - 1).into(), (i64::from(most) + 1).into()],
        ValueType::Factor => vec![value("-1"), value("1000000.5")],
        ValueType::Duration(0) => vec![value("\"soon\""), value("5"), value("\"-1s\"")],
        ValueType::Duration(least) => vec![format!("{}ms", least - 1).into()],
        ValueType::Size => vec![value("\"0G\""), value("\"8\""), value("8")],
        ValueType::Text => vec![value("\" \"")],
        ValueType::Word(_) => vec![value("\"0000\"")],
        ValueType::Choice(_) => vec![value("\"0000\""), value("1"), value("[]")],
        ValueType::Words(_) => vec![value("\"0000\""), value("[]"), value("[\"0000\"]")],
        ValueType::Texts | ValueType::Globs => vec![value("[]"), value("[1]")],
        ValueType::TextOrTexts => vec![value("[]"), value("[1]"), value("\"\""), value("[\"a\", \" \"]")],
        ValueType::HostPath | ValueType::GuestPath => vec![value("\"a/b\"")],
        ValueType::Map => vec![value("{ a = 1 }")],
        ValueType::Flag | ValueType::Values | ValueType::Table => vec![value("\"true\"")],
        ValueType::Tables => vec![value("{}"), value("[1]")],
    };
    [value("1979-05-27")].into_iter().chain(beyond).collect()
}

fn value(text: &str) -> Value {
    format!("it = {text}").parse::<Table>().unwrap().remove("it").unwrap()
}

/// Checks that an example of the file shows each key, commented or not.
pub fn shown(tables: &[KeyTable], example: &str) {
    let lines = || example.lines().map(|line| line.trim_start_matches(['#', ' ']));
    let opens = |line: &str, name: &str| {
        line.starts_with('[') && line.trim_matches(['[', ']']).rsplit('.').next() == Some(name)
    };
    let keys: Vec<&KeySpec> = tables.iter().flat_map(|table| table.keys).collect();
    for key in keys {
        let set = format!("{} = ", key.name);
        assert!(lines().any(|line| line.starts_with(&set) || opens(line, key.name)), "{}", key.name);
    }
}

/// The position of a table of keys in the table of pool `linux`; for a list, its first entry.
struct Position {
    inner: Option<&'static str>,
    is_list: bool,
    header: String,
}

impl Position {
    fn of(table: &KeyTable) -> Self {
        let path = table.path().strip_prefix("pool.NAME.provider").expect(table.header);
        let header = table.header.replace("NAME", "linux");
        Self { inner: path.strip_prefix('.'), is_list: table.header.starts_with("[["), header }
    }

    /// The path of a key of this table.
    fn path(&self, key: &str) -> String {
        let inner = self.inner.map_or(String::new(), |inner| format!(".{inner}"));
        let entry = if self.is_list { ".0" } else { "" };
        join(&format!("pool.linux.provider{inner}{entry}"), key)
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
