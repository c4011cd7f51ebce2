//! Compute Engine's errors and their classes.

use std::error::Error as _;

use google_cloud_compute_v1::Error;
use google_cloud_compute_v1::errors::OperationError;
use google_cloud_compute_v1::model::Operation;
use google_cloud_gax::error::CredentialsError;
use google_cloud_gax::error::rpc::StatusDetails;
use greenroom_core::failure::ErrorClass;
use greenroom_core::text::{clean_line, with_causes};
use greenroom_ports::provider::ProviderError;

use crate::cloud::api::CallKind;

/// Maximum length of a reported message, in characters.
const MAX_MESSAGE: usize = 300;

/// The error of a call. `place`: what has no capacity, if that is the error.
pub(super) fn read(error: &Error, kind: CallKind, place: &str) -> ProviderError {
    let line = |message: &str| clean_line(message.as_bytes(), MAX_MESSAGE);
    if error.is_authentication() {
        return no_credentials(
            error.source().and_then(|source| source.downcast_ref()),
            &line(&with_causes(error)),
        );
    }
    if let Some(status) = error.http_status_code() {
        let reason = reason(error);
        let text = error.status().map_or("", |status| status.message.as_str());
        let text = if text.is_empty() { "not an answer of Compute Engine" } else { text };
        let class = class(&reason, status, kind, place);
        return ProviderError::new(class, line(&format!("{}: {text}", label(&reason, status))));
    }
    let class = if error.is_connect() {
        ErrorClass::Transient
    } else if error.is_binding() || error.is_serialization() {
        ErrorClass::Invalid
    } else {
        kind.unanswered()
    };
    ProviderError::new(class, line(&with_causes(error)))
}

/// The error of an operation that is done; `None` if it succeeded.
pub(super) fn of_operation(operation: &Operation, place: &str) -> Option<ProviderError> {
    // Only `to_result` checks for an error: the state `DONE` does not imply success.
    let OperationError::Generic(error) = operation.clone().to_result().err()? else { return None };
    let first = error.details.as_ref().and_then(|details| details.errors.first());
    let code = first.and_then(|first| first.code.as_deref()).unwrap_or_default();
    let status = error.status_code.and_then(|status| u16::try_from(status).ok()).unwrap_or(400);
    let message = first.and_then(|first| first.message.as_deref()).or(error.message.as_deref());
    let class = match class(code, status, CallKind::Create, place) {
        // An operation that is done is a definite answer.
        ErrorClass::Unknown => ErrorClass::Transient,
        class => class,
    };
    let line = format!("{}: {}", label(code, status), message.unwrap_or_default());
    Some(ProviderError::new(class, clean_line(line.as_bytes(), MAX_MESSAGE)))
}

/// True for this reason in any spelling: `rateLimitExceeded` of requests, `RATE_LIMIT_EXCEEDED` of operations.
pub(super) fn is(error: &Error, wanted: &str) -> bool {
    plain(&reason(error)) == plain(wanted)
}

fn no_credentials(cause: Option<&CredentialsError>, message: &str) -> ProviderError {
    let passes = cause.is_some_and(CredentialsError::is_transient);
    let class = if passes { ErrorClass::Transient } else { ErrorClass::Denied };
    ProviderError::new(class, format!("no credentials for Compute Engine: {message}"))
}

/// Compute Engine's reason for the error; empty if it gives none.
fn reason(error: &Error) -> String {
    let details = error.status().map(|status| status.details.as_slice()).unwrap_or_default();
    let reason = details.iter().find_map(|detail| match detail {
        StatusDetails::ErrorInfo(info) => Some(info.reason.clone()),
        _ => None,
    });
    reason.unwrap_or_default()
}

fn label(reason: &str, status: u16) -> String {
    if reason.is_empty() { format!("HTTP {status}") } else { reason.to_owned() }
}

