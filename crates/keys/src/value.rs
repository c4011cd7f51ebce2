//! Checks a value against what its key takes.

use std::time::Duration;

use toml::Value;

use super::near::nearest;
use super::{Chosen, ValueType, duration, size};

/// Any larger number is a typo, unless its key says otherwise.
pub(super) const MOST: u32 = 1_000_000;

/// A fault of a value, without what its key takes: that is said elsewhere.
#[derive(Debug)]
pub(super) struct Wrong {
    /// The entry that is wrong in a list or a table; empty: the whole value.
    pub(super) entry: String,
    pub(super) label: String,
    pub(super) help: Option<String>,
}

type Checked<T> = Result<T, Wrong>;

impl Wrong {
    fn of(label: impl Into<String>) -> Self {
        Self { entry: String::new(), label: label.into(), help: None }
    }

    /// A value of another type.
    pub(super) fn kind(value: &Value) -> Self {
        let what = match value {
            Value::String(_) => "a string",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a floating-point number",
            Value::Boolean(_) => "true or false",
            Value::Datetime(_) => "a date or time",
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
        };
        Self::of(format!("found {what}"))
    }

    fn entry(self, entry: &str) -> Self {
        Self { entry: entry.to_owned(), ..self }
    }
}

/// A value of a key, from its text in the file: that of a declared default. Plain values, the most, need no parser.
pub(super) fn written(text: &str) -> Value {
    let plain = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    match (plain.filter(|text| !text.contains(['\\', '"'])), text.parse(), text.parse()) {
        (Some(plain), _, _) => Value::String(plain.to_owned()),
        (_, Ok(flag), _) => Value::Boolean(flag),
        (_, _, Ok(number)) => Value::Integer(number),
        _ => {
            let table = format!("it = {text}").parse::<toml::Table>();
            table
                .ok()
                .and_then(|mut table| table.remove("it"))
                .expect("a declared default is written as in the file")
        }
    }
}

/// A key whose getter reads another type: a mistake in the program, which the tests of all keys find.
fn mismatch(ty: ValueType) -> ! {
    unreachable!("a key that takes {ty} is read as something else")
}

pub(super) fn count<T: TryFrom<i64>>(value: &Value, ty: ValueType) -> Checked<T> {
    let (least, most) = match ty {
        ValueType::Count(least) => (least, MOST),
        ValueType::Range(least, most) => (least, most),
        _ => mismatch(ty),
    };
    let Value::Integer(number) = value else { return Err(Wrong::kind(value)) };
    if *number > i64::from(most) {
        return Err(Wrong::of(format!("more than {most}")));
    }
    let count = T::try_from(*number).ok().filter(|_| *number >= i64::from(least));
    count.ok_or_else(|| Wrong::of(format!("found {number}")))
}

pub(super) fn factor(value: &Value, ty: ValueType) -> Checked<f64> {
    let ValueType::Factor = ty else { mismatch(ty) };
    let whole = || value.as_integer()?.to_string().parse().ok();
    match value.as_float().or_else(whole) {
        Some(number) if (0.0..=f64::from(MOST)).contains(&number) => Ok(number),
        Some(number) if number > 0.0 => Err(Wrong::of(format!("more than {MOST}"))),
        Some(_) => Err(Wrong::of(format!("found {value}"))),
        None => Err(Wrong::kind(value)),
    }
}

pub(super) fn duration(value: &Value, ty: ValueType) -> Checked<Duration> {
    let ValueType::Duration(least) = ty else { mismatch(ty) };
    match value {
        Value::String(text) => match duration::parse(text) {
            Ok(duration) if duration >= Duration::from_millis(least) => Ok(duration),
            Ok(_) => Err(Wrong::of(format!("less than the minimum, {least} ms"))),
            Err(problem) => Err(Wrong::of(problem.to_string())),
        },
        // Nothing needs no unit.
        Value::Integer(0) if least == 0 => Ok(Duration::ZERO),
        // The largest number stands for all that do not fit (`config::origin`).
        Value::Integer(number) if (0..i64::MAX).contains(number) => {
            Err(Wrong::of(duration::no_unit(&number.to_string())))
        }
        _ => Err(Wrong::kind(value)),
    }
}

