//! What a plugin is started with.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use serde_json::Value;

use crate::environment::Environment;
use crate::fleeting::wire::messages::ConnectorConfig;

/// A plugin, and how it is started and called.
#[derive(Clone)]
pub struct PluginSettings {
    /// Named in the log.
    pub pool: PoolName,
    /// Greenroom's own program, which holds the plugin.
    pub holder: PathBuf,
    /// Where the plugin's program is: an absolute path. Called for each start, so that a newer version is found.
    pub program: Rc<dyn Fn() -> Result<PathBuf, String>>,
    /// The operator's table for the plugin: an object, or null.
    pub config: Value,
    pub connector: Connector,
    /// True if the plugin may start without static credentials where its `Init` refuses them.
    pub static_optional: bool,
    pub environment: Environment,
    /// The directory of the sockets' directories. Pools may share it.
    pub sockets: PathBuf,
    pub deadlines: Deadlines,
    pub pauses: Pauses,
}

/// How instances are to be reached. Plugins put it on what they create, or give it back.
#[derive(Clone, PartialEq, Eq)]
pub struct Connector {
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

impl Default for Connector {
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
    /// From the start to the plugin's line with its socket.
    pub handshake: Duration,
    pub init: Duration,
    pub update: Duration,
    /// Plugins may wait in a limiter of their own.
    pub increase: Duration,
    pub decrease: Duration,
    pub connect_info: Duration,
    pub heartbeat: Duration,
    /// Also of `resume`.
    pub suspend: Duration,
    /// Of the check of a plugin that exceeded a limit.
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

impl Connector {
    /// Why no plugin can work with it.
    pub fn mistake(&self) -> Option<String> {
        match self.protocol.as_str() {
            "" | "ssh" => {}
            "winrm" | "winrm+https" => {
                let why =
                    "Greenroom connects to instances by SSH only, not by WinRM: set `protocol = \"ssh\"`";
                return Some(why.to_owned());
            }
            other => return Some(format!("there is no protocol `{other}`: set `protocol = \"ssh\"`")),
        }
        (self.use_static_credentials && self.username.is_empty())
            .then(|| "static credentials need a `username`".to_owned())
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

/// Without the credentials.
impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("protocol", &self.protocol)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// Without the configuration.
impl std::fmt::Debug for PluginSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginSettings").field("pool", &self.pool).finish_non_exhaustive()
    }
}
