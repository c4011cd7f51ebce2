//! The documents that the program writes on its standard output.
//!
//! Fields that Greenroom does not know are ignored. A wrong one is named with its path.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_core::text::clean_line;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{VERSION, Verb};

/// Longest machine id, name, address.
const MAX_WORD: usize = 255;
/// Longest problem with an answer that is shown, in characters.
const SHOWN: usize = 200;

/// The reason an output is no [`ProtocolAnswer`]. Its text follows the program and the verb in a sentence.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("printed nothing, expected one JSON document")]
    Nothing,
    /// Both texts are cleaned: they have parts of the output.
    #[error("printed no JSON document: {why}; the output begins with `{begin}`")]
    NotJson { why: String, begin: String },
    #[error("printed a wrong document: {0}")]
    Document(String),
    /// A field of another type.
    #[error("printed a wrong `{path}`: {why}")]
    Type { path: String, why: String },
    #[error("printed more than one JSON document")]
    SeveralDocuments,
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// A field has the right type and an impossible value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("printed a wrong `{path}`: {fault}")]
pub struct FieldError {
    path: String,
    fault: FieldFault,
}

/// The fault of a field. Its text follows the field's path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum FieldFault {
    #[error("is empty")]
    Empty,
    #[error("is longer than {MAX_WORD} bytes")]
    Long,
    #[error("contains a control character")]
    Control,
    #[error("`{text}` stands in `{list}` twice")]
    Twice { text: String, list: String },
    #[error("is not an address")]
    Address,
    #[error("is 0")]
    ZeroPort,
    #[error("is not a public key in OpenSSH format, such as `ssh-ed25519 AAAA…`")]
    HostKey,
    #[error("is {0}, but this Greenroom speaks version {VERSION}")]
    Version(u32),
    #[error("`{0}` is not a verb")]
    Verb(String),
    #[error("is more than an hour")]
    Lag,
}

impl FieldFault {
    fn at(self, path: impl Into<String>) -> FieldError {
        FieldError { path: path.into(), fault: self }
    }
}

/// Reads one document, and checks what types cannot.
pub fn read<T: ProtocolAnswer>(bytes: &[u8]) -> Result<T, AnswerError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(AnswerError::Nothing);
    }
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let answer: T = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let path = error.path().to_string();
        let why = clean_line(error.inner().to_string().as_bytes(), SHOWN);
        match (error.inner().is_data(), path.as_str()) {
            (true, ".") => AnswerError::Document(why),
            (true, _) => AnswerError::Type { path, why },
            (false, _) => AnswerError::NotJson { why, begin: clean_line(&bytes[..bytes.len().min(400)], 60) },
        }
    })?;
    text.end().map_err(|_| AnswerError::SeveralDocuments)?;
    answer.check()?;
    Ok(answer)
}

/// An answer that is more than its types.
pub trait ProtocolAnswer: DeserializeOwned {
    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

/// A name or an id: short, and of one line.
fn word(path: &str, text: &str) -> Result<(), FieldError> {
    let fault = if text.trim().is_empty() {
        FieldFault::Empty
    } else if text.len() > MAX_WORD {
        FieldFault::Long
    } else if text.chars().any(char::is_control) {
        FieldFault::Control
    } else {
        return Ok(());
    };
    Err(fault.at(path))
}

/// Words of a list that must differ.
fn each<'a>(list: &str, field: &str, words: impl Iterator<Item = &'a str>) -> Result<(), FieldError> {
    let mut known = BTreeSet::new();
    for (at, text) in words.enumerate() {
        let path = format!("{list}[{at}].{field}");
        word(&path, text)?;
        if !known.insert(text) {
            return Err(FieldFault::Twice { text: text.to_owned(), list: list.to_owned() }.at(path));
        }
    }
    Ok(())
}

fn reachable(
    prefix: &str,
    address: Option<&String>,
    port: Option<u16>,
    host_key: Option<&String>,
) -> Result<(), FieldError> {
    if let Some(address) = address {
        word(&format!("{prefix}address"), address)?;
        if address.contains(char::is_whitespace) || address.starts_with('-') {
            return Err(FieldFault::Address.at(format!("{prefix}address")));
        }
    }
    if port == Some(0) {
        return Err(FieldFault::ZeroPort.at(format!("{prefix}port")));
    }
    if host_key.is_some_and(|key| !is_public_key(key)) {
        return Err(FieldFault::HostKey.at(format!("{prefix}host_key")));
    }
    Ok(())
}