fn plain(reason: &str) -> String {
    reason.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// The class of an error by the reason of a request or the code of an operation; by status if that is unknown.
fn class(reason: &str, status: u16, kind: CallKind, place: &str) -> ErrorClass {
    match plain(reason).as_str() {
        "ratelimitexceeded" | "userratelimitexceeded" => ErrorClass::Throttled { until: None },
        "resourcenotready" | "resourceinusebyanotherresource" | "conditionnotmet" => ErrorClass::Transient,
        full if full.contains("resourcepoolexhausted") || full.starts_with("ipspaceexhausted") => {
            ErrorClass::NoCapacity { scope: place.to_owned() }
        }
        limit if limit.ends_with("quotaexceeded") || limit.ends_with("limitexceeded") => ErrorClass::Quota,
        "forbidden" | "permissionserror" => ErrorClass::Denied,
        _ => match status {
            401 | 403 => ErrorClass::Denied,
            404 | 410 if kind == CallKind::Existing => ErrorClass::NotFound,
            409 | 412 => ErrorClass::Transient,
            429 => ErrorClass::Throttled { until: None },
            408 | 500.. => kind.unanswered(),
            _ => ErrorClass::Invalid,
        },
    }
}

#[cfg(test)]
mod tests {
    use google_cloud_compute_v1::model::operation;
    use google_cloud_gax::error::CredentialsError;

    use super::*;

    const PLACE: &str = "e2-medium in us-east1-b";

    fn full() -> ErrorClass {
        ErrorClass::NoCapacity { scope: PLACE.to_owned() }
    }

    #[test]
    fn each_answer_has_the_class_that_decides_what_happens_next() {
        use CallKind::{Create, Existing};
        let throttled = ErrorClass::Throttled { until: None };
        for (reason, status, kind, wanted) in [
            ("rateLimitExceeded", 403, Existing, throttled.clone()),
            ("RATE_LIMIT_EXCEEDED", 403, Create, throttled.clone()),
            ("", 429, Create, throttled),
            ("quotaExceeded", 403, Create, ErrorClass::Quota),
            ("limitExceeded", 403, Create, ErrorClass::Quota),
            ("forbidden", 403, Create, ErrorClass::Denied),
            ("accessNotConfigured", 403, Existing, ErrorClass::Denied),
            ("authError", 401, Existing, ErrorClass::Denied),
            ("invalid", 400, Create, ErrorClass::Invalid),
            ("notFound", 404, Create, ErrorClass::Invalid),
            ("notFound", 404, Existing, ErrorClass::NotFound),
            ("resourceNotReady", 400, Existing, ErrorClass::Transient),
            ("conditionNotMet", 412, Existing, ErrorClass::Transient),
            ("backendError", 503, Create, ErrorClass::Unknown),
            ("backendError", 503, Existing, ErrorClass::Transient),
            ("", 502, Create, ErrorClass::Unknown),
        ] {
            assert_eq!(class(reason, status, kind, PLACE), wanted, "{reason} {status}");
        }
    }

    #[test]
    fn an_operation_that_is_done_is_a_definite_answer() {
        let failed = |code: &str, status: i32| {
            let first = operation::error::Errors::new().set_code(code).set_message("no luck");
            let operation = Operation::new()
                .set_status(operation::Status::Done)
                .set_error(operation::Error::new().set_errors([first]))
                .set_http_error_status_code(status);
            of_operation(&operation, PLACE).map(|error| (error.class().clone(), error.failure.message))
        };
        for (code, status, wanted) in [
            ("ZONE_RESOURCE_POOL_EXHAUSTED", 503, full()),
            ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503, full()),
            ("IP_SPACE_EXHAUSTED", 400, full()),
            ("QUOTA_EXCEEDED", 403, ErrorClass::Quota),
            ("PERMISSIONS_ERROR", 403, ErrorClass::Denied),
            ("RESOURCE_NOT_FOUND", 404, ErrorClass::Invalid),
            ("INTERNAL_ERROR", 500, ErrorClass::Transient),
        ] {
            assert_eq!(failed(code, status), Some((wanted, format!("{code}: no luck"))));
        }
        assert_eq!(
            of_operation(&Operation::new().set_status(operation::Status::Done), PLACE).map(|_| ()),
            None
        );
    }

    #[test]
    fn silence_is_unknown_only_for_what_makes_something() {
        let class = |error: &Error, kind| read(error, kind, PLACE).class().clone();
        assert_eq!(class(&Error::io("reset"), CallKind::Create), ErrorClass::Unknown);
        assert_eq!(class(&Error::timeout("late"), CallKind::Create), ErrorClass::Unknown);
        assert_eq!(class(&Error::deser("odd"), CallKind::Create), ErrorClass::Unknown);
        assert_eq!(class(&Error::io("reset"), CallKind::Existing), ErrorClass::Transient);
        assert_eq!(
            class(&Error::connect("refused"), CallKind::Create),
            ErrorClass::Transient,
            "nothing was said"
        );
        let denied = Error::authentication(CredentialsError::from_msg(false, "no key"));
        assert_eq!(class(&denied, CallKind::Create), ErrorClass::Denied);
        assert!(read(&denied, CallKind::Create, PLACE).to_string().contains("no key"));
    }
}
