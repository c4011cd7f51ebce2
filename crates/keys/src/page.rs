//! docs/configuration.md, generated from the tables of keys.

use super::{DefaultValue, KeySpec, KeyTable, TakesEffect, ValueType};

/// The whole page: the tables of the file, then those of the providers by their kinds.
pub fn render(file: &[KeyTable], providers: &[(&str, &[KeyTable])]) -> String {
    let mut page = vec![include_str!("page.md").trim_end().to_owned()];
    page.push(contents(file, providers));
    page.extend(file.iter().map(|table| section(&format!("## {}", title(table.header)), table)));
    for (kind, tables) in providers {
        for (at, table) in tables.iter().enumerate() {
            let heading = match at {
                0 => format!("## Provider `{kind}`"),
                _ => format!("### `{}` of `{kind}`", table.header),
            };
            page.push(section(&heading, table));
        }
    }
    page.join("\n\n") + "\n"
}

/// A header from the file is formatted as code; a description is not.
fn title(header: &str) -> String {
    if header.starts_with('[') { format!("`{header}`") } else { capital(header) }
}

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

fn contents(file: &[KeyTable], providers: &[(&str, &[KeyTable])]) -> String {
    let line = |text: String| format!("- [{text}](#{})", anchor(&text));
    let tables = file.iter().map(|table| line(title(table.header)));
    let providers = providers.iter().map(|(kind, _)| line(format!("Provider `{kind}`")));
    tables.chain(providers).collect::<Vec<String>>().join("\n")
}

/// The anchor that forges give to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn section(heading: &str, table: &KeyTable) -> String {
    let head = "| key | type | default | takes effect | meaning |\n| --- | --- | --- | --- | --- |";
    let rows: Vec<String> = table.keys.iter().map(row).collect();
    format!("{heading}\n\n{}\n\n{head}\n{}", table.about, rows.join("\n"))
}

fn row(key: &KeySpec) -> String {
    let meaning = [key.doc, key.notes].join(" ").trim_end().to_owned();
    let cells = [
        format!("`{}`", key.name),
        value_type(key),
        default(key.default),
        takes_effect(key.takes_effect).to_owned(),
        meaning,
    ];
    format!("| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

fn value_type(key: &KeySpec) -> String {
    let kind = match key.ty {
        ValueType::Count(least) | ValueType::Range(least, u32::MAX) => format!("integer ≥ {least}"),
        ValueType::Range(least, most) => format!("integer, {least} to {most}"),
        ValueType::Factor => "number ≥ 0".to_owned(),
        ValueType::Duration(0 | 1) => "duration".to_owned(),
        ValueType::Duration(ms) if ms.is_multiple_of(1000) => format!("duration ≥ {} s", ms / 1000),
        ValueType::Duration(ms) => format!("duration ≥ {ms} ms"),
        ValueType::Size => "size".to_owned(),
        ValueType::Text => "string".to_owned(),
        ValueType::Flag => "`true`, `false`".to_owned(),
        ValueType::Word(words) => coded(words),
        ValueType::Words(words) => format!("{}, or a list", coded(words)),
        ValueType::Texts => "list of strings".to_owned(),
        ValueType::TextOrTexts => "string, or a list".to_owned(),
        ValueType::Globs => "pattern, or a list".to_owned(),
        ValueType::Choice(words) => format!("`true`, `false`, {}, or a list of patterns", coded(words)),
        ValueType::HostPath => "absolute path".to_owned(),
        ValueType::GuestPath => "absolute path on the instance".to_owned(),
        ValueType::Map => "table of strings".to_owned(),
        ValueType::Values | ValueType::Table => "table".to_owned(),
        ValueType::Tables => "list of tables".to_owned(),
    };
    if key.unit.is_empty() { kind } else { format!("{kind} ({})", key.unit) }
}

fn coded(words: &[&str]) -> String {
    words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<String>>().join(", ")
}

fn default(default: DefaultValue) -> String {
    match default {
        DefaultValue::Required => "**required**".to_owned(),
        DefaultValue::Value(value) => format!("`{value}`"),
        DefaultValue::Described(words) => words.to_owned(),
    }
}

/// Returns the words that the page's introduction (page.md) explains.
fn takes_effect(takes_effect: TakesEffect) -> &'static str {
    match takes_effect {
        TakesEffect::Pass => "next pass",
        TakesEffect::Launch => "next launch",
        TakesEffect::Request => "next pass, new jobs",
        TakesEffect::Job => "new jobs",
        TakesEffect::Start => "next start",
        TakesEffect::Within => "by key",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;

    #[test]
    fn a_row_has_type_unit_default_and_all_that_is_said_of_a_key() {
        let count =
            key("max", ValueType::Count(1), DefaultValue::Required, TakesEffect::Pass).unit("instances");
        let count = count.doc("The most.").notes("At least a | b.");
        assert_eq!(
            row(&count),
            "| `max` | integer ≥ 1 (instances) | **required** | next pass | The most. At least a \\| b. |"
        );
        let word = key("a", ValueType::Word(&["x", "y"]), DefaultValue::Value("\"x\""), TakesEffect::Start)
            .doc("Which.");
        assert_eq!(row(&word), "| `a` | `\"x\"`, `\"y\"` | `\"x\"` | next start | Which. |");
    }

    #[test]
    fn durations_say_their_least_value_where_it_matters() {
        let of =
            |ms| value_type(&key("a", ValueType::Duration(ms), DefaultValue::Required, TakesEffect::Pass));
        assert_eq!(
            [of(0), of(1), of(10), of(1000)],
            ["duration", "duration", "duration ≥ 10 ms", "duration ≥ 1 s"]
        );
    }

    #[test]
    fn anchors_are_those_of_forges() {
        for (heading, expected) in [
            ("`[[pool.NAME.policy]]`", "poolnamepolicy"),
            ("Provider `aws-ec2`", "provider-aws-ec2"),
            ("The top of the file", "the-top-of-the-file"),
        ] {
            assert_eq!(anchor(heading), expected);
        }
    }

    #[test]
    fn every_word_for_when_a_change_applies_is_explained() {
        for when in [
            TakesEffect::Pass,
            TakesEffect::Launch,
            TakesEffect::Request,
            TakesEffect::Job,
            TakesEffect::Start,
            TakesEffect::Within,
        ] {
            let row = format!("| {} | ", takes_effect(when));
            assert!(include_str!("page.md").contains(&row), "{row}");
        }
    }
}
