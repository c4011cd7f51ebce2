//! Reads the YAML of examples: maps, lists, plain and quoted words, lists in brackets. Nothing else.

use serde_json::{Map, Value};

/// A line: its depth, and its text.
type Line<'a> = (usize, &'a str);

pub fn parse(text: &str) -> Value {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    let lines: Vec<Line<'_>> =
        lines.map(|line| (line.len() - line.trim_start().len(), line.trim())).collect();
    let (value, rest) = block(&lines);
    assert!(rest.is_empty(), "this YAML is not for tests: {rest:?}");
    value
}

/// Reads the lines at the depth of the first one.
fn block<'a, 'b>(mut lines: &'b [Line<'a>]) -> (Value, &'b [Line<'a>]) {
    let depth = lines[0].0;
    let (mut map, mut list) = (Map::new(), Vec::new());
    while let Some(((at, text), rest)) = lines.split_first().filter(|((at, _), _)| *at == depth) {
        if let Some(entry) = text.strip_prefix("- ") {
            let more = rest.iter().take_while(|(below, _)| below > at).count();
            if key(entry).is_some() {
                // A map whose first key stands behind the dash.
                let mut inner = vec![(at + 2, entry)];
                inner.extend_from_slice(&rest[..more]);
                list.push(block(&inner).0);
            } else {
                list.push(scalar(entry));
            }
            lines = &rest[more..];
        } else {
            let (name, value) = key(text).unwrap_or_else(|| panic!("this YAML is not for tests: {text}"));
            let below = rest.first().filter(|(below, _)| value.is_empty() && below > at);
            let (value, after) = if below.is_some() { block(rest) } else { (scalar(value), rest) };
            map.insert(name.to_owned(), value);
            lines = after;
        }
    }
    (if list.is_empty() { Value::Object(map) } else { Value::Array(list) }, lines)
}

/// `name: value` or `name:`.
fn key(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once(": ").or_else(|| Some((text.strip_suffix(':')?, "")))?;
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)).then_some((name, value.trim()))
}

fn scalar(text: &str) -> Value {
    if text.starts_with(['[', '"']) {
        return serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    Value::String(text.trim_matches('\'').to_owned())
}

#[test]
fn the_yaml_of_an_example_is_what_it_looks_like() {
    let text = "a:\n  image: x:1 \n  services:\n    - name: y\n      command: [\"z\", \"\"]\n    - plain:1\n  script:\n    - (echo > /dev/tcp/db/1)\n";
    let wanted = serde_json::json!({"a": {
        "image": "x:1", "services": [{"name": "y", "command": ["z", ""]}, "plain:1"], "script": ["(echo > /dev/tcp/db/1)"],
    }});
    assert_eq!(parse(text), wanted);
}
