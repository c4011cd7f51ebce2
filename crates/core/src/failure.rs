//! Classes of provider failures.
//!
//! The class ([`ErrorClass`]) alone decides what happens next; the provider's own message is kept beside it for people.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::order::RefusedOrder;
use super::time::Stamp;

/// The kind of a provider's refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "class", rename_all = "kebab-case")]
pub enum ErrorClass {
    /// The resource does not exist.
    NotFound,
    /// The provider has no capacity left; `scope` names where (a zone, a type, the runner host).
    NoCapacity { scope: String },
    /// The account's limit is reached.
    Quota,
    /// Credentials or permissions are missing.
    Denied,
    /// The request itself is wrong: repeating it cannot help.
    Invalid,
    /// The job's order cannot be made; `by_job`: the order itself is at fault. It says nothing about other launches.
    Order {
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_job: bool,
    },
    /// Too many calls; no further one before `until`.
    Throttled { until: Option<Stamp> },
    /// An error that usually goes away without action.
    Transient,
    /// No answer: the request may or may not have been carried out.
    Unknown,
}

impl ErrorClass {
    /// True if the request was certainly not carried out.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::NotFound
            | Self::NoCapacity { .. }
            | Self::Quota
            | Self::Denied
            | Self::Invalid
            | Self::Order { .. }
            | Self::Throttled { .. }
            | Self::Transient => true,
        }
    }

    /// True if a launch that failed so created nothing. `repeated`: an earlier try of it may have got no answer. Only a
    /// provider that has looked at the token tells about that try; what refuses the call before proves nothing.
    pub fn created_nothing(&self, repeated: bool) -> bool {
        if repeated { matches!(self, Self::NoCapacity { .. } | Self::Quota) } else { self.is_definite() }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("not found"),
            Self::NoCapacity { scope } => write!(f, "no capacity ({scope})"),
            Self::Quota => f.write_str("quota reached"),
            Self::Denied => f.write_str("denied"),
            Self::Invalid => f.write_str("invalid request"),
            Self::Order { .. } => f.write_str("order refused"),
            Self::Throttled { .. } => f.write_str("throttled"),
            Self::Transient => f.write_str("transient error"),
            Self::Unknown => f.write_str("no answer"),
        }
    }
}

/// A failure as it is recorded and shown: its class and the provider's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    #[serde(flatten)]
    pub class: ErrorClass,
    pub message: String,
}

impl Failure {
    /// The failure as a refusal of a job's order; `None` if its class is not [`ErrorClass::Order`].
    pub fn refused_order(&self) -> Option<RefusedOrder> {
        let ErrorClass::Order { by_job } = self.class else { return None };
        Some(RefusedOrder { reason: self.message.clone(), by_job })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            return write!(f, "{}", self.class);
        }
        write!(f, "{}: {}", self.class, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unknown_outcome_may_have_been_carried_out() {
        let scope = "zone b".to_owned();
        // Whether it is definite, and for a repeat of a launch, too.
        for (class, definite, for_repeats, text) in [
            (ErrorClass::NotFound, true, false, "not found"),
            (ErrorClass::NoCapacity { scope }, true, true, "no capacity (zone b)"),
            (ErrorClass::Quota, true, true, "quota reached"),
            (ErrorClass::Denied, true, false, "denied"),
            (ErrorClass::Invalid, true, false, "invalid request"),
            (ErrorClass::Order { by_job: true }, true, false, "order refused"),
            (ErrorClass::Throttled { until: None }, true, false, "throttled"),
            (ErrorClass::Transient, true, false, "transient error"),
            (ErrorClass::Unknown, false, false, "no answer"),
        ] {
            assert_eq!(class.is_definite(), definite, "{class}");
            assert_eq!(class.created_nothing(false), definite, "{class}");
            assert_eq!(class.created_nothing(true), for_repeats, "{class}");
            assert_eq!(class.to_string(), text);
            let bare = Failure { class: class.clone(), message: String::new() };
            assert_eq!(bare.to_string(), text);
            let failure = Failure { class, message: "RunInstances".to_owned() };
            assert_eq!(failure.to_string(), format!("{text}: RunInstances"));
        }
    }
}
