//! One line of a plugin's log: its level, and its text without secrets.

use greenroom_core::text::clean_line;
use serde_json::Value;
use tracing::Level;

use super::secrets::{HIDDEN, Secrets, is_secret_name};

/// Longest text, in characters.
const LONGEST: usize = 2000;

/// A line, cleaned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogLine {
    pub(super) level: Level,
    pub(super) text: String,
}

/// True for the first line of a crashed Go program's last output.
pub(super) fn begins_crash(line: &[u8]) -> bool {
    line.starts_with(b"panic: ") || line.starts_with(b"fatal error: ")
}

/// Reads a line: JSON as plugins' library writes it, or any other text.
pub(super) fn read(line: &[u8], secrets: &Secrets) -> LogLine {
    match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) if fields.contains_key("@message") => structured(&fields, secrets),
        _ => plain(line, secrets),
    }
}

fn structured(fields: &serde_json::Map<String, Value>, secrets: &Secrets) -> LogLine {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let level = match text("@level") {
        "error" => Level::ERROR,
        "warn" => Level::WARN,
        "info" => Level::INFO,
        "trace" => Level::TRACE,
        _ => Level::DEBUG,
    };
    let mut line = text("@message").to_owned();
    let own = ["@message", "@level", "@timestamp", "@module", "@caller"];
    for (name, value) in fields.iter().filter(|(name, _)| !own.contains(&name.as_str())) {
        let value = if is_secret_name(name) { HIDDEN.to_owned() } else { shown(value) };
        line.extend([" ", name, "=", &value]);
    }
    LogLine { level, text: clean(&line, secrets) }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(table) => {
            let shown = table.iter().map(|(name, value)| {
                let value = if is_secret_name(name) { HIDDEN.to_owned() } else { shown(value) };
                format!("{name}={value}")
            });
            format!("{{{}}}", shown.collect::<Vec<_>>().join(" "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(" ")),
        other => other.to_string(),
    }
}

fn plain(line: &[u8], secrets: &Secrets) -> LogLine {
    let text = String::from_utf8_lossy(line);
    let is_crash = begins_crash(line);
    let levels = [
        ("[ERROR]", Level::ERROR),
        ("[WARN]", Level::WARN),
        ("[INFO]", Level::INFO),
        ("[DEBUG]", Level::DEBUG),
        ("[TRACE]", Level::TRACE),
    ];
    let prefix = levels.iter().find(|(prefix, _)| text.starts_with(prefix));
    let level = prefix.map_or(if is_crash { Level::ERROR } else { Level::DEBUG }, |(_, level)| *level);
    LogLine { level, text: clean(&text, secrets) }
}

fn clean(text: &str, secrets: &Secrets) -> String {
    clean_line(secrets.hide(text).as_bytes(), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(line: &str) -> (Level, String) {
        let line = read(line.as_bytes(), &Secrets::default());
        (line.level, line.text)
    }

    #[test]
    fn json_lines_have_a_level_and_further_fields() {
        let line = r#"{"@level":"warn","@message":"slow","@module":"m","@timestamp":"t","group":"g","n":3}"#;
        assert_eq!(read_text(line), (Level::WARN, "slow group=g n=3".to_owned()));
        assert_eq!(read_text(r#"{"@message":"no level"}"#), (Level::DEBUG, "no level".to_owned()));
    }

    #[test]
    fn fields_of_secret_names_are_hidden_at_any_depth() {
        let line =
            r#"{"@level":"info","@message":"dial","info":{"Password":"p","Key":"k","user":"u"},"token":"t"}"#;
        assert_eq!(read_text(line).1, "dial info={Key=[hidden] Password=[hidden] user=u} token=[hidden]");
    }

    #[test]
    fn plain_lines_have_the_level_of_their_prefix() {
        assert_eq!(read_text("[ERROR] no quota"), (Level::ERROR, "[ERROR] no quota".to_owned()));
        assert_eq!(read_text("2026/01/01 hello\u{1b}[31m"), (Level::DEBUG, "2026/01/01 hello".to_owned()));
        assert_eq!(read_text("{broken"), (Level::DEBUG, "{broken".to_owned()));
        assert_eq!(read_text("panic: nil map").0, Level::ERROR);
    }
}
