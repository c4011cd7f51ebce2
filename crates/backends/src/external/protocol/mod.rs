//! The protocol between Greenroom and a program that creates machines: verbs, requests, answers, exit codes.
//!
//! docs/providers/external.md describes it for authors of such programs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::text::clean_line;
use greenroom_core::time::Stamp;
use serde::{Deserialize, Serialize};

pub mod answers;

/// The version that this Greenroom speaks.
pub const VERSION: u32 = 1;
/// Longest reason that is kept, in characters.
const REASON: usize = 400;

pub const NOT_FOUND: i32 = 10;
pub const NO_CAPACITY: i32 = 11;
pub const QUOTA: i32 = 12;
pub const DENIED: i32 = 13;
pub const INVALID: i32 = 14;
pub const THROTTLED: i32 = 15;
pub const TRANSIENT: i32 = 16;

/// Purpose of a call; its name is the last argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    Capabilities,
    Launch,
    List,
    Terminate,
    Endpoint,
    Console,
    Resources,
    Delete,
    Examine,
}

impl Verb {
    pub const ALL: &[Self] = &[
        Self::Capabilities,
        Self::Launch,
        Self::List,
        Self::Terminate,
        Self::Endpoint,
        Self::Console,
        Self::Resources,
        Self::Delete,
        Self::Examine,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Capabilities => "capabilities",
            Self::Launch => "launch",
            Self::List => "list",
            Self::Terminate => "terminate",
            Self::Endpoint => "endpoint",
            Self::Console => "console",
            Self::Resources => "resources",
            Self::Delete => "delete",
            Self::Examine => "examine",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|verb| verb.name() == name)
    }

    /// True if every program has it. The others count only if `capabilities` names them.
    pub fn is_required(self) -> bool {
        matches!(self, Self::Capabilities | Self::Launch | Self::List | Self::Terminate)
    }

    /// The default limit of one call. Two calls fit into an exchange of the keeper with a provider, except a launch, which
    /// has more time.
    pub fn time_limit(self) -> Duration {
        match self {
            Self::Launch => Duration::from_mins(5),
            Self::Console => Duration::from_secs(8),
            Self::Capabilities => Duration::from_secs(20),
            Self::List | Self::Terminate | Self::Endpoint => Duration::from_secs(50),
            Self::Resources | Self::Delete | Self::Examine => Duration::from_mins(1),
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The key `settings` of the pool's table, for the program alone.
pub type ProgramSettings = serde_json::Map<String, serde_json::Value>;

/// One request: what every verb gets, and the verb's own fields beside it.
#[derive(Debug, Serialize)]
pub struct ProtocolRequest<'a, T> {
    pub protocol: u32,
    pub pool: &'a str,
    pub settings: &'a ProgramSettings,
    #[serde(flatten)]
    pub fields: T,
}

impl<'a, T: Serialize> ProtocolRequest<'a, T> {
    pub fn new(pool: &'a str, settings: &'a ProgramSettings, fields: T) -> Self {
        Self { protocol: VERSION, pool, settings, fields }
    }
}

/// The fields of verbs that need no more.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct NoFields {}

/// The fields of `capabilities`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AgreeFields {
    /// The versions that Greenroom speaks.
    pub protocols: &'static [u32],
}

impl Default for AgreeFields {
    fn default() -> Self {
        Self { protocols: &[VERSION] }
    }
}

/// The fields of `launch`. Stored as it is before the call: a repeat is identical.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFields {
    pub instance: String,
    /// The machine's name, for programs whose machines have names and no tags.
    pub name: String,
    /// Equal in each repeat of this launch, and in no other one.
    pub token: String,
    /// To store with the machine and to list with it: pool, owner, generation, number, token.
    pub tags: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offering: Option<String>,
    /// The account that logs in and runs jobs.
    pub user: String,
    pub authorized_key: String,
    /// The host key that the machine has to present, private; only if `capabilities` says `"host_key": "launch"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key_public: Option<String>,
    /// The complete text for the machine's first boot: keys, account, end of life.
    pub user_data: String,
    /// After so many seconds the machine has to end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_s: Option<u64>,
}

