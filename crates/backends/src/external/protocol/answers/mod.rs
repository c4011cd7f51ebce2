//! What the program writes on its standard output.
//!
//! Fields that Greenroom does not know are ignored. A wrong one is named with its path.

use std::collections::BTreeSet;

use greenroom_core::text::clean_line;
use serde::de::DeserializeOwned;

mod capabilities;
mod machines;
mod resources;

pub use capabilities::{CapabilitiesAnswer, HostKey, Identity, OfferingAnswer};
pub use machines::{
    ConsoleAnswer, Ended, EndpointAnswer, LaunchAnswer, ListAnswer, MachineAnswer, NoticeAnswer, State,
    TerminateAnswer,
};
pub use resources::{DeleteAnswer, ExamineAnswer, FindingAnswer, Level, ResourceAnswer, ResourcesAnswer};

/// Longest machine id, name, address.
const MAX_WORD: usize = 255;
/// Longest problem with an answer that is shown, in characters.
const SHOWN: usize = 200;

/// Reads one document, and checks what types cannot. The error is the end of a sentence that begins with the program.
pub fn read<T: Answer>(bytes: &[u8]) -> Result<T, String> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err("printed nothing, expected one JSON document".to_owned());
    }
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let answer: T = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let path = error.path().to_string();
        let why = clean_line(error.inner().to_string().as_bytes(), SHOWN);
        if error.inner().is_data() && path != "." {
            format!("printed a wrong `{path}`: {why}")
        } else if error.inner().is_data() {
            format!("printed a wrong document: {why}")
        } else {
            let begin = clean_line(&bytes[..bytes.len().min(400)], 60);
            format!("printed no JSON document: {why}; the output begins with `{begin}`")
        }
    })?;
    text.end().map_err(|_| "printed more than one JSON document".to_owned())?;
    answer.check().map_err(|(path, why)| format!("printed a wrong `{path}`: {why}"))?;
    Ok(answer)
}

/// The path of a wrong field, and what is wrong with it.
pub type Wrong = (String, String);

/// An answer that is more than its types.
pub trait Answer: DeserializeOwned {
    fn check(&self) -> Result<(), Wrong> {
        Ok(())
    }
}

/// A name or an id: short, and of one line.
fn word(path: &str, text: &str) -> Result<(), Wrong> {
    let why = if text.trim().is_empty() {
        "is empty"
    } else if text.len() > MAX_WORD {
        "is longer than 255 bytes"
    } else if text.chars().any(char::is_control) {
        "contains a control character"
    } else {
        return Ok(());
    };
    Err((path.to_owned(), why.to_owned()))
}

/// Words of a list that must differ.
fn each<'a>(list: &str, field: &str, words: impl Iterator<Item = &'a str>) -> Result<(), Wrong> {
    let mut known = BTreeSet::new();
    for (at, text) in words.enumerate() {
        let path = format!("{list}[{at}].{field}");
        word(&path, text)?;
        if !known.insert(text) {
            return Err((path, format!("`{text}` stands in `{list}` twice")));
        }
    }
    Ok(())
}

fn reachable(
    prefix: &str,
    address: Option<&String>,
    port: Option<u16>,
    host_key: Option<&String>,
) -> Result<(), Wrong> {
    if let Some(address) = address {
        word(&format!("{prefix}address"), address)?;
        if address.contains(char::is_whitespace) || address.starts_with('-') {
            return Err((format!("{prefix}address"), "is not an address".to_owned()));
        }
    }
    if port == Some(0) {
        return Err((format!("{prefix}port"), "is 0".to_owned()));
    }
    let is_key = |key: &String| is_public_key(key);
    if host_key.is_some_and(|key| !is_key(key)) {
        let why = "is not a public key in OpenSSH format, such as `ssh-ed25519 AAAA…`";
        return Err((format!("{prefix}host_key"), why.to_owned()));
    }
    Ok(())
}

/// True for a line like `ssh-ed25519 AAAA…`.
pub fn is_public_key(text: &str) -> bool {
    let mut words = text.split_ascii_whitespace();
    let kind = words.next().is_some_and(|kind| kind.starts_with("ssh-") || kind.starts_with("ecdsa-sha2-"));
    kind && words.next().is_some_and(|key| key.starts_with("AAAA")) && !text.trim().contains('\n')
}

#[cfg(test)]
mod tests {
    use super::super::Verb;
    use super::*;

    #[test]
    fn the_shortest_answers_are_enough() {
        let known: CapabilitiesAnswer = read(br#"{"protocol": 1, "name": "mine", "later": []}"#).unwrap();
        assert_eq!((known.identity, known.host_key), (Identity::Tags, HostKey::Launch));
        assert_eq!((known.idempotent_launch, known.appears_within_s), (false, 60));
        assert!(known.has(Verb::List) && !known.has(Verb::Console));
        let list: ListAnswer =
            read(br#"{"complete":true,"machines":[{"machine":"1","state":"running"}]}"#).unwrap();
        assert_eq!(list.machines[0].address, None);
        read::<DeleteAnswer>(b"{}\n").unwrap();
    }

    #[test]
    fn a_wrong_field_is_named_with_its_path() {
        let list = |machines: &str| format!(r#"{{"complete":true,"machines":[{machines}]}}"#);
        let key = r#"{"machine":"1","state":"running","host_key":"none"}"#;
        for (text, expected) in [
            (String::new(), "printed nothing"),
            ("hello\u{1b}[31m".to_owned(), "printed no JSON document: expected value"),
            ("{\"complete\":tr".to_owned(), "printed no JSON document: EOF"),
            (list("") + "{}", "printed more than one JSON document"),
            ("[]".to_owned(), "printed a wrong document"),
            ("{\"machines\":[]}".to_owned(), "printed a wrong document: missing field `complete`"),
            (
                list(r#"{"machine":"1","state":"on"}"#),
                "printed a wrong `machines[0].state`: unknown variant `on`",
            ),
            (list(r#"{"machine":1,"state":"gone"}"#), "printed a wrong `machines[0].machine`: invalid type"),
            (list(r#"{"machine":"","state":"gone"}"#), "printed a wrong `machines[0].machine`: is empty"),
            (list(key), "printed a wrong `machines[0].host_key`: is not a public key"),
            (
                list(r#"{"machine":"1","state":"gone"},{"machine":"1","state":"gone"}"#),
                "printed a wrong `machines[1].machine`: `1` stands in `machines` twice",
            ),
        ] {
            let wrong = read::<ListAnswer>(text.as_bytes()).unwrap_err();
            assert!(wrong.starts_with(expected), "{text}: {wrong}");
            assert!(!wrong.contains('\u{1b}'), "{wrong}");
        }
    }

    #[test]
    fn another_version_and_unknown_verbs_are_refused() {
        for (text, expected) in [
            (r#"{"protocol":2,"name":"x"}"#, "printed a wrong `protocol`: is 2, but"),
            (
                r#"{"protocol":1,"name":"x","verbs":["reboot"]}"#,
                "printed a wrong `verbs`: `reboot` is not a verb",
            ),
            (r#"{"protocol":1,"name":"x","identity":"id"}"#, "printed a wrong `identity`: unknown variant"),
        ] {
            let wrong = read::<CapabilitiesAnswer>(text.as_bytes()).unwrap_err();
            assert!(wrong.starts_with(expected), "{text}: {wrong}");
        }
    }
}
