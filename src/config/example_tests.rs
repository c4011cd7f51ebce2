//! The example is valid and shows true defaults, and the tables of keys are complete.

use greenroom_keys::{DefaultValue, KeySpec, KeyTable, ValueType};

use super::keys::{CONTAINERS, NOTIFY, POLICY, POOL, PROVIDER, RULE, TIMING, TOP};
use super::*;

const EXAMPLE: &str = include_str!("../../examples/config.toml");
/// The keys of `[pool.NAME.containers]` have an example of their own.
const CONTAINERS_EXAMPLE: &str = include_str!("../../examples/containers.toml");
const EXAMPLES: [(&str, &str); 2] =
    [("examples/config.toml", EXAMPLE), ("examples/containers.toml", CONTAINERS_EXAMPLE)];

/// The example that has the keys of a kind of table.
fn example_of(section: &KeyTable) -> (&'static str, &'static str) {
    EXAMPLES[usize::from(*section == CONTAINERS)]
}

/// Every key with the kind of table that it belongs to.
fn all() -> impl Iterator<Item = (&'static KeyTable, &'static KeySpec)> {
    KEYS.iter().flat_map(|table| table.keys.iter().map(move |key| (table, key)))
}

/// A configuration with one more line in one kind of table.
fn with(section: &KeyTable, line: &str) -> String {
    let line_in = |place: KeyTable| if place == *section { line } else { "" };
    let max_instances = if line.starts_with("max_instances") { "" } else { "max_instances = 9" };
    let kind = if line.starts_with("kind") { "" } else { "kind = 'local'" };
    let periods = if line.starts_with("periods") { "" } else { "periods = ['* * * * *']" };
    let pool = if line.starts_with("pool") { "" } else { "pool = 'a'" };
    let policy = if *section == POLICY { "[[pool.a.policy]]" } else { "#" };
    let rule = if *section == RULE { "[[rule]]" } else { "#" };
    let periods = if *section == POLICY { periods } else { "" };
    let pool = if *section == RULE { pool } else { "" };
    let command = if line.starts_with("command") { "" } else { "command = ['/bin/true']" };
    [
        line_in(TOP),
        "[pool.a]",
        max_instances,
        line_in(POOL),
        "[pool.a.provider]",
        kind,
        line_in(PROVIDER),
        if *section == CONTAINERS { "[pool.a.containers]" } else { "" },
        line_in(CONTAINERS),
        policy,
        line_in(POLICY),
        periods,
        rule,
        line_in(RULE),
        pool,
        if *section == NOTIFY { "[notify]" } else { "" },
        if *section == NOTIFY { command } else { "" },
        line_in(NOTIFY),
        if *section == TIMING { "[timing]" } else { "" },
        line_in(TIMING),
    ]
    .join("\n")
}

#[test]
fn the_example_is_a_valid_configuration() {
    let [config, containers] =
        EXAMPLES.map(|(name, text)| Config::parse(text, name).unwrap_or_else(|wrong| panic!("{wrong}")));
    assert!(containers.pools.values().all(|pool| pool.containers.is_some()));
    assert_eq!(config.pools.len(), 2);
    let line = EXAMPLE.lines().position(|line| line == "max_instances = 4").unwrap() + 1;
    assert_eq!(config.origin("pool.linux.max_instances"), Some(format!("examples/config.toml:{line}")));
}

#[test]
fn the_shortest_way_to_containers_is_a_valid_configuration() {
    let page = include_str!("../../docs/containers.md");
    let block = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = Config::parse(block, "docs/containers.md").unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(config.pools.values().all(|pool| pool.containers.is_some()), "{block}");
}

#[test]
fn the_example_stays_valid_when_every_comment_that_is_a_key_is_taken_in() {
    let names: Vec<&str> = all().map(|(_, key)| key.name).collect();
    for (name, text) in EXAMPLES {
        let taken_in: Vec<String> = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if names.iter().any(|name| rest.starts_with(&format!("{name} = "))) => {
                    rest.to_owned()
                }
                _ => line.to_owned(),
            })
            .collect();
        let taken_in = taken_in.join("\n");
        assert!(taken_in.len() + 20 < text.len(), "some comments are keys");
        Config::parse(&taken_in, name).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}

/// The keys that a text contains, commented out or not, with the kind of table of each.
fn mentioned(text: &str) -> Vec<(KeyTable, String)> {
    let mut section = TOP;
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        let parts: Vec<&str> = line.trim_matches(['[', ']']).split('.').collect();
        if line.starts_with('[') && line.ends_with(']') {
            let (next, key) = match parts.as_slice() {
                ["timing"] => (TIMING, (TOP, "timing")),
                ["notify"] => (NOTIFY, (TOP, "notify")),
                ["rule"] => (RULE, (TOP, "rule")),
                ["pool", _] => (POOL, (TOP, "pool")),
                ["pool", _, "policy"] => (POLICY, (POOL, "policy")),
                ["pool", _, "provider"] => (PROVIDER, (POOL, "provider")),
                ["pool", _, "containers"] => (CONTAINERS, (POOL, "containers")),
                other => panic!("unknown table {other:?}"),
            };
            section = next;
            found.push((key.0, key.1.to_owned()));
        } else if let Some((key, _)) = line.split_once(" = ") {
            found.push((section, key.to_owned()));
        }
    }
    found
}