/// In bytes.
pub(super) fn size(value: &Value, ty: ValueType) -> Checked<u64> {
    let ValueType::Size = ty else { mismatch(ty) };
    match value {
        Value::String(text) => match size::parse(text) {
            Some(0) => Err(Wrong::of("not more than nothing")),
            Some(bytes) => Ok(bytes),
            None => Err(Wrong::of("not a whole number with K, M, G or T")),
        },
        Value::Integer(number) if (1..i64::MAX).contains(number) => {
            Err(Wrong::of(format!("a size needs its unit: \"{number}M\" or \"{number}G\"")))
        }
        _ => Err(Wrong::kind(value)),
    }
}

pub(super) fn flag(value: &Value, ty: ValueType) -> Checked<bool> {
    let ValueType::Flag = ty else { mismatch(ty) };
    value.as_bool().ok_or_else(|| Wrong::kind(value))
}

/// A string that is not empty, or a path.
pub(super) fn text(value: &Value, ty: ValueType) -> Checked<String> {
    let check: fn(&str) -> Result<&str, &str> = match ty {
        ValueType::Text => |text| if text.trim().is_empty() { Err("empty") } else { Ok(text) },
        ValueType::HostPath => |text| {
            let wrong = "a relative path: GitLab Runner starts each call in a new directory";
            text.starts_with('/').then_some(text).ok_or(wrong)
        },
        ValueType::GuestPath => |text| {
            let path = is_absolute_in_guest(text).then_some(text).ok_or("not an absolute path")?;
            Ok(path.trim_end_matches(['/', '\\']))
        },
        _ => mismatch(ty),
    };
    let text = value.as_str().ok_or_else(|| Wrong::kind(value))?;
    check(text).map(str::to_owned).map_err(Wrong::of)
}

/// The guest may be Windows, whatever the runner host is.
fn is_absolute_in_guest(path: &str) -> bool {
    let mut chars = path.chars();
    match (chars.next(), chars.next(), chars.next()) {
        (Some('/'), Some(_), _) => true,
        (Some(drive), Some(':'), Some('/' | '\\')) => drive.is_ascii_alphabetic(),
        _ => false,
    }
}

pub(super) fn word(value: &Value, ty: ValueType) -> Checked<&'static str> {
    let ValueType::Word(words) = ty else { mismatch(ty) };
    one_of(words, value)
}