/// True for a line like `ssh-ed25519 AAAA…`.
pub fn is_public_key(text: &str) -> bool {
    let mut words = text.split_ascii_whitespace();
    let kind = words.next().is_some_and(|kind| kind.starts_with("ssh-") || kind.starts_with("ecdsa-sha2-"));
    kind && words.next().is_some_and(|key| key.starts_with("AAAA")) && !text.trim().contains('\n')
}

/// The way the program's machines show which instance they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MachineIdentity {
    /// The machines carry the tags of their launch.
    #[default]
    Tags,
    /// The machines carry the name of their launch only.
    Names,
}

/// The way Greenroom learns a machine's host key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostKeySource {
    /// Greenroom makes it, and the program puts it on the machine.
    #[default]
    Launch,
    /// The machine makes it, and the program reports it in `list` or `endpoint`.
    Report,
    /// The machine makes it, and its console shows it, as cloud-init writes it there.
    Console,
    /// The operator states it: the image has it.
    Operator,
    /// The machine makes it, and has a certificate for it, of an authority that the operator states.
    Certificate,
}

/// One way to launch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OfferingAnswer {
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
}

/// The answer of `capabilities`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CapabilitiesAnswer {
    pub protocol: u32,
    pub name: String,
    #[serde(default)]
    pub version: Option<String>,
    /// The place of the machines: account, project, region, host.
    #[serde(default)]
    pub account: Option<String>,
    #[serde(default)]
    pub identity: MachineIdentity,
    /// True if a repeated token never makes a second machine.
    #[serde(default)]
    pub idempotent_launch: bool,
    #[serde(default)]
    pub host_key: HostKeySource,
    /// True if machines end by themselves after `lifetime_s`.
    #[serde(default)]
    pub lifetime: bool,
    /// The time for which `list` may lack a new machine, in seconds.
    #[serde(default = "appears_within_s")]
    pub appears_within_s: u64,
    /// The optional verbs that the program has.
    #[serde(default)]
    pub verbs: BTreeSet<String>,
    #[serde(default)]
    pub offerings: Vec<OfferingAnswer>,
    /// Price of a machine, for people: `0.007 EUR an hour`.
    #[serde(default)]
    pub price: Option<String>,
}

/// Default of `appears_within_s`.
const fn appears_within_s() -> u64 {
    60
}

impl CapabilitiesAnswer {
    pub fn has(&self, verb: Verb) -> bool {
        verb.is_required() || self.verbs.contains(verb.name())
    }
}

impl ProtocolAnswer for CapabilitiesAnswer {
    fn check(&self) -> Result<(), FieldError> {
        if self.protocol != VERSION {
            return Err(FieldFault::Version(self.protocol).at("protocol"));
        }
        if let Some(unknown) = self.verbs.iter().find(|name| Verb::of_name(name).is_none()) {
            return Err(FieldFault::Verb(clean_line(unknown.as_bytes(), 40)).at("verbs"));
        }
        if self.appears_within_s > 3600 {
            return Err(FieldFault::Lag.at("appears_within_s"));
        }
        word("name", &self.name)?;
        let names = self.offerings.iter().map(|offering| offering.name.as_str());
        each("offerings", "name", names)
    }
}

/// The answer of `launch`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LaunchAnswer {
    pub machine: String,
    /// True if the platform may still refuse it: `list` shows it as pending until then.
    #[serde(default)]
    pub pending: bool,
}

impl ProtocolAnswer for LaunchAnswer {
    fn check(&self) -> Result<(), FieldError> {
        word("machine", &self.machine)
    }
}

/// State of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListedState {
    /// Accepted, but without capacity so far.
    Pending,
    /// Refused for lack of capacity after it was accepted, and there until `terminate`.
    Refused,
    Starting,
    Running,
    Stopping,
    /// Stopped, and there until `terminate`.
    Stopped,
    /// No longer there, but still listed.
    Gone,
}

/// An announcement about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NoticeAnswer {
    /// To follow the instance's name: `will be reclaimed`.
    pub text: String,
    #[serde(default)]
    pub at: Option<Timestamp>,
}

