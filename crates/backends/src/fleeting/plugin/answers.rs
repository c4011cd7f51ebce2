//! The answers of a plugin, checked and in the port's terms, and what a failed call means.

use std::collections::HashMap;
use std::error::Error as _;
use std::time::Duration;

use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use prost::Message as _;
use tonic::{Code, Status};

use super::secrets::Secrets;
use crate::fleeting::group::{
    CallError, CallErrorKind, ConnectInfo, GroupInfo, InstanceState, PluginStart, SeenInstance,
};
use crate::fleeting::wire::{
    self, ConnectInfoResponse, InitResponse, InstancesResponse, RpcStatus, SUSPEND_RESUME, UpdateResponse,
};

/// Most instances of a list.
const MOST_INSTANCES: usize = 20_000;
/// Longest id, in bytes.
const LONGEST_ID: usize = 512;
/// The number from which on a plugin means that it has no limit: Go's largest numbers arrive cut off.
const UNLIMITED: u32 = i32::MAX as u32;
/// The length of a wrong answer that a message shows, in characters.
const SHOWN: usize = 60;
/// Longest text of a plugin in a message, in characters.
const MAX_TEXT: usize = 400;
/// The beginning of the error of a configuration that the plugin's library cannot decode.
const UNDECODED: &str = "unmarshaling config:";

/// The reason Greenroom cannot use what a plugin answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PluginAnswerError {
    #[error("the plugin allows no instance: its maximum is 0")]
    NoInstances,
    /// The id is cleaned.
    #[error("the plugin lists an instance with the unusable id `{0}`")]
    Id(String),
    #[error("the plugin lists more than {MOST_INSTANCES} instances")]
    ManyInstances,
    #[error("the plugin answers with the port {0}")]
    Port(i64),
}

/// The group; an error is the plugin's configuration.
pub(super) fn group_info(answer: &InitResponse) -> Result<GroupInfo, PluginAnswerError> {
    if answer.max_size == 0 {
        return Err(PluginAnswerError::NoInstances);
    }
    let suspends = answer.capabilities.iter().any(|one| one == SUSPEND_RESUME);
    Ok(GroupInfo {
        id: clean_line(answer.id.as_bytes(), LONGEST_ID),
        max_size: (answer.max_size < UNLIMITED).then_some(answer.max_size),
        version: clean_line(answer.version.as_bytes(), SHOWN),
        suspends,
        start: PluginStart::default(),
        refusal: None,
    })
}

/// A list that grows as the plugin sends it.
#[derive(Debug, Default)]
pub(super) struct List {
    seen: Vec<SeenInstance>,
    places: HashMap<String, usize>,
}

impl List {
    /// Adds an instance; of an id that comes twice, the last state counts.
    pub(super) fn add(&mut self, answer: UpdateResponse) -> Result<(), PluginAnswerError> {
        let UpdateResponse { instance: id, state } = answer;
        if !is_id(&id) {
            return Err(PluginAnswerError::Id(clean_line(id.as_bytes(), SHOWN)));
        }
        let state = of_number(state);
        if let Some(at) = self.places.get(&id) {
            self.seen[*at].state = state;
            return Ok(());
        }
        if self.seen.len() == MOST_INSTANCES {
            return Err(PluginAnswerError::ManyInstances);
        }
        self.places.insert(id.clone(), self.seen.len());
        self.seen.push(SeenInstance { id, state });
        Ok(())
    }

    pub(super) fn all(self) -> Vec<SeenInstance> {
        self.seen
    }
}

/// Ids reach messages and records: printable, and not too long.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= LONGEST_ID && clean_line(id.as_bytes(), usize::MAX) == id
}

fn of_number(number: i32) -> InstanceState {
    match wire::State::try_from(number) {
        Ok(wire::State::Creating) => InstanceState::Creating,
        Ok(wire::State::Running) => InstanceState::Running,
        Ok(wire::State::Deleting) => InstanceState::Deleting,
        Ok(wire::State::Deleted) => InstanceState::Deleted,
        Ok(wire::State::Timeout) => InstanceState::Timeout,
        Ok(wire::State::Suspending) => InstanceState::Suspending,
        Ok(wire::State::Suspended) => InstanceState::Suspended,
        Ok(wire::State::Resuming) => InstanceState::Resuming,
        Err(_) => InstanceState::Unknown(number),
    }
}

/// The ids that were asked for, each once.
pub(super) fn only_asked(answered: Vec<String>, asked: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(asked.len().min(answered.len()));
    for id in answered {
        if asked.contains(&id) && !kept.contains(&id) {
            kept.push(id);
        }
    }
    kept
}