#[test]
fn the_example_mentions_every_key_but_most_of_timing() {
    let mentioned = EXAMPLES.map(|(_, text)| mentioned(text)).concat();
    let is_there = |place: &KeyTable, key: &KeySpec| {
        mentioned.iter().any(|(section, name)| section == place && name == key.name)
    };
    for (section, key) in all().filter(|(section, _)| **section != TIMING) {
        let there = is_there(section, key);
        assert!(there, "`{}` of {} is missing in {}", key.name, section.header, example_of(section).0);
    }
    let timing = TIMING.keys.iter().filter(|key| is_there(&TIMING, key)).count();
    assert_eq!(timing, 12, "the dozen that operators change; docs/configuration.md has the others");
}

#[test]
fn the_commented_defaults_of_the_example_are_the_true_ones() {
    // A key that is commented out and has no default shows a sensible value, and its comment describes it.
    let shown = |place: &KeyTable, key: &KeySpec| {
        let mut section = TOP;
        example_of(place).1.lines().find_map(|line| {
            if line.starts_with('[') {
                section = mentioned(line).first().map_or(section, |_| section_of(line));
            }
            let (name, value) = line.strip_prefix('#')?.split_once(" = ")?;
            (section == *place && name == key.name).then(|| value.to_owned())
        })
    };
    let mut compared = 0;
    for (section, key) in all() {
        if let (Some(default), Some(shown)) = (key.default_text(), shown(section, key)) {
            assert_eq!(shown, default, "{}", key.name);
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

fn section_of(header: &str) -> KeyTable {
    let parts: Vec<&str> = header.trim_matches(['[', ']']).split('.').collect();
    match parts.as_slice() {
        ["timing"] => TIMING,
        ["notify"] => NOTIFY,
        ["rule"] => RULE,
        [_, _, "policy"] => POLICY,
        [_, _, "provider"] => PROVIDER,
        [_, _, "containers"] => CONTAINERS,
        _ => POOL,
    }
}

#[test]
fn every_key_is_really_read() {
    for (section, key) in all().filter(|(_, key)| !key.opens_table()) {
        let text = with(section, &format!("{} = 1979-05-27", key.name));
        let wrong = Config::parse(&text, "x").expect_err(key.name);
        let summary = wrong.to_string();
        let quoted = format!("`{}`", key.name);
        assert!(summary.contains(&quoted) && summary.contains("must be"), "{}: {summary}", key.name);
    }
}

#[test]
fn every_default_is_the_true_one() {
    for (section, key) in all() {
        let Some(default) = key.default_text() else { continue };
        let given = with(section, &format!("{} = {default}", key.name));
        let given = Config::parse(&given, "x").unwrap_or_else(|wrong| panic!("{wrong}"));
        let absent = with(section, "#");
        let mut absent = Config::parse(&absent, "x").unwrap_or_else(|wrong| panic!("{wrong}"));
        if key.name == "max_use_count" {
            absent.pools.values_mut().for_each(|pool| pool.uses_given = true);
        }
        if ["builds_dir", "cache_dir"].contains(&key.name) {
            absent.pools.values_mut().for_each(|pool| pool.dirs_given = true);
        }
        assert_eq!(given, absent, "{}", key.name);
    }
}

#[test]
fn every_required_key_is_missed() {
    for (section, key) in all().filter(|(_, key)| key.default == DefaultValue::Required && !key.opens_table())
    {
        let set = format!("{} = ", key.name);
        let text = with(section, "#");
        let without: Vec<&str> = text.lines().filter(|line| !line.starts_with(&set)).collect();
        let wrong = Config::parse(&without.join("\n"), "x").expect_err(key.name).to_string();
        assert!(wrong.contains(&format!("`{}` is missing", key.name)), "{}: {wrong}", key.name);
    }
}

#[test]
fn every_key_changes_something() {
    for (section, key) in all() {
        let Some(default) = key.default_text() else { continue };
        let other = match key.ty {
            ValueType::Count(_) => "7".to_owned(),
            ValueType::Factor => "0.7".to_owned(),
            ValueType::Duration(_) => "\"7s\"".to_owned(),
            ValueType::Flag => if default == "true" { "false" } else { "true" }.to_owned(),
            ValueType::Word(words) => format!("\"{}\"", words[words.len() - 1]),
            ValueType::HostPath | ValueType::GuestPath => "\"/elsewhere\"".to_owned(),
            ValueType::Text => "\"Europe/Paris\"".to_owned(),
            ValueType::Texts => "[\"/elsewhere\"]".to_owned(),
            ValueType::Size => "\"7M\"".to_owned(),
            ValueType::Choice(_) => "[\"a\"]".to_owned(),
            takes => panic!("{takes:?} has no default"),
        };
        let extra = match key.name {
            "capacity_per_instance" => "max_use_count = 0\n",
            "mode" => "default_image = \"debian\"\n",
            _ => "",
        };
        let changed = with(section, &format!("{extra}{} = {other}", key.name));
        let changed = Config::parse(&changed, "x").unwrap_or_else(|wrong| panic!("{wrong}"));
        let plain = Config::parse(&with(section, &format!("{extra}#")), "x").unwrap();
        assert_ne!(changed, plain, "{}", key.name);
    }
}

#[test]
fn every_field_of_the_core_timing_is_a_key() {
    let fields = serde_json::to_value(Timing::default()).unwrap();
    for field in fields.as_object().unwrap().keys() {
        assert!(TIMING.keys.iter().any(|key| key.name == *field), "`{field}` is no key of [timing]");
    }
}
