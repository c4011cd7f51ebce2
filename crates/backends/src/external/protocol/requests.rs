//! What Greenroom writes on the program's standard input.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::VERSION;

/// The key `settings` of the pool's table, for the program alone.
pub type ProgramSettings = serde_json::Map<String, serde_json::Value>;

/// One request: what every verb gets, and the verb's own fields beside it.
#[derive(Debug, Serialize)]
pub struct Request<'a, T> {
    pub protocol: u32,
    pub pool: &'a str,
    pub settings: &'a ProgramSettings,
    #[serde(flatten)]
    pub fields: T,
}

impl<'a, T: Serialize> Request<'a, T> {
    pub fn new(pool: &'a str, settings: &'a ProgramSettings, fields: T) -> Self {
        Self { protocol: VERSION, pool, settings, fields }
    }
}

/// The fields of verbs that need no more.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Nothing {}

/// The fields of `capabilities`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Agree {
    /// The versions that Greenroom speaks.
    pub protocols: &'static [u32],
}

impl Default for Agree {
    fn default() -> Self {
        Self { protocols: &[VERSION] }
    }
}

/// The fields of `launch`. Stored as it is before the call: a repeat is identical.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    pub instance: String,
    /// The machine's name, for programs whose machines have names and no tags.
    pub name: String,
    /// The same for each repeat of this launch, and for no other.
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

/// Without the keys.
impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// The fields of `terminate`, `endpoint` and `console`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OfMachine<'a> {
    pub machine: &'a str,
    pub instance: &'a str,
    pub name: &'a str,
}

/// The fields of `delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OfResource<'a> {
    pub kind: &'a str,
    pub id: &'a str,
}

/// The fields of `examine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Examine {
    pub max_instances: u32,
    /// The instances that the pool has now.
    pub instances: u32,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_is_one_flat_document() {
        let settings = ProgramSettings::from_iter([("image".to_owned(), "debian".into())]);
        let fields = OfMachine { machine: "i-1", instance: "linux-c0ffee-1", name: "n" };
        let request = serde_json::to_value(Request::new("linux", &settings, fields)).unwrap();
        let wanted = json!({
            "protocol": 1, "pool": "linux", "settings": { "image": "debian" },
            "machine": "i-1", "instance": "linux-c0ffee-1", "name": "n",
        });
        assert_eq!(request, wanted);
        let bare = serde_json::to_value(Request::new("linux", &settings, Nothing {})).unwrap();
        assert_eq!(bare["machine"], json!(null));
        let first = serde_json::to_value(Request::new("linux", &settings, Agree::default())).unwrap();
        assert_eq!(first["protocols"], json!([1]));
    }
}