/// One machine in `list`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MachineAnswer {
    pub machine: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    pub state: ListedState,
    #[serde(default)]
    pub address: Option<String>,
    #[serde(default)]
    pub port: Option<u16>,
    /// The machine's public host key, in OpenSSH format.
    #[serde(default)]
    pub host_key: Option<String>,
    #[serde(default)]
    pub created: Option<Timestamp>,
    /// For people: type, zone.
    #[serde(default)]
    pub description: Option<String>,
    /// The reason the machine ended, to follow the instance's name: `was reclaimed`.
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub notice: Option<NoticeAnswer>,
}

/// The answer of `list`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListAnswer {
    /// False if a machine may be missing.
    pub complete: bool,
    #[serde(default)]
    pub account: Option<String>,
    pub machines: Vec<MachineAnswer>,
}

impl ProtocolAnswer for ListAnswer {
    fn check(&self) -> Result<(), FieldError> {
        each("machines", "machine", self.machines.iter().map(|one| one.machine.as_str()))?;
        for (at, one) in self.machines.iter().enumerate() {
            reachable(&format!("machines[{at}]."), one.address.as_ref(), one.port, one.host_key.as_ref())?;
        }
        Ok(())
    }
}

/// The answer of `endpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct EndpointAnswer {
    pub address: String,
    #[serde(default)]
    pub port: Option<u16>,
    #[serde(default)]
    pub host_key: Option<String>,
}

impl ProtocolAnswer for EndpointAnswer {
    fn check(&self) -> Result<(), FieldError> {
        reachable("", Some(&self.address), self.port, self.host_key.as_ref())
    }
}

/// The answer of `terminate`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TerminateAnswer {
    pub state: TerminateState,
}

/// State of a machine after `terminate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TerminateState {
    /// The machine is still there, and ends.
    Stopping,
    /// The machine and all that it had are gone.
    Gone,
}

impl ProtocolAnswer for TerminateAnswer {}

/// The answer of `console`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ConsoleAnswer {
    pub text: String,
}

impl ProtocolAnswer for ConsoleAnswer {}

/// One resource that is no machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResourceAnswer {
    /// For people, in lower case: `volume`, `address`.
    pub kind: String,
    pub id: String,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// The name of the machine that it was made for.
    #[serde(default)]
    pub name: Option<String>,
    /// The machine that uses it now.
    #[serde(default)]
    pub machine: Option<String>,
    #[serde(default)]
    pub created: Option<Timestamp>,
    #[serde(default)]
    pub description: Option<String>,
}

/// The answer of `resources`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResourcesAnswer {
    pub complete: bool,
    pub resources: Vec<ResourceAnswer>,
}

impl ProtocolAnswer for ResourcesAnswer {
    fn check(&self) -> Result<(), FieldError> {
        let ids = self.resources.iter().map(|one| one.id.as_str());
        each("resources", "id", ids)?;
        for (at, one) in self.resources.iter().enumerate() {
            word(&format!("resources[{at}].kind"), &one.kind)?;
        }
        Ok(())
    }
}

/// The answer of `delete`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DeleteAnswer {}

impl ProtocolAnswer for DeleteAnswer {}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Error,
    Warning,
    Note,
}

/// One finding of the program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FindingAnswer {
    pub level: Level,
    pub message: String,
    #[serde(default)]
    pub help: Option<String>,
}

/// The answer of `examine`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExamineAnswer {
    pub findings: Vec<FindingAnswer>,
}

impl ProtocolAnswer for ExamineAnswer {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::external::protocol::Verb;

    #[test]
    fn the_shortest_answers_are_enough() {
        let known: CapabilitiesAnswer = read(br#"{"protocol": 1, "name": "mine", "later": []}"#).unwrap();
        assert_eq!((known.identity, known.host_key), (MachineIdentity::Tags, HostKeySource::Launch));
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
            let wrong = read::<ListAnswer>(text.as_bytes()).unwrap_err().to_string();
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
            let wrong = read::<CapabilitiesAnswer>(text.as_bytes()).unwrap_err().to_string();
            assert!(wrong.starts_with(expected), "{text}: {wrong}");
        }
    }
}
