//! EC2's errors and their classes.

use std::error::Error;
use std::fmt::Debug;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use greenroom_core::failure::ErrorClass;
use greenroom_core::text::{clean_line, with_causes};
use greenroom_ports::provider::ProviderError;

/// Maximum length of a reported message, in characters: a denial contains a kilobyte of encoded reasons.
const MAX_MESSAGE: usize = 300;

/// The token was used before, with other parameters.
pub(super) const MISMATCH: &str = "IdempotentParameterMismatch";

/// The error of a call, with its class. `place`: what has no capacity, if that is the error.
pub(super) fn read<E>(error: &SdkError<E, HttpResponse>, place: &str) -> ProviderError
where
    E: ProvideErrorMetadata + Error + Debug + 'static,
{
    if let SdkError::ServiceError(answer) = error {
        let status = answer.raw().status().as_u16();
        let code = answer.err().code();
        let message = answer.err().message().unwrap_or_default();
        let message =
            message.split("Encoded authorization failure message").next().unwrap_or_default().trim();
        let line = match (code, message) {
            (Some(code), "") => code.to_owned(),
            (Some(code), message) => format!("{code}: {message}"),
            // Not EC2's own answer, but that of a proxy or of another service at this address.
            (None, _) => format!("HTTP status {status}, without an error of AWS: {}", body(answer.raw())),
        };
        return ProviderError::new(class(code, status, place), clean_line(line.as_bytes(), MAX_MESSAGE));
    }
    let line = clean_line(with_causes(error).as_bytes(), MAX_MESSAGE);
    if has_no_credentials(error) {
        return ProviderError::new(ErrorClass::Denied, format!("no credentials for EC2: {line}"));
    }
    match error {
        SdkError::ConstructionFailure(_) => ProviderError::new(ErrorClass::Invalid, line),
        // EC2 may have carried out the call or not.
        _ => ProviderError::new(ErrorClass::Unknown, line),
    }
}

/// The begin of an answer's text.
fn body(answer: &HttpResponse) -> String {
    let text = answer.body().bytes().unwrap_or_default();
    match clean_line(text, MAX_MESSAGE).as_str() {
        "" => "the answer is empty".to_owned(),
        text => format!("`{text}`"),
    }
}

/// The code of an error that EC2 returned.
pub(super) fn code<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Option<&str> {
    error.as_service_error()?.code()
}

fn has_no_credentials(error: &(dyn Error + 'static)) -> bool {
    let mut source = Some(error);
    while let Some(cause) = source {
        if cause.is::<CredentialsError>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// The class of an error by its code, from EC2's reference ("Error codes for the Amazon EC2 API"); by status if the code is
/// unknown.
fn class(code: Option<&str>, status: u16, place: &str) -> ErrorClass {
    let scope = || place.to_owned();
    match code.unwrap_or_default() {
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientReservedInstanceCapacity"
        | "InsufficientCapacity"
        | "InsufficientFreeAddressesInSubnet"
        | "SpotMaxPriceTooLow" => ErrorClass::NoCapacity { scope: scope() },
        "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequestsException"
        | "RequestThrottled"
        | "SlowDown"
        | "BandwidthLimitExceeded"
        | "EC2ThrottledException" => ErrorClass::Throttled { until: None },
        "UnauthorizedOperation"
        | "AuthFailure"
        | "AccessDenied"
        | "AccessDeniedException"
        | "OptInRequired"
        | "Blocked"
        | "PendingVerification"
        | "InvalidClientTokenId"
        | "SignatureDoesNotMatch"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "RequestExpired"
        | "UnrecognizedClientException" => ErrorClass::Denied,
        "InvalidInstanceID.NotFound" | "InvalidVolume.NotFound" => ErrorClass::NotFound,
        // Its machine is still terminating.
        "VolumeInUse" | "IncorrectState" => ErrorClass::Transient,
        "InternalError" | "InternalFailure" | "ServiceUnavailable" | "Unavailable" => ErrorClass::Unknown,
        other if other.ends_with("LimitExceeded") || other == "MaxSpotInstanceCountExceeded" => {
            ErrorClass::Quota
        }
        _ if status == 429 => ErrorClass::Throttled { until: None },
        _ if status >= 500 => ErrorClass::Unknown,
        _ => ErrorClass::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_the_class_that_decides_what_happens_next() {
        let scope = "zone a".to_owned();
        for (code, status, wanted) in [
            ("InsufficientInstanceCapacity", 500, ErrorClass::NoCapacity { scope: scope.clone() }),
            ("InsufficientFreeAddressesInSubnet", 400, ErrorClass::NoCapacity { scope }),
            ("VcpuLimitExceeded", 400, ErrorClass::Quota),
            ("MaxSpotInstanceCountExceeded", 400, ErrorClass::Quota),
            ("InstanceLimitExceeded", 400, ErrorClass::Quota),
            ("RequestLimitExceeded", 503, ErrorClass::Throttled { until: None }),
            ("UnauthorizedOperation", 403, ErrorClass::Denied),
            ("InvalidInstanceID.NotFound", 400, ErrorClass::NotFound),
            ("InvalidAMIID.NotFound", 400, ErrorClass::Invalid),
            ("Unsupported", 400, ErrorClass::Invalid),
            ("InternalError", 500, ErrorClass::Unknown),
            ("SomethingNew", 502, ErrorClass::Unknown),
            ("SomethingNew", 400, ErrorClass::Invalid),
        ] {
            assert_eq!(class(Some(code), status, "zone a"), wanted, "{code}");
        }
        assert_eq!(class(None, 503, ""), ErrorClass::Unknown, "a proxy's error page");
    }
}
