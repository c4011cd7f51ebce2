//! Reaches an instance and runs commands there.
//!
//! The host key is verified from the first byte. A script goes by standard input, never as an argument. The guest's
//! exit status is carried apart from the transport's fate.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::provider::InstanceKeys;
use crate::core::endpoint::Endpoint;
use crate::core::ids::{AttemptName, InstanceId, OwnerId, PoolName};
use crate::core::time::Pretty;

/// Resolves when the stage shall be stopped.
pub type Stop<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Which of the guest's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Where a stage's output goes. A write that waits holds the guest back; nothing is buffered without bound.
#[async_trait(?Send)]
pub trait Output {
    async fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()>;

    /// Where a stream's bytes may also be moved to directly, as long as nothing waits for it. `None`: they are to be
    /// written.
    fn descriptor(&self, _stream: Stream) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A script and how to run it.
#[derive(Debug)]
pub struct Stage {
    /// The interpreter on the instance, which reads the script from standard input: `bash`, `sh`, `pwsh`.
    pub shell: String,
    /// The script's text, opened for reading.
    pub script: std::fs::File,
    /// To connect, and again until the instance has begun with the script.
    pub start_within: Duration,
    /// From TERM to KILL when it is stopped.
    pub stop_grace: Duration,
    /// On a host that others use afterwards: how a clean will know what the stage left.
    pub trace: Option<Trace>,
}

/// What makes the remains of a job known to the clean after it.
///
/// The stage notes its session in `~/.greenroom/MARK` on the host, and everything that it starts carries the mark in its
/// environment, as `GREENROOM_TRACE=/MARK/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    pub mark: Mark,
    pub attempt: AttemptName,
    /// The attempt's own directory, absolute; its `TMPDIR` is beside it, with `.tmp` at its end.
    pub builds_dir: String,
}

/// Tells our jobs on a host from those of another pool or another manager that uses the same account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    pub fn new(owner: &OwnerId, pool: &PoolName, instance: &InstanceId) -> Self {
        Self(format!("{owner}.{pool}.{instance}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How a stage ended. Every variant means that the transport held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StageEnd {
    Exited(u32),
    /// Ended by a signal, by its name without `SIG`.
    Signalled(String),
    /// We stopped it: its session is gone.
    Stopped,
}

/// Why an instance could not be reached or was lost.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there, or the network is in the way.
    #[error("cannot connect to {at}: {problem}")]
    Unreachable { at: String, problem: String },
    #[error("no answer from {at} within {waited}")]
    TimedOut { at: String, waited: String },
    /// Another host key than the recorded one: names both fingerprints.
    #[error("{at} answers with host key {found}, expected {expected}")]
    HostKey { at: String, expected: String, found: String },
    #[error("{at} refuses to let `{user}` in: {problem}")]
    Refused { at: String, user: String, problem: String },
    /// The connection broke; `sent` says whether the script had been sent, at least in part.
    #[error("the connection to {at} was lost: {problem}")]
    Lost { at: String, problem: String, sent: bool },
    /// Something on our side: a key file, a script file.
    #[error("{what}")]
    Local { what: String },
}

impl ConnectError {
    pub fn timed_out(at: impl Into<String>, waited: Duration) -> Self {
        Self::TimedOut { at: at.into(), waited: Pretty(waited).to_string() }
    }
}

#[async_trait(?Send)]
pub trait Connector {
    /// The keys of an instance: made at the first call, the same at each further one.
    async fn keys(&self, id: &InstanceId) -> Result<InstanceKeys, ConnectError>;

    /// Removes the keys of an instance that is gone. Not there: fine.
    async fn discard_keys(&self, id: &InstanceId);

    /// Connects, authenticates and runs `true`: does the instance answer *now*?
    async fn check(&self, id: &InstanceId, at: &Endpoint, within: Duration) -> Result<(), ConnectError>;

    /// Runs a stage to its end, or until `stop` resolves.
    async fn run(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        stage: Stage,
        output: &mut dyn Output,
        stop: Stop<'_>,
    ) -> Result<StageEnd, ConnectError>;

    /// Runs a short command (ready, clean), which reads `input`, and returns its end with the last part of its output.
    async fn command(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        command: &str,
        input: &str,
        within: Duration,
    ) -> Result<(StageEnd, String), ConnectError>;
}
