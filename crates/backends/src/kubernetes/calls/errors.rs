//! The API server's errors and their classes.

use std::error::Error as _;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::text::{clean_line, with_causes};
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;
use hyper_util::client::legacy;
use kube::core::Status;

use crate::cloud::api::CallKind;

/// Maximum length of a reported message, in characters.
const MAX_MESSAGE: usize = 400;

/// A failed call, with what the server said.
#[derive(Debug, Clone)]
pub(super) struct FailedCall {
    /// `None`: no answer arrived.
    pub(super) status: Option<u16>,
    /// The reason in the answer, such as `AlreadyExists`.
    pub(super) reason: String,
    /// True if the server lacks the namespace.
    pub(super) lacks_namespace: bool,
    /// True if a policy of the cluster denied the object: an admission webhook, or a ValidatingAdmissionPolicy.
    pub(super) by_policy: bool,
    pub(super) error: ProviderError,
}

impl From<ProviderError> for FailedCall {
    fn from(error: ProviderError) -> Self {
        Self { status: None, reason: String::new(), lacks_namespace: false, by_policy: false, error }
    }
}

impl From<FailedCall> for ProviderError {
    fn from(failed: FailedCall) -> Self {
        failed.error
    }
}

impl FailedCall {
    pub(super) fn is(&self, status: u16, reason: &str) -> bool {
        self.status == Some(status) && self.reason == reason
    }

    /// True if the API server denies that the object exists. A proxy before it may answer 404, too.
    pub(super) fn is_absent(&self) -> bool {
        self.is(404, "NotFound") && *self.error.class() == ErrorClass::NotFound
    }
}

/// An answer that is not a success.
pub(super) fn of_answer(
    status: u16,
    body: &[u8],
    retry_after_s: Option<u32>,
    kind: CallKind,
    now: Stamp,
) -> FailedCall {
    let said: Status = serde_json::from_slice(body).unwrap_or_default();
    let details = said.details.as_ref();
    let retry_after_s =
        retry_after_s.or(details.map(|details| details.retry_after_seconds).filter(|s| *s > 0));
    let class = class(status, &said, kind, retry_after_s.map(|s| now.plus(Duration::from_secs(s.into()))));
    let text = if said.message.is_empty() {
        String::from_utf8_lossy(body).into_owned()
    } else {
        said.message.clone()
    };
    let label = if said.reason.is_empty() { format!("HTTP {status}") } else { said.reason.clone() };
    let line = clean_line(format!("{label}: {text}").as_bytes(), MAX_MESSAGE);
    let lacks_namespace = status == 404 && details.is_some_and(|details| details.kind == "namespaces");
    let error = ProviderError::new(class, line);
    let by_policy = kind == CallKind::Create && is_denied_by_policy(&said.message);
    FailedCall { status: Some(status), reason: said.reason, lacks_namespace, by_policy, error }
}

/// No answer, or a broken one.
pub(super) fn of_transport(error: &kube::Error, kind: CallKind) -> ProviderError {
    let class = match error {
        kube::Error::Auth(_) => ErrorClass::Denied,
        _ if was_not_sent(error) => ErrorClass::Transient,
        _ => kind.unanswered(),
    };
    let line = format!("no answer of the API server: {}", with_causes(error));
    ProviderError::new(class, clean_line(line.as_bytes(), MAX_MESSAGE))
}

/// No answer within the limit.
pub(super) fn no_answer(kind: CallKind, within: Duration) -> ProviderError {
    let why = format!("no answer of the API server within {} s", within.as_secs());
    ProviderError::new(kind.unanswered(), why)
}

