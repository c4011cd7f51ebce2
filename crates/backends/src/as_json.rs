//! A table of the configuration as JSON.

use serde_json::{Map, Value};

/// A table as a JSON object. Dates and times become strings.
pub fn table(values: &toml::Table) -> Map<String, Value> {
    values.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}

fn json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::from(text.as_str()),
        toml::Value::Integer(number) => Value::from(*number),
        // JSON has no infinity: it becomes null.
        toml::Value::Float(number) => Value::from(*number),
        toml::Value::Boolean(flag) => Value::from(*flag),
        toml::Value::Datetime(time) => Value::from(time.to_string()),
        toml::Value::Array(list) => list.iter().map(json).collect(),
        toml::Value::Table(inner) => Value::Object(table(inner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_arrives() {
        let text = "image = \"debian\"\ncpus = 2\nshare = 0.5\nspot = true\nsince = 2026-11-25\n\
                    nets = [1, 2]\nserver = { firewalls = [{ firewall = 38 }] }\n";
        let expected = serde_json::json!({
            "image": "debian", "cpus": 2, "share": 0.5, "spot": true, "since": "2026-11-25", "nets": [1, 2],
            "server": { "firewalls": [{ "firewall": 38 }] },
        });
        assert_eq!(Value::Object(table(&text.parse().unwrap())), expected);
    }
}