pub(super) fn connect_info(answer: ConnectInfoResponse) -> Result<ConnectInfo, PluginAnswerError> {
    let connector = answer.connector.unwrap_or_default();
    let port = match connector.protocol_port {
        0 => None,
        port => Some(u16::try_from(port).map_err(|_| PluginAnswerError::Port(port))?),
    };
    let line = |text: &str| clean_line(text.as_bytes(), LONGEST_ID);
    Ok(ConnectInfo {
        os: line(&connector.os),
        arch: line(&connector.arch),
        protocol: line(&connector.protocol),
        username: line(&connector.username),
        password: connector.password,
        key: connector.key,
        port,
        external_address: line(&answer.external_addr),
        internal_address: line(&answer.internal_addr),
        expires: (answer.expires != 0).then_some(answer.expires),
    })
}

impl CallError {
    pub(super) fn new(kind: CallErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// True if the connection failed: the plugin has exited, or is about to.
pub(super) fn is_transport(status: &Status) -> bool {
    status.source().is_some() || status.code() == Code::Unavailable
}

/// True if the plugin did not answer in time.
pub(super) fn is_late(status: &Status) -> bool {
    matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled)
}

/// The failure of a call that the plugin answered.
pub(super) fn answered_failure(call: &str, status: &Status, limit: Duration, secrets: &Secrets) -> CallError {
    let text = text(status, secrets);
    match status.code() {
        Code::Unimplemented => {
            CallError::new(CallErrorKind::Unsupported, format!("the plugin does not have the call {call}"))
        }
        _ if is_late(status) => late_failure(call, limit),
        _ => CallError::new(CallErrorKind::Refused, format!("the plugin's {call} failed: {text}")),
    }
}

/// The failure of `Init`: what the plugin cannot decode stays so until the operator changes it.
pub(super) fn init_failure(status: &Status, limit: Duration, secrets: &Secrets) -> CallError {
    let text = text(status, secrets);
    if is_late(status) {
        return CallError::new(CallErrorKind::NotStarted, late_failure("Init", limit).message);
    }
    let undecoded = status.message().trim_start().starts_with(UNDECODED);
    let kind = if undecoded { CallErrorKind::Configuration } else { CallErrorKind::NotStarted };
    CallError::new(kind, format!("the plugin does not accept its configuration: {text}"))
}

pub(super) fn late_failure(call: &str, limit: Duration) -> CallError {
    let why = format!("the plugin did not answer {call} within {}", Pretty(limit));
    CallError::new(CallErrorKind::Unknown, why)
}

fn text(status: &Status, secrets: &Secrets) -> String {
    let text = clean_line(secrets.hide(status.message()).as_bytes(), MAX_TEXT);
    if text.is_empty() { format!("{:?}", status.code()) } else { text }
}

/// The instances that a failed `Suspend` or `Resume` has done, from the error's details.
pub(super) fn done_in_part(method: &str, status: &Status) -> Vec<String> {
    let wanted = format!("/proto.{method}Response");
    let Ok(rpc) = RpcStatus::decode(status.details()) else { return Vec::new() };
    let details = rpc.details.iter().filter(|detail| detail.type_url.ends_with(&wanted));
    let decoded = details.filter_map(|detail| InstancesResponse::decode(detail.value.as_slice()).ok());
    decoded.flat_map(|done| done.succeeded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleeting::wire::{Any, ConnectorConfig};

    fn listed(id: &str, state: i32) -> UpdateResponse {
        UpdateResponse { instance: id.to_owned(), state }
    }

    #[test]
    fn a_size_that_go_cut_off_is_no_limit_and_none_is_an_error() {
        let size = |max_size| {
            group_info(&InitResponse { max_size, ..InitResponse::default() }).map(|group| group.max_size)
        };
        assert_eq!(size(1), Ok(Some(1)));
        assert_eq!(size(i32::MAX as u32 - 1), Ok(Some(i32::MAX as u32 - 1)));
        assert_eq!((size(i32::MAX as u32), size(u32::MAX)), (Ok(None), Ok(None)));
        assert!(size(0).is_err());
    }

    #[test]
    fn unknown_states_stay_numbers_and_the_last_state_of_an_id_counts() {
        let mut list = List::default();
        for (id, state) in [("a", 0), ("b", 1), ("a", 4), ("c", 8), ("d", -1)] {
            list.add(listed(id, state)).unwrap();
        }
        let all: Vec<_> = list.all().into_iter().map(|seen| (seen.id, seen.state)).collect();
        let expected = [
            ("a", InstanceState::Timeout),
            ("b", InstanceState::Running),
            ("c", InstanceState::Unknown(8)),
            ("d", InstanceState::Unknown(-1)),
        ];
        assert_eq!(all, expected.map(|(id, state)| (id.to_owned(), state)));
    }

    #[test]
    fn ids_are_printable_and_limited() {
        let mut list = List::default();
        for id in ["i-0abc", "/DC0/vm/a b", "größe", &"x".repeat(LONGEST_ID)] {
            list.add(listed(id, 1)).unwrap();
        }
        for id in ["", " ", "a\nb", "a\u{1b}[0m", "a  b", "\u{202e}a", &"x".repeat(LONGEST_ID + 1)] {
            assert!(list.add(listed(id, 1)).unwrap_err().to_string().contains("unusable id"), "{id:?}");
        }
    }

    #[test]
    fn a_list_has_a_limit() {
        let mut list = List::default();
        for n in 0..MOST_INSTANCES {
            list.add(listed(&n.to_string(), 1)).unwrap();
        }
        list.add(listed("0", 2)).unwrap();
        assert!(list.add(listed("one more", 1)).unwrap_err().to_string().contains("more than 20000"));
    }

    #[test]
    fn an_answer_has_only_what_was_asked_for() {
        let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(only_asked(texts(&["b", "x", "b", "a"]), &texts(&["a", "b", "c"])), ["b", "a"]);
    }

    #[test]
    fn ports_and_missing_connectors_are_checked() {
        let of = |protocol_port| {
            let connector = Some(ConnectorConfig { protocol_port, ..ConnectorConfig::default() });
            connect_info(ConnectInfoResponse { connector, ..ConnectInfoResponse::default() })
        };
        assert_eq!((of(0).unwrap().port, of(22).unwrap().port), (None, Some(22)));
        assert!(of(65536).is_err() && of(-1).is_err());
        assert_eq!(connect_info(ConnectInfoResponse::default()).unwrap().expires, None);
    }

    const LIMIT: Duration = Duration::from_secs(5);

    fn kind(status: &Status) -> CallErrorKind {
        answered_failure("Update", status, LIMIT, &Secrets::default()).kind
    }

    #[test]
    fn each_answer_has_its_meaning() {
        assert_eq!(kind(&Status::unknown("no quota")), CallErrorKind::Refused);
        assert_eq!(kind(&Status::unimplemented("")), CallErrorKind::Unsupported);
        assert_eq!(kind(&Status::deadline_exceeded("")), CallErrorKind::Unknown);
        assert_eq!(kind(&Status::cancelled("Timeout expired")), CallErrorKind::Unknown);
        assert!(is_transport(&Status::unavailable("Connection refused")));
        assert!(!is_transport(&Status::unknown("transport error")), "the words are the plugin's");
        assert!(is_transport(&Status::from_error(Box::new(std::io::Error::other("broken pipe")))));
    }

    #[test]
    fn texts_are_one_line_without_secrets() {
        let mut secrets = Secrets::default();
        secrets.add("tok-12345");
        let error =
            answered_failure("Increase", &Status::unknown("bad tok-12345\n\x1b[31mquota"), LIMIT, &secrets);
        assert_eq!(error.message, "the plugin's Increase failed: bad [hidden] quota");
        let empty = answered_failure("Increase", &Status::unknown(""), LIMIT, &secrets).message;
        assert_eq!(empty, "the plugin's Increase failed: Unknown");
    }

    #[test]
    fn a_configuration_that_cannot_be_decoded_is_the_operators() {
        let of = |text: &str| init_failure(&Status::unknown(text), LIMIT, &Secrets::default()).kind;
        assert_eq!(of("unmarshaling config: json: cannot"), CallErrorKind::Configuration);
        assert_eq!(of("dial tcp: no route to host"), CallErrorKind::NotStarted, "it may pass");
    }

    #[test]
    fn what_was_done_in_part_is_in_the_details() {
        let done = InstancesResponse { succeeded: vec!["a".into(), "b".into()] };
        let any = |name: &str| Any {
            type_url: format!("type.googleapis.com/proto.{name}"),
            value: done.encode_to_vec(),
        };
        let rpc = RpcStatus {
            code: 2,
            message: String::new(),
            details: vec![any("Other"), any("SuspendResponse")],
        };
        let status = Status::with_details(Code::Unknown, "partly", rpc.encode_to_vec().into());
        assert_eq!(done_in_part("Suspend", &status), ["a", "b"]);
        assert_eq!(done_in_part("Resume", &status), [""; 0]);
        assert_eq!(done_in_part("Suspend", &Status::unknown("no details")), [""; 0]);
        assert_eq!(
            done_in_part("Suspend", &Status::with_details(Code::Unknown, "", b"\xff\xff".to_vec().into())),
            [""; 0]
        );
    }
}