fn one_of(words: &[&'static str], value: &Value) -> Checked<&'static str> {
    let text = value.as_str().ok_or_else(|| Wrong::kind(value))?;
    words.iter().find(|word| **word == text).copied().ok_or_else(|| {
        let near = nearest(text, words.iter().copied());
        Wrong {
            help: near.map(|word| format!("did you mean \"{word}\"?")),
            ..Wrong::of(format!("found {text:?}"))
        }
    })
}

pub(super) fn words(value: &Value, ty: ValueType) -> Checked<Vec<&'static str>> {
    let ValueType::Words(words) = ty else { mismatch(ty) };
    match value {
        Value::Array(list) => entries(list, |one| one_of(words, one)),
        _ => Ok(vec![one_of(words, value)?]),
    }
}

/// Strings, at least one. Patterns and texts in a list may be empty where their keys give that a meaning.
pub(super) fn texts(value: &Value, ty: ValueType) -> Checked<Vec<String>> {
    let (may_be_one, may_be_empty) = match ty {
        ValueType::Texts => (false, true),
        ValueType::Globs => (true, true),
        ValueType::TextOrTexts => (true, false),
        _ => mismatch(ty),
    };
    let text = |one: &Value| match one.as_str() {
        Some(text) if text.trim().is_empty() && !may_be_empty => Err(Wrong::of("empty")),
        Some(text) => Ok(text.to_owned()),
        None => Err(Wrong::kind(one)),
    };
    match value {
        Value::Array(list) => entries(list, text),
        Value::String(_) if may_be_one => Ok(vec![text(value)?]),
        _ => Err(Wrong::kind(value)),
    }
}

pub(super) fn choice(value: &Value, ty: ValueType) -> Checked<Chosen> {
    let ValueType::Choice(known) = ty else { mismatch(ty) };
    match value {
        Value::Boolean(flag) => Ok(Chosen::Flag(*flag)),
        Value::Array(_) => texts(value, ValueType::Globs).map(Chosen::Globs),
        _ => one_of(known, value).map(Chosen::Word),
    }
}

fn entries<T>(list: &[Value], read: impl Fn(&Value) -> Checked<T>) -> Checked<Vec<T>> {
    if list.is_empty() {
        return Err(Wrong::of("the list is empty"));
    }
    list.iter().enumerate().map(|(at, one)| read(one).map_err(|wrong| wrong.entry(&at.to_string()))).collect()
}

/// Strings by names of the operator's choosing.
pub(super) fn map(value: &Value, ty: ValueType) -> Checked<Vec<(String, String)>> {
    let ValueType::Map = ty else { mismatch(ty) };
    let table = value.as_table().ok_or_else(|| Wrong::kind(value))?;
    let entry = |(name, value): (&String, &Value)| match value {
        Value::String(text) => Ok((name.clone(), text.clone())),
        Value::Table(_) => {
            let help = Some("a name with a dot needs quotes".to_owned());
            Err(Wrong { help, ..Wrong::kind(value).entry(name) })
        }
        _ => Err(Wrong::kind(value).entry(name)),
    };
    table.iter().map(entry).collect()
}

/// Any values by names of the operator's choosing.
pub(super) fn values(value: &Value, ty: ValueType) -> Checked<&toml::Table> {
    let ValueType::Values = ty else { mismatch(ty) };
    value.as_table().ok_or_else(|| Wrong::kind(value))
}

pub(super) fn table(value: &Value, ty: ValueType) -> Checked<&toml::Table> {
    let ValueType::Table = ty else { mismatch(ty) };
    value.as_table().ok_or_else(|| Wrong::kind(value))
}

pub(super) fn tables(value: &Value, ty: ValueType) -> Checked<Vec<&toml::Table>> {
    let ValueType::Tables = ty else { mismatch(ty) };
    let list = value.as_array().ok_or_else(|| Wrong::kind(value))?;
    let table =
        |(at, one): (usize, _)| table(one, ValueType::Table).map_err(|wrong| wrong.entry(&at.to_string()));
    list.iter().enumerate().map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_means_absolute_for_the_guest() {
        for (path, absolute) in [
            ("/builds", true),
            ("C:\\builds", true),
            ("c:/builds", true),
            ("C:builds", false),
            ("builds", false),
            ("./builds", false),
            ("~/builds", false),
            ("/", false),
            ("", false),
        ] {
            assert_eq!(is_absolute_in_guest(path), absolute, "{path}");
        }
    }

    #[test]
    fn a_default_is_read_as_the_file_is() {
        for text in
            ["\"a b\"", "\"\"", "\"\\u0041\\\"\"", "true", "false", "0", "-1", "0.5", "[\"a\", 1]", "1_000"]
        {
            let parsed = format!("it = {text}").parse::<toml::Table>().unwrap().remove("it").unwrap();
            assert_eq!(written(text), parsed, "{text}");
        }
    }

    /// What a value becomes, or its label.
    fn read<T: std::fmt::Debug>(
        text: &str,
        takes: ValueType,
        read: fn(&Value, ValueType) -> Checked<T>,
    ) -> String {
        let value = format!("it = {text}").parse::<toml::Table>().unwrap().remove("it").unwrap();
        let entry =
            |wrong: Wrong| format!("{}: {}", wrong.entry, wrong.label).trim_start_matches(": ").to_owned();
        read(&value, takes).map_or_else(entry, |read| format!("{read:?}"))
    }

    #[test]
    fn numbers_end_at_their_limits() {
        for (text, takes, expected) in [
            ("0", ValueType::Count(0), "0"),
            ("0", ValueType::Count(1), "found 0"),
            ("-1", ValueType::Count(0), "found -1"),
            ("1000001", ValueType::Count(0), "more than 1000000"),
            ("9223372036854775807", ValueType::Count(0), "more than 1000000"),
            ("4294967295", ValueType::Range(0, u32::MAX), "4294967295"),
            ("65535", ValueType::Range(1, 65535), "65535"),
            ("65536", ValueType::Range(1, 65535), "more than 65535"),
            ("\"1\"", ValueType::Range(1, 65535), "found a string"),
            ("1.0", ValueType::Count(0), "found a floating-point number"),
        ] {
            assert_eq!(read(text, takes, count::<u32>), expected, "{text}");
        }
        for (text, expected) in [
            ("0.5", "0.5"),
            ("2", "2.0"),
            ("1000000.5", "more than 1000000"),
            ("inf", "more than 1000000"),
            ("9223372036854775807", "more than 1000000"),
            ("-0.5", "found -0.5"),
            ("-1", "found -1"),
            ("nan", "found nan"),
            ("\"2\"", "found a string"),
        ] {
            assert_eq!(read(text, ValueType::Factor, factor), expected, "{text}");
        }
    }

    #[test]
    fn durations_and_sizes_have_units_and_minimums() {
        for (text, expected) in [
            ("\"1m 30s\"", "90s"),
            ("\"10ms\"", "10ms"),
            ("\"9ms\"", "less than the minimum, 10 ms"),
            ("\"-5s\"", "a duration cannot be negative"),
            ("5", "a number needs its unit: \"5s\", \"5m\" or \"5h\""),
            ("-5", "found a whole number"),
            ("9223372036854775807", "found a whole number"),
            ("true", "found true or false"),
        ] {
            assert_eq!(read(text, ValueType::Duration(10), duration), expected, "{text}");
        }
        assert_eq!(read("0", ValueType::Duration(0), duration), "0ns");
        for (text, expected) in [
            ("\"512M\"", "536870912"),
            ("\"0G\"", "not more than nothing"),
            ("\"2GB\"", "not a whole number with K, M, G or T"),
            ("\"\"", "not a whole number with K, M, G or T"),
            ("2048", "a size needs its unit: \"2048M\" or \"2048G\""),
            ("0", "found a whole number"),
        ] {
            assert_eq!(read(text, ValueType::Size, size), expected, "{text}");
        }
    }

    #[test]
    fn the_wrong_entry_of_a_list_is_named() {
        for (text, takes, expected) in [
            ("[]", ValueType::TextOrTexts, "the list is empty"),
            ("\" \"", ValueType::TextOrTexts, "empty"),
            ("[\"a\", \" \"]", ValueType::TextOrTexts, "1: empty"),
            ("[1]", ValueType::TextOrTexts, "0: found a whole number"),
            ("\"a\"", ValueType::TextOrTexts, "[\"a\"]"),
            ("\"a\"", ValueType::Texts, "found a string"),
            ("[\"\"]", ValueType::Texts, "[\"\"]"),
            ("\"\"", ValueType::Globs, "[\"\"]"),
            ("[]", ValueType::Globs, "the list is empty"),
        ] {
            assert_eq!(read(text, takes, texts), expected, "{text}");
        }
        let market = ValueType::Words(&["spot", "on-demand"]);
        assert_eq!(read("[\"on-demand\", \"spot\"]", market, words), "[\"on-demand\", \"spot\"]");
        assert_eq!(read("[\"spot\", \"spto\"]", market, words), "1: found \"spto\"");
        assert_eq!(read("[]", market, words), "the list is empty");
        let choice_of = |text| read(text, ValueType::Choice(&["single-use"]), choice);
        assert_eq!(choice_of("true"), "Flag(true)");
        assert_eq!(choice_of("\"single-use\""), "Word(\"single-use\")");
        assert_eq!(choice_of("\"singel-use\""), "found \"singel-use\"");
        assert_eq!(choice_of("[\"docker:*\"]"), "Globs([\"docker:*\"])");
        assert_eq!(choice_of("[\"docker:*\", 1]"), "1: found a whole number");
        assert_eq!(choice_of("[]"), "the list is empty");
        assert_eq!(choice_of("1"), "found a whole number");
        assert_eq!(read("{ a = \"\", b = 1 }", ValueType::Map, map), "b: found a whole number");
        assert_eq!(read("[{}, 1]", ValueType::Tables, tables_count), "1: found a whole number");
        assert_eq!(read("[]", ValueType::Tables, tables_count), "0");
    }

    fn tables_count(value: &Value, takes: ValueType) -> Checked<usize> {
        tables(value, takes).map(|tables| tables.len())
    }
}
