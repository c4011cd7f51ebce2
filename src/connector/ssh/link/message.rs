//! What a call and a link say to each other.
//!
//! Each message is one line of JSON, and descriptors travel beside it. A link that was made by another version of this
//! program understands the number at the beginning, whatever else a request has become.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::endpoint::Endpoint;
use crate::core::time::millis;
use crate::port::connector::{ConnectError, StageEnd};

/// To be raised with every change of what is said here.
pub(super) const PROTOCOL: u32 = 1;

/// All that a link needs to know to come into being; on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkSpec {
    pub(super) instance: String,
    pub(super) at: Endpoint,
    pub(super) settings: super::super::SshSettings,
    /// The directory of the instance's links.
    pub(super) dir: PathBuf,
    pub(super) slot: u32,
    /// To connect, verify and log in.
    #[serde(with = "millis")]
    pub(super) within: Duration,
}

/// The first message of a conversation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) protocol: u32,
    pub(super) ask: Ask,
    /// Where the keeper is told that the runner is gone; the runner's pidfd is the last of the descriptors.
    #[serde(default)]
    pub(super) wake: Option<PathBuf>,
}

impl Request {
    /// One that no runner stands behind.
    pub(super) fn plain(ask: Ask) -> Self {
        Self { protocol: PROTOCOL, ask, wake: None }
    }
}

/// What is wanted of a link.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ask {
    /// Does the instance answer now?
    Check {
        at: Endpoint,
        #[serde(with = "millis")]
        within: Duration,
    },
    /// Run a script. With three descriptors: the script, and pipes for what it says.
    Stage {
        at: Endpoint,
        shell: Shell,
        #[serde(with = "millis")]
        start_within: Duration,
        #[serde(with = "millis")]
        stop_grace: Duration,
    },
    /// Say how you are.
    Show,
    /// End, as soon as no stage runs.
    End,
}

/// An interpreter, and shell commands that come before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shell {
    pub(super) name: String,
    pub(super) before: String,
}

/// What a call may say while its stage runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Control {
    Stop,
}

/// What a link answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    /// It is being done: the first answer to a check or a stage, at once.
    Accepted,
    /// A stage runs here: another slot is wanted.
    Busy,
    /// It is of another version, goes elsewhere, or was told to end: it ends now.
    Leaving,
    /// The instance answers.
    Answers,
    /// From now on the script is being sent.
    Begun,
    /// The stage is being stopped.
    Stopping,
    Ended(StageEnd),
    Failed(ConnectError),
    Shown(Figures),
}

/// How a link is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    pub pid: u32,
    /// For how long its connection has stood, in milliseconds; `None`: it is still being made.
    pub connected_ms: Option<u64>,
    /// The latest question to the server until its answer, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Memory of its own (anonymous), in bytes.
    pub memory: Option<u64>,
    /// Stages that it has run.
    pub stages: u64,
    /// A stage runs now.
    pub busy: bool,
    /// A shell waits in the guest for the next stage.
    pub shell_waits: bool,
}
