//! Exit codes of the program, and what each means for Greenroom.

use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::text::clean_line;
use greenroom_core::time::Stamp;
use serde::Deserialize;

use super::Verb;

/// Longest reason that is kept, in characters.
const REASON: usize = 400;

pub const NOT_FOUND: i32 = 10;
pub const NO_CAPACITY: i32 = 11;
pub const QUOTA: i32 = 12;
pub const DENIED: i32 = 13;
pub const INVALID: i32 = 14;
pub const THROTTLED: i32 = 15;
pub const TRANSIENT: i32 = 16;

/// The exit codes with a meaning, beside 0.
pub const CODES: &[(i32, &str)] = &[
    (NOT_FOUND, "not found"),
    (NO_CAPACITY, "no capacity"),
    (QUOTA, "quota"),
    (DENIED, "denied"),
    (INVALID, "invalid"),
    (THROTTLED, "throttled"),
    (TRANSIENT, "transient error"),
];

/// What the program prints beside such a code. Without it, the code may be that of a command inside the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Reason {
    pub error: String,
    /// Where there is no capacity: a zone, a type, a host.
    #[serde(default)]
    pub scope: String,
    #[serde(default)]
    pub retry_after_s: Option<u64>,
}

impl Reason {
    /// `None`: the output is not a reason.
    pub fn read(output: &[u8]) -> Option<Self> {
        let reason: Self = serde_json::from_slice(output).ok()?;
        let line = |text: &str| clean_line(text.as_bytes(), REASON);
        Some(Self { error: line(&reason.error), scope: line(&reason.scope), ..reason })
    }
}

/// The class of an exit code; `None`: the code has no meaning.
pub fn class(code: i32, reason: &Reason, now: Stamp) -> Option<ErrorClass> {
    let scope = if reason.scope.is_empty() { "the provider" } else { &reason.scope };
    let after = |seconds: u64| now.plus(Duration::from_secs(seconds.min(3600)));
    Some(match code {
        NOT_FOUND => ErrorClass::NotFound,
        NO_CAPACITY => ErrorClass::NoCapacity { scope: scope.to_owned() },
        QUOTA => ErrorClass::Quota,
        DENIED => ErrorClass::Denied,
        INVALID => ErrorClass::Invalid,
        THROTTLED => ErrorClass::Throttled { until: reason.retry_after_s.map(after) },
        TRANSIENT => ErrorClass::Transient,
        _ => return None,
    })
}

/// The class of a call that ended without a meaning: a launch may have created a machine.
pub fn without_answer(verb: Verb) -> ErrorClass {
    if verb == Verb::Launch { ErrorClass::Unknown } else { ErrorClass::Transient }
}

#[cfg(test)]
mod tests {
    use greenroom_core::notation::NOW;

    use super::*;

    #[test]
    fn each_code_has_one_class_and_all_others_have_none() {
        let reason = Reason::read(br#"{"error":"no\nroom","scope":"fsn1","retry_after_s":30}"#).unwrap();
        assert_eq!(reason.error, "no room");
        for (code, meaning) in CODES {
            let class = class(*code, &reason, NOW).unwrap();
            assert!(class.is_definite() && class.to_string().contains(meaning), "{code} {class}");
        }
        let full = ErrorClass::NoCapacity { scope: "fsn1".to_owned() };
        assert_eq!(class(11, &reason, NOW), Some(full));
        let later = ErrorClass::Throttled { until: Some(NOW.plus(Duration::from_secs(30))) };
        assert_eq!(class(15, &reason, NOW), Some(later));
        for code in [1, 2, 9, 17, 126, 127, 255] {
            assert_eq!(class(code, &reason, NOW), None);
        }
        assert_eq!(without_answer(Verb::Launch), ErrorClass::Unknown);
        assert_eq!(without_answer(Verb::List), ErrorClass::Transient);
    }

    #[test]
    fn what_is_no_reason_is_none() {
        for output in [&b""[..], b"oops", b"{}", br#"{"error": 5}"#] {
            assert_eq!(Reason::read(output), None);
        }
    }
}
