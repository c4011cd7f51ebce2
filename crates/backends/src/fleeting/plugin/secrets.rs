//! Takes secrets out of what a plugin prints.

use serde_json::Value;

/// Text that replaces a secret.
pub(super) const HIDDEN: &str = "[hidden]";
/// A shorter text is no secret: it would hide words.
const SHORTEST: usize = 6;
/// Parts of the names of secrets, in lower case.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "private",
    "apikey",
    "api_key",
    "api-key",
];
/// Whole names of secrets, in lower case.
const WHOLE_NAMES: &[&str] =
    &["key", "ssh_key", "sshkey", "access_key", "accesskey", "auth", "authorization", "user_data"];

const BEGIN: &str = "-----BEGIN ";
const PRIVATE: &str = "PRIVATE KEY-----";
const END: &str = "-----END ";

/// The secrets that Greenroom has given to a plugin, or has got from it.
#[derive(Debug, Clone, Default)]
pub(super) struct Secrets {
    /// The longest first: one may contain another.
    known: Vec<String>,
}

impl Secrets {
    /// Adds a secret, each line of it by itself: logs break and escape lines.
    pub(super) fn add(&mut self, secret: &str) {
        let lines =
            secret.lines().map(str::trim).filter(|line| line.len() >= SHORTEST && !line.starts_with("-----"));
        for line in lines {
            if !self.known.iter().any(|known| known == line) {
                self.known.push(line.to_owned());
            }
        }
        self.known.sort_by_key(|known| std::cmp::Reverse(known.len()));
    }

    /// Adds the texts of a table whose names are those of secrets.
    pub(super) fn add_table(&mut self, table: &Value) {
        match table {
            Value::Object(table) => {
                for (name, value) in table {
                    match value {
                        Value::String(text) if is_secret_name(name) => self.add(text),
                        other => self.add_table(other),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.add_table(item)),
            _ => {}
        }
    }

    /// The text without them, and without any private key.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut hidden = without_private_keys(text);
        for secret in &self.known {
            if hidden.contains(secret.as_str()) {
                hidden = hidden.replace(secret.as_str(), HIDDEN);
            }
        }
        hidden
    }
}

/// Private keys in the lines of one stream, which come one by one.
#[derive(Debug, Default)]
pub(super) struct KeyLines {
    inside: bool,
}

impl KeyLines {
    /// True for a line inside a private key, and for its last one.
    pub(super) fn hides(&mut self, line: &[u8]) -> bool {
        let has = |mark: &str| line.windows(mark.len()).any(|part| part == mark.as_bytes());
        let was_inside = self.inside;
        if has(END) {
            self.inside = false;
        } else if has(BEGIN) && has(PRIVATE) {
            self.inside = true;
        }
        was_inside
    }
}

/// True if a value of this name is a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    NAMES.iter().any(|part| name.contains(part)) || WHOLE_NAMES.contains(&name.as_str())
}

/// A private key goes from its first mark to the end of its last one, or to the end of the text.
fn without_private_keys(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let inside = &rest[at + BEGIN.len()..];
        let is_private = inside.find("-----").is_some_and(|end| inside[..end + 5].ends_with(PRIVATE));
        if !is_private {
            clean.push_str(&rest[..at + BEGIN.len()]);
            rest = inside;
            continue;
        }
        clean.push_str(&rest[..at]);
        clean.push_str(HIDDEN);
        rest = match inside.find(END) {
            Some(end) => {
                let last = &inside[end + END.len()..];
                last.find(PRIVATE).map_or("", |at| &last[at + PRIVATE.len()..])
            }
            None => "",
        };
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn given_secrets_are_hidden_line_by_line() {
        let mut secrets = Secrets::default();
        secrets.add("hunter2-long");
        secrets.add("hunter2");
        secrets.add("on");
        secrets.add("-----BEGIN X PRIVATE KEY-----\nAAAABBBBCCCC\nDDDDEEEE\n-----END X PRIVATE KEY-----\n");
        assert_eq!(secrets.hide("on hunter2-long, hunter2"), "on [hidden], [hidden]");
        assert_eq!(secrets.hide(r"k=AAAABBBBCCCC\nDDDDEEEE\n"), r"k=[hidden]\n[hidden]\n");
    }

    #[test]
    fn a_table_gives_the_values_of_secret_names() {
        let mut secrets = Secrets::default();
        secrets.add_table(&json!({
            "name": "group-one", "api_token": "tok-12345", "nested": [{ "Password": "pw-123456", "size": 3 }],
        }));
        assert_eq!(secrets.hide("group-one tok-12345 pw-123456"), "group-one [hidden] [hidden]");
    }

    #[test]
    fn private_keys_are_hidden_wherever_they_are_from() {
        let secrets = Secrets::default();
        for (text, clean) in [
            ("a -----BEGIN RSA PRIVATE KEY-----\nxx\n-----END RSA PRIVATE KEY----- b", "a [hidden] b"),
            ("a -----BEGIN OPENSSH PRIVATE KEY-----\\nxx", "a [hidden]"),
            (
                "-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----",
                "-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----",
            ),
            ("-----BEGIN ", "-----BEGIN "),
        ] {
            assert_eq!(secrets.hide(text), clean);
        }
    }

    #[test]
    fn lines_of_a_private_key_are_hidden_up_to_its_end() {
        let mut keys = KeyLines::default();
        let lines = "a\nx -----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb\n\
                     -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n\
                     -----BEGIN PRIVATE KEY-----x-----END PRIVATE KEY-----\nc";
        let hidden: Vec<&str> = lines.lines().filter(|line| keys.hides(line.as_bytes())).collect();
        assert_eq!(hidden, ["MHc", "-----END EC PRIVATE KEY-----"]);
    }

    #[test]
    fn names_of_secrets_are_known_in_any_case() {
        for name in ["Password", "HCLOUD_TOKEN", "client_secret", "key", "Key", "apiKey"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["monkey", "name", "keepalive", "keyboard", "instance"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
