//! The settings with which a plugin is started: [`PluginSettings`].

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use serde_json::{Number, Value};

use crate::fleeting::locate::LocateError;
use crate::fleeting::wire::ConnectorConfig;
use crate::program::environment::ProgramEnvironment;

/// Beyond this, a float does not hold every whole number.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A plugin, and how it is started and called.
#[derive(Clone)]
pub struct PluginSettings {
    /// Named in the log.
    pub pool: PoolName,
    /// Greenroom's own program, which runs as the guard process.
    pub guard: PathBuf,
    /// Finds the plugin's program, an absolute path. Called for each start, so that a newer version is found.
    pub program: Rc<dyn Fn() -> Result<PathBuf, LocateError>>,
    /// The operator's table for the plugin: an object, or null.
    pub config: Value,
    pub connector: ConnectorSettings,
    /// True if the plugin may start without static credentials where its `Init` refuses them.
    pub static_optional: bool,
    pub environment: ProgramEnvironment,
    /// The directory of the sockets' directories. Pools may share it.
    pub sockets: PathBuf,
    pub deadlines: Deadlines,
    pub pauses: Pauses,
}

/// The way instances are to be reached. Plugins put it on what they create, or give it back.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectorSettings {
    pub os: String,
    pub arch: String,
    pub protocol: String,
    pub username: String,
    pub password: String,
    /// A private key, PEM; empty: none.
    pub key: Vec<u8>,
    /// True if the plugin is to use the credentials of this table instead of its own.
    pub use_static_credentials: bool,
    pub keepalive: Duration,
    pub timeout: Duration,
    /// `None`: the protocol's default.
    pub port: Option<u16>,
}

impl Default for ConnectorSettings {
    fn default() -> Self {
        Self {
            os: String::new(),
            arch: String::new(),
            protocol: String::new(),
            username: String::new(),
            password: String::new(),
            key: Vec::new(),
            use_static_credentials: false,
            keepalive: Duration::from_secs(30),
            timeout: Duration::from_mins(10),
            port: None,
        }
    }
}

/// Limits of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// The time limit from the start to the plugin's line with its socket.
    pub handshake: Duration,
    pub init: Duration,
    pub update: Duration,
    /// Plugins may wait in a limiter of their own.
    pub increase: Duration,
    pub decrease: Duration,
    pub connect_info: Duration,
    pub heartbeat: Duration,
    /// The time limit of `suspend` and `resume`.
    pub suspend: Duration,
    /// The time limit for the check of a plugin that exceeded a limit.
    pub health: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            handshake: Duration::from_mins(1),
            init: Duration::from_mins(2),
            update: Duration::from_mins(3),
            increase: Duration::from_mins(15),
            decrease: Duration::from_mins(5),
            connect_info: Duration::from_mins(2),
            heartbeat: Duration::from_mins(1),
            suspend: Duration::from_mins(5),
            health: Duration::from_secs(10),
        }
    }
}

/// Pauses between starts of a plugin that exits or does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// After the first failure; doubled for each further one.
    pub first: Duration,
    pub longest: Duration,
    /// A plugin that ran longer than this begins anew.
    pub forgiven_after: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_mins(5),
            forgiven_after: Duration::from_mins(10),
        }
    }
}

/// The reason no plugin can work with [`ConnectorSettings`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectorError {
    #[error("Greenroom connects to instances by SSH only, not by WinRM: set `protocol = \"ssh\"`")]
    WinRm,
    #[error("there is no protocol `{0}`: set `protocol = \"ssh\"`")]
    Protocol(String),
    #[error("static credentials need a `username`")]
    NoUsername,
}

impl ConnectorSettings {
    /// Refuses settings with which no plugin can work.
    pub fn check(&self) -> Result<(), ConnectorError> {
        match self.protocol.as_str() {
            "" | "ssh" => {}
            "winrm" | "winrm+https" => return Err(ConnectorError::WinRm),
            other => return Err(ConnectorError::Protocol(other.to_owned())),
        }
        if self.use_static_credentials && self.username.is_empty() {
            return Err(ConnectorError::NoUsername);
        }
        Ok(())
    }

    pub(super) fn message(&self) -> ConnectorConfig {
        ConnectorConfig {
            os: self.os.clone(),
            arch: self.arch.clone(),
            protocol: self.protocol.clone(),
            username: self.username.clone(),
            password: self.password.clone(),
            key: self.key.clone(),
            use_static_credentials: self.use_static_credentials,
            keepalive: nanoseconds(self.keepalive),
            timeout: nanoseconds(self.timeout),
            protocol_port: self.port.map_or(0, i64::from),
        }
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Shows the settings without the credentials.
impl std::fmt::Debug for ConnectorSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectorSettings")
            .field("protocol", &self.protocol)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// Shows the settings without the configuration.
impl std::fmt::Debug for PluginSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginSettings").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Whole floats are written without a fraction, which Go's decoder refuses for whole numbers. Null is an empty object.
pub(super) fn config_bytes(config: &Value) -> Vec<u8> {
    match whole(config) {
        Value::Null => b"{}".to_vec(),
        config => config.to_string().into_bytes(),
    }
}

fn whole(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(whole_number(number)),
        Value::Array(items) => items.iter().map(whole).collect(),
        Value::Object(table) => {
            Value::Object(table.iter().map(|(key, value)| (key.clone(), whole(value))).collect())
        }
        other => other.clone(),
    }
}

fn whole_number(number: &Number) -> Number {
    let float =
        number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT);
    // `{:.0}` prints all digits of a whole number, and no more.
    let written = float.and_then(|float| format!("{float:.0}").parse::<i64>().ok());
    written.map_or_else(|| number.clone(), Number::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_floats_lose_their_fraction_at_any_depth() {
        let config = json!({ "a": 1.0, "b": [2.5, -3.0, { "c": 0.0 }], "d": "1.0", "e": 7, "g": true });
        let written = String::from_utf8(config_bytes(&config)).unwrap();
        assert_eq!(written, r#"{"a":1,"b":[2.5,-3,{"c":0}],"d":"1.0","e":7,"g":true}"#);
    }

    #[test]
    fn what_no_integer_can_hold_stays_as_it_is() {
        let written: Value = serde_json::from_slice(&config_bytes(&json!({ "a": 1e300 }))).unwrap();
        assert_eq!(written, json!({ "a": 1e300 }));
    }

    #[test]
    fn no_table_is_an_empty_object() {
        assert_eq!(config_bytes(&Value::Null), b"{}");
        assert_eq!(config_bytes(&json!({})), b"{}");
    }
}
