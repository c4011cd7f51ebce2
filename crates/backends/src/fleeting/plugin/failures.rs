//! What a failed call means.

use std::error::Error as _;
use std::time::Duration;

use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use prost::Message as _;
use tonic::{Code, Status};

use super::secrets::Secrets;
use crate::fleeting::group::{CallError, CallErrorKind};
use crate::fleeting::wire::messages::InstancesResponse;
use crate::fleeting::wire::services::RpcStatus;

/// Longest text of a plugin in a message, in characters.
const LONGEST: usize = 400;
/// How the error of a configuration begins that the plugin's library cannot decode.
const UNDECODED: &str = "unmarshaling config:";

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
pub(super) fn answered(call: &str, status: &Status, limit: Duration, secrets: &Secrets) -> CallError {
    let text = text(status, secrets);
    match status.code() {
        Code::Unimplemented => {
            CallError::new(CallErrorKind::Unsupported, format!("the plugin does not have the call {call}"))
        }
        _ if is_late(status) => late(call, limit),
        _ => CallError::new(CallErrorKind::Refused, format!("the plugin's {call} failed: {text}")),
    }
}

/// The failure of `Init`: what the plugin cannot decode stays so until the operator changes it.
pub(super) fn init(status: &Status, limit: Duration, secrets: &Secrets) -> CallError {
    let text = text(status, secrets);
    if is_late(status) {
        return CallError::new(CallErrorKind::NotStarted, late("Init", limit).message);
    }
    let undecoded = status.message().trim_start().starts_with(UNDECODED);
    let kind = if undecoded { CallErrorKind::Configuration } else { CallErrorKind::NotStarted };
    CallError::new(kind, format!("the plugin does not accept its configuration: {text}"))
}

pub(super) fn late(call: &str, limit: Duration) -> CallError {
    let why = format!("the plugin did not answer {call} within {}", Pretty(limit));
    CallError::new(CallErrorKind::Unknown, why)
}

fn text(status: &Status, secrets: &Secrets) -> String {
    let text = clean_line(secrets.hide(status.message()).as_bytes(), LONGEST);
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
    use crate::fleeting::wire::services::Any;

    const LIMIT: Duration = Duration::from_secs(5);

    fn kind(status: &Status) -> CallErrorKind {
        answered("Update", status, LIMIT, &Secrets::default()).kind
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
        let error = answered("Increase", &Status::unknown("bad tok-12345\n\x1b[31mquota"), LIMIT, &secrets);
        assert_eq!(error.message, "the plugin's Increase failed: bad [hidden] quota");
        let empty = answered("Increase", &Status::unknown(""), LIMIT, &secrets).message;
        assert_eq!(empty, "the plugin's Increase failed: Unknown");
    }

    #[test]
    fn a_configuration_that_cannot_be_decoded_is_the_operators() {
        let of = |text: &str| init(&Status::unknown(text), LIMIT, &Secrets::default()).kind;
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
