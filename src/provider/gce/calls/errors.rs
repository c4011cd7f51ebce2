//! What Compute Engine's errors mean.

use std::error::Error as _;

use google_cloud_compute_v1::Error;
use google_cloud_compute_v1::errors::OperationError;
use google_cloud_compute_v1::model::Operation;
use google_cloud_gax::error::CredentialsError;
use google_cloud_gax::error::rpc::StatusDetails;

use crate::core::failure::ErrorClass;
use crate::core::text::clean_line;
use crate::port::provider::ProviderError;

/// The most of Compute Engine's own words that is told, in characters.
const WORDS: usize = 300;

/// What was asked, as far as its errors mean different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// To make something: what is not found is something that it names.
    New,
    /// About something, or for its end: asking again does no harm.
    Known,
}

/// An error of a call. `place`: what has no capacity where that is the answer.
pub(super) fn read(error: &Error, asked: Asked, place: &str) -> ProviderError {
    let told = |words: &str| clean_line(words.as_bytes(), WORDS);
    if error.is_authentication() {
        return no_credentials(error.source().and_then(|source| source.downcast_ref()), &told(&chain(error)));
    }
    if let Some(status) = error.http_status_code() {
        let (reason, words) = (reason(error), error.status().map_or("", |status| status.message.as_str()));
        let said = if words.is_empty() { "not an answer of Compute Engine" } else { words };
        let class = class(&reason, status, asked, place);
        return ProviderError::new(class, told(&format!("{}: {said}", label(&reason, status))));
    }
    let class = if error.is_connect() {
        ErrorClass::Transient
    } else if error.is_binding() || error.is_serialization() {
        ErrorClass::Invalid
    } else {
        no_answer(asked)
    };
    ProviderError::new(class, told(&chain(error)))
}

/// How an operation that is done has failed; `None`: it has not.
pub(super) fn of_operation(operation: &Operation, place: &str) -> Option<ProviderError> {
    // Only this looks for an error: the state `DONE` alone says nothing.
    let OperationError::Generic(error) = operation.clone().to_result().err()? else { return None };
    let first = error.details.as_ref().and_then(|details| details.errors.first());
    let code = first.and_then(|first| first.code.as_deref()).unwrap_or_default();
    let status = error.status_code.and_then(|status| u16::try_from(status).ok()).unwrap_or(400);
    let words = first.and_then(|first| first.message.as_deref()).or(error.message.as_deref());
    let class = match class(code, status, Asked::New, place) {
        // An operation that is done is an answer.
        ErrorClass::Unknown => ErrorClass::Transient,
        class => class,
    };
    let told = format!("{}: {}", label(code, status), words.unwrap_or_default());
    Some(ProviderError::new(class, clean_line(told.as_bytes(), WORDS)))
}

/// Is it this reason, however it is written? Requests say `rateLimitExceeded`, operations `RATE_LIMIT_EXCEEDED`.
pub(super) fn is(error: &Error, wanted: &str) -> bool {
    plain(&reason(error)) == plain(wanted)
}

fn no_answer(asked: Asked) -> ErrorClass {
    match asked {
        Asked::New => ErrorClass::Unknown,
        Asked::Known => ErrorClass::Transient,
    }
}

fn no_credentials(cause: Option<&CredentialsError>, told: &str) -> ProviderError {
    let passes = cause.is_some_and(CredentialsError::is_transient);
    let class = if passes { ErrorClass::Transient } else { ErrorClass::Denied };
    ProviderError::new(class, format!("no credentials for Compute Engine: {told}"))
}

fn chain(error: &Error) -> String {
    let mut causes = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        // The libraries' own texts have their causes at the end as a rule.
        if causes.iter().all(|known| !known.contains(&text)) {
            causes.push(text);
        }
        source = cause.source();
    }
    causes.join(": ")
}

/// Compute Engine's own word for what is wrong; empty where it has none.
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

/// By the reason of a request or the code of an operation; by status where there is none that we know.
fn class(reason: &str, status: u16, asked: Asked, place: &str) -> ErrorClass {
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
            404 | 410 if asked == Asked::Known => ErrorClass::NotFound,
            409 | 412 => ErrorClass::Transient,
            429 => ErrorClass::Throttled { until: None },
            408 | 500.. => no_answer(asked),
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
        use Asked::{Known, New};
        let throttled = ErrorClass::Throttled { until: None };
        for (reason, status, asked, wanted) in [
            ("rateLimitExceeded", 403, Known, throttled.clone()),
            ("RATE_LIMIT_EXCEEDED", 403, New, throttled.clone()),
            ("", 429, New, throttled),
            ("quotaExceeded", 403, New, ErrorClass::Quota),
            ("limitExceeded", 403, New, ErrorClass::Quota),
            ("forbidden", 403, New, ErrorClass::Denied),
            ("accessNotConfigured", 403, Known, ErrorClass::Denied),
            ("authError", 401, Known, ErrorClass::Denied),
            ("invalid", 400, New, ErrorClass::Invalid),
            ("notFound", 404, New, ErrorClass::Invalid),
            ("notFound", 404, Known, ErrorClass::NotFound),
            ("resourceNotReady", 400, Known, ErrorClass::Transient),
            ("conditionNotMet", 412, Known, ErrorClass::Transient),
            ("backendError", 503, New, ErrorClass::Unknown),
            ("backendError", 503, Known, ErrorClass::Transient),
            ("", 502, New, ErrorClass::Unknown),
        ] {
            assert_eq!(class(reason, status, asked, PLACE), wanted, "{reason} {status}");
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
        let class = |error: &Error, asked| read(error, asked, PLACE).class().clone();
        assert_eq!(class(&Error::io("reset"), Asked::New), ErrorClass::Unknown);
        assert_eq!(class(&Error::timeout("late"), Asked::New), ErrorClass::Unknown);
        assert_eq!(class(&Error::deser("odd"), Asked::New), ErrorClass::Unknown);
        assert_eq!(class(&Error::io("reset"), Asked::Known), ErrorClass::Transient);
        assert_eq!(class(&Error::connect("refused"), Asked::New), ErrorClass::Transient, "nothing was said");
        let nobody = Error::authentication(CredentialsError::from_msg(false, "no key"));
        assert_eq!(class(&nobody, Asked::New), ErrorClass::Denied);
        assert!(read(&nobody, Asked::New, PLACE).to_string().contains("no key"));
    }
}