/// Shows the fields without the keys.
impl fmt::Debug for LaunchFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchFields").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// The fields of `terminate`, `endpoint` and `console`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineFields<'a> {
    pub machine: &'a str,
    pub instance: &'a str,
    pub name: &'a str,
}

/// The fields of `delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResourceFields<'a> {
    pub kind: &'a str,
    pub id: &'a str,
}

/// The fields of `examine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExamineFields {
    pub max_instances: u32,
    /// The instances that the pool has now.
    pub instances: u32,
}

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

/// Reason that the program prints beside such a code. Without a reason, the code may be that of a command inside the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Reason {
    pub error: String,
    /// The place without capacity: a zone, a type, a host.
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
pub fn error_class(code: i32, reason: &Reason, now: Stamp) -> Option<ErrorClass> {
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
pub fn unanswered_class(verb: Verb) -> ErrorClass {
    if verb == Verb::Launch { ErrorClass::Unknown } else { ErrorClass::Transient }
}

#[cfg(test)]
mod tests {
    use greenroom_core::notation::NOW;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_verb_is_found_by_its_name() {
        for verb in Verb::ALL {
            assert_eq!(Verb::of_name(verb.name()), Some(*verb));
        }
        assert_eq!(Verb::of_name("reboot"), None);
        assert_eq!(Verb::ALL.iter().filter(|verb| verb.is_required()).count(), 4);
    }

    #[test]
    fn a_request_is_one_flat_document() {
        let settings = ProgramSettings::from_iter([("image".to_owned(), "debian".into())]);
        let fields = MachineFields { machine: "i-1", instance: "linux-c0ffee-1", name: "n" };
        let request = serde_json::to_value(ProtocolRequest::new("linux", &settings, fields)).unwrap();
        let wanted = json!({
            "protocol": 1, "pool": "linux", "settings": { "image": "debian" },
            "machine": "i-1", "instance": "linux-c0ffee-1", "name": "n",
        });
        assert_eq!(request, wanted);
        let bare = serde_json::to_value(ProtocolRequest::new("linux", &settings, NoFields {})).unwrap();
        assert_eq!(bare["machine"], json!(null));
        let first =
            serde_json::to_value(ProtocolRequest::new("linux", &settings, AgreeFields::default())).unwrap();
        assert_eq!(first["protocols"], json!([1]));
    }

    #[test]
    fn each_code_has_one_class_and_all_others_have_none() {
        let reason = Reason::read(br#"{"error":"no\nroom","scope":"fsn1","retry_after_s":30}"#).unwrap();
        assert_eq!(reason.error, "no room");
        for (code, meaning) in CODES {
            let class = error_class(*code, &reason, NOW).unwrap();
            assert!(class.is_definite() && class.to_string().contains(meaning), "{code} {class}");
        }
        let full = ErrorClass::NoCapacity { scope: "fsn1".to_owned() };
        assert_eq!(error_class(11, &reason, NOW), Some(full));
        let later = ErrorClass::Throttled { until: Some(NOW.plus(Duration::from_secs(30))) };
        assert_eq!(error_class(15, &reason, NOW), Some(later));
        for code in [1, 2, 9, 17, 126, 127, 255] {
            assert_eq!(error_class(code, &reason, NOW), None);
        }
        assert_eq!(unanswered_class(Verb::Launch), ErrorClass::Unknown);
        assert_eq!(unanswered_class(Verb::List), ErrorClass::Transient);
    }

    #[test]
    fn what_is_no_reason_is_none() {
        for output in [&b""[..], b"oops", b"{}", br#"{"error": 5}"#] {
            assert_eq!(Reason::read(output), None);
        }
    }
}
