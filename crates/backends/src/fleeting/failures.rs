//! What a failed call of the plugin means to the engine.

use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;

use super::group::{CallError, CallErrorKind};

/// A failed call that changes nothing, or whose changes the next update shows.
pub fn of_call(what: &str, error: &CallError) -> ProviderError {
    let class = match error.kind {
        CallErrorKind::Configuration | CallErrorKind::Unsupported => ErrorClass::Invalid,
        CallErrorKind::Refused | CallErrorKind::NotStarted | CallErrorKind::Unknown => ErrorClass::Transient,
    };
    ProviderError::new(class, sentence(what, error))
}

/// A failed request for instances.
pub fn of_increase(error: &CallError) -> ProviderError {
    let failure = of_call("launch an instance", error);
    match error.kind {
        // It may have been carried out.
        CallErrorKind::Unknown => ProviderError::new(ErrorClass::Unknown, failure.failure.message),
        _ => failure,
    }
}

fn sentence(what: &str, error: &CallError) -> String {
    match error.kind {
        CallErrorKind::Configuration => {
            format!("the plugin does not accept `plugin_config`: {}", error.message)
        }
        CallErrorKind::NotStarted => format!("the plugin does not run: {}", error.message),
        CallErrorKind::Unsupported => format!("the plugin cannot {what}: {}", error.message),
        CallErrorKind::Refused => format!("the plugin did not {what}: {}", error.message),
        CallErrorKind::Unknown => {
            format!("no answer of the plugin to the request to {what}: {}", error.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_launch_without_an_answer_may_have_been_carried_out() {
        for (kind, launch, other) in [
            (CallErrorKind::Refused, ErrorClass::Transient, ErrorClass::Transient),
            (CallErrorKind::Configuration, ErrorClass::Invalid, ErrorClass::Invalid),
            (CallErrorKind::Unsupported, ErrorClass::Invalid, ErrorClass::Invalid),
            (CallErrorKind::NotStarted, ErrorClass::Transient, ErrorClass::Transient),
            (CallErrorKind::Unknown, ErrorClass::Unknown, ErrorClass::Transient),
        ] {
            let error = CallError { kind, message: "no route to host".to_owned() };
            let (launched, listed) = (of_increase(&error), of_call("list its instances", &error));
            assert_eq!((launched.class(), listed.class()), (&launch, &other), "{kind:?}");
            assert!(launched.to_string().contains("no route to host"), "{launched}");
        }
    }
}