/// True if no connection came about.
fn was_not_sent(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(error) = cause {
        if error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The class that decides what happens next. `until`: the server asks for a pause.
fn class(status: u16, said: &Status, kind: CallKind, until: Option<Stamp>) -> ErrorClass {
    let details = said.details.as_ref();
    let of_kind = |kinds: &str| details.is_some_and(|details| details.kind == kinds);
    let has_cause =
        |name: &str| details.is_some_and(|details| details.causes.iter().any(|cause| cause.reason == name));
    let says = |text: &str| said.message.contains(text);
    match status {
        // A webhook chooses the status of its denial.
        _ if kind == CallKind::Create && is_denied_by_policy(&said.message) => ErrorClass::Denied,
        403 if says("exceeded quota:") => ErrorClass::Quota,
        403 if has_cause("NamespaceTerminating") || REFUSED_POD.iter().any(|text| says(text)) => {
            ErrorClass::Invalid
        }
        401 | 403 => ErrorClass::Denied,
        404 if of_kind("namespaces") || kind == CallKind::Create => ErrorClass::Invalid,
        // Only the API server itself knows that something does not exist.
        404 if said.reason == "NotFound" => ErrorClass::NotFound,
        // Two requests changed the same quota.
        409 if said.reason == "Conflict" && kind == CallKind::Create => ErrorClass::Transient,
        409 if kind == CallKind::Existing => ErrorClass::NotFound,
        404 | 410 => ErrorClass::Transient,
        429 => ErrorClass::Throttled { until },
        408 | 500.. => kind.unanswered(),
        _ => ErrorClass::Invalid,
    }
}

/// The API server's own beginning of the message, which no name or image in the request can take.
fn is_denied_by_policy(message: &str) -> bool {
    let webhook = || message.starts_with("admission webhook \"") && message.contains("\" denied the request");
    let policy = || {
        let rest = message.split_once(" is forbidden: ").map_or(message, |(_, rest)| rest);
        let by_rule = rest.starts_with("ValidatingAdmissionPolicy '") && rest.contains(" denied request: ");
        by_rule || rest.starts_with("image policy webhook backend denied one or more images")
    };
    webhook() || policy()
}

/// Texts of admission that no reason tells from missing permissions.
const REFUSED_POD: [&str; 6] = [
    "violates PodSecurity",
    "error looking up service account",
    "no PriorityClass with name",
    "RuntimeClass",
    "usage per",
    "must specify",
];

#[cfg(test)]
mod tests {
    use greenroom_core::time::{BootId, ManagerId};
    use serde_json::{Value, json};

    use super::*;

    const NOW: Stamp = Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 1_000 };

    fn status(reason: &str, message: &str, details: &Value) -> Vec<u8> {
        let text = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message,
            "details": details,
        });
        text.to_string().into_bytes()
    }

    fn of(code: u16, body: &[u8], kind: CallKind) -> ErrorClass {
        of_answer(code, body, None, kind, NOW).error.class().clone()
    }

    #[test]
    fn each_answer_has_the_class_that_decides_what_happens_next() {
        use CallKind::{Create, Existing};
        let quota =
            "pods \"a\" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2";
        let restricted =
            "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": runAsNonRoot != true";
        let account =
            "pods \"a\" is forbidden: error looking up service account ci/x: serviceaccount \"x\" not found";
        let priority = "pods \"a\" is forbidden: no PriorityClass with name x was found";
        let limits = "pods \"a\" is forbidden: maximum memory usage per Container is 1Gi, but limit is 4Gi";
        let compute = "pods \"a\" is forbidden: failed quota: compute: must specify limits.cpu for: job";
        let user = "pods is forbidden: User \"ci\" cannot create resource \"pods\" in API group \"\" in the namespace \"x\"";
        let terminating =
            json!({ "causes": [{ "reason": "NamespaceTerminating", "field": "metadata.namespace" }] });
        let denied =
            "admission webhook \"images.example.com\" denied the request: registry `evil` is not allowed";
        let policy = "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'images' with binding 'ci' denied request: no";
        let image_policy =
            "pods \"a\" is forbidden: image policy webhook backend denied one or more images: no";
        let hook = "Internal error occurred: failed calling webhook \"x\": context deadline exceeded";
        for (code, reason, message, details, kind, wanted) in [
            (401, "Unauthorized", "Unauthorized", json!({}), Create, ErrorClass::Denied),
            (403, "Forbidden", quota, json!({}), Create, ErrorClass::Quota),
            (403, "Forbidden", restricted, json!({}), Create, ErrorClass::Invalid),
            (403, "Forbidden", account, json!({}), Create, ErrorClass::Invalid),
            (403, "Forbidden", priority, json!({}), Create, ErrorClass::Invalid),
            (403, "Forbidden", limits, json!({}), Create, ErrorClass::Invalid),
            (403, "Forbidden", compute, json!({}), Create, ErrorClass::Invalid),
            (403, "Forbidden", "it is being terminated", terminating, Create, ErrorClass::Invalid),
            (403, "Forbidden", user, json!({ "kind": "pods" }), Create, ErrorClass::Denied),
            (403, "Forbidden", user, json!({ "kind": "pods" }), Existing, ErrorClass::Denied),
            (404, "NotFound", "no pod", json!({ "kind": "pods" }), Existing, ErrorClass::NotFound),
            (404, "NotFound", "no namespace", json!({ "kind": "namespaces" }), Existing, ErrorClass::Invalid),
            (404, "NotFound", "no namespace", json!({ "kind": "namespaces" }), Create, ErrorClass::Invalid),
            (409, "AlreadyExists", "pods \"a\" already exists", json!({}), Create, ErrorClass::Invalid),
            (
                409,
                "Conflict",
                "resourcequotas \"q\" has been modified",
                json!({}),
                Create,
                ErrorClass::Transient,
            ),
            (409, "Conflict", "the UID does not match", json!({}), Existing, ErrorClass::NotFound),
            (410, "Expired", "the continue token is too old", json!({}), Existing, ErrorClass::Transient),
            (
                400,
                "BadRequest",
                "strict decoding error: unknown field \"x\"",
                json!({}),
                Create,
                ErrorClass::Invalid,
            ),
            (422, "Invalid", "spec.x is wrong", json!({}), Create, ErrorClass::Invalid),
            (500, "InternalError", hook, json!({}), Create, ErrorClass::Unknown),
            (400, "BadRequest", denied, json!({}), Create, ErrorClass::Denied),
            (403, "Forbidden", denied, json!({}), Create, ErrorClass::Denied),
            (500, "InternalError", denied, json!({}), Create, ErrorClass::Denied),
            (403, "Forbidden", image_policy, json!({}), Create, ErrorClass::Denied),
            (422, "Invalid", policy, json!({}), Create, ErrorClass::Denied),
            (500, "ServerTimeout", "later", json!({}), Existing, ErrorClass::Transient),
            (503, "ServiceUnavailable", "etcd", json!({}), Create, ErrorClass::Unknown),
            (504, "Timeout", "late", json!({}), Create, ErrorClass::Unknown),
        ] {
            assert_eq!(of(code, &status(reason, message, &details), kind), wanted, "{code} {message}");
        }
        assert_eq!(of(404, b"<html>", Existing), ErrorClass::Transient, "a proxy knows of no pod");
    }

    #[test]
    fn only_the_servers_own_words_tell_of_a_policy() {
        let by_policy = |message: &str, kind| {
            of_answer(403, &status("Forbidden", message, &json!({})), None, kind, NOW).by_policy
        };
        let webhook = "admission webhook \"a\" denied the request without explanation";
        assert!(by_policy(webhook, CallKind::Create) && !by_policy(webhook, CallKind::Existing));
        for message in [
            "Pod \"a\" is invalid: spec.containers[0].image: Invalid value: \"admission webhook \\\"a\\\" denied the request\"",
            "failed calling webhook \"a\": no endpoints available",
            "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\"",
        ] {
            assert!(!by_policy(message, CallKind::Create), "{message}");
        }
    }

    #[test]
    fn a_pause_is_the_one_that_the_server_asks_for() {
        let until = |seconds| ErrorClass::Throttled { until: Some(NOW.plus(Duration::from_secs(seconds))) };
        let text = b"Too many requests, please try again later.\n";
        let of = |body: &[u8], header| of_answer(429, body, header, CallKind::Existing, NOW).error;
        assert_eq!(of(text, Some(7)).class(), &until(7));
        assert_eq!(of(text, Some(7)).failure.message, "HTTP 429: Too many requests, please try again later.");
        let body =
            status("TooManyRequests", "storage is (re)initializing", &json!({ "retryAfterSeconds": 2 }));
        assert_eq!(of(&body, None).class(), &until(2));
        assert_eq!(of(text, None).class(), &ErrorClass::Throttled { until: None });
    }

    #[test]
    fn silence_is_unknown_only_for_what_makes_something() {
        let late = |kind| no_answer(kind, Duration::from_secs(45)).class().clone();
        assert_eq!(
            (late(CallKind::Create), late(CallKind::Existing)),
            (ErrorClass::Unknown, ErrorClass::Transient)
        );
        let broken = kube::Error::Service("connection reset".into());
        assert_eq!(of_transport(&broken, CallKind::Create).class(), &ErrorClass::Unknown);
        assert_eq!(of_transport(&broken, CallKind::Existing).class(), &ErrorClass::Transient);
    }
}
