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
    Closing,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::golden::{covers, hold, recorded};

    fn endpoint() -> Endpoint {
        let text = r#"{"address":"192.0.2.7","port":22,"user":"ci","host_key":"ssh-ed25519 AAAA"}"#;
        serde_json::from_str(text).unwrap()
    }

    fn requests() -> Vec<Request> {
        let (within, stop_grace) = (Duration::from_secs(10), Duration::from_secs(5));
        let shell = Shell { name: "bash".to_owned(), before: "cd /builds".to_owned() };
        let asks = [
            Ask::Check { at: endpoint(), within },
            Ask::Stage { at: endpoint(), shell, start_within: within, stop_grace },
            Ask::Show,
            Ask::End,
        ];
        let mut all: Vec<Request> = asks.into_iter().map(Request::plain).collect();
        all.push(Request { wake: Some("/run/keeper".into()), ..Request::plain(Ask::Show) });
        all
    }

    fn replies() -> Vec<Reply> {
        let (at, problem) = (|| "192.0.2.7:22".to_owned(), || "it broke".to_owned());
        let figures = Figures {
            pid: 4711,
            connected_ms: Some(5),
            round_trip_us: Some(300),
            memory: Some(512),
            stages: 8,
            busy: true,
            shell_waits: false,
        };
        let unknown = Figures { connected_ms: None, round_trip_us: None, memory: None, ..figures.clone() };
        let failures = [
            ConnectError::Unreachable { at: at(), problem: problem() },
            ConnectError::TimedOut { at: at(), waited: "10 s".to_owned() },
            ConnectError::HostKey { at: at(), expected: "SHA256:a".to_owned(), found: "SHA256:b".to_owned() },
            ConnectError::Refused { at: at(), user: "ci".to_owned(), problem: problem() },
            ConnectError::Lost { at: at(), problem: problem(), sent: true },
            ConnectError::Local { what: problem() },
        ];
        let ends = [StageEnd::Exited(3), StageEnd::Signalled("TERM".to_owned()), StageEnd::Stopped];
        let mut all = vec![
            Reply::Accepted,
            Reply::Busy,
            Reply::Closing,
            Reply::Answers,
            Reply::Begun,
            Reply::Stopping,
            Reply::Shown(figures),
            Reply::Shown(unknown),
        ];
        all.extend(ends.map(Reply::Ended));
        all.extend(failures.map(Reply::Failed));
        all
    }

    /// A link may be of another version than the call that speaks to it.
    #[test]
    fn messages_of_this_protocol_are_read() {
        const REQUESTS: &str = recorded!("link-requests.jsonl");
        const REPLIES: &str = recorded!("link-replies.jsonl");
        hold(REQUESTS, &requests());
        hold(REPLIES, &replies());
        hold(recorded!("link-controls.jsonl"), &[Control::Stop]);
        covers::<Ask>(REQUESTS, r#""?""#);
        covers::<Reply>(REPLIES, r#""?""#);
        covers::<StageEnd>(REPLIES, r#""?""#);
        covers::<ConnectError>(REPLIES, r#""?""#);
        let spec = LinkSpec {
            instance: "linux-7f3a09c1-12".to_owned(),
            at: endpoint(),
            settings: super::super::super::SshSettings::new("/var/lib/greenroom/keys"),
            dir: "/var/lib/greenroom/links/linux/linux-7f3a09c1-12".into(),
            slot: 1,
            within: Duration::from_secs(10),
        };
        hold(recorded!("link-specs.jsonl"), &[spec]);
    }
}
