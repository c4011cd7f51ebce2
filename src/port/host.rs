//! The state directory beside the journal: attempts, leases, marks, the keeper's lock, wake-ups.
//!
//! A lease is a kernel lock on an attempt's `lease` file. `prepare`, `run` and `cleanup` hold it shared from start to
//! end; only the keeper tries to lock it exclusively, without waiting. Lock order everywhere: lease, then store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::core::attempt::{AttemptSeen, Closed, End};
use crate::core::endpoint::Endpoint;
use crate::core::execution::Execution;
use crate::core::ids::{AttemptName, Generation, InstanceId, OwnerId, PoolName};
use crate::core::job::JobFacts;
use crate::core::policy::Timing;
use crate::core::report::Report;
use crate::core::time::{Stamp, millis};

/// A kernel lock, released when it is dropped, also by kill -9.
pub trait Held: fmt::Debug {}

pub type Lock = Box<dyn Held>;

/// The instance assigned to a job, and how to reach it: all that `run` needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub instance: InstanceId,
    pub endpoint: Endpoint,
    /// True for a static host: cleaning has to find what the job leaves there.
    #[serde(default)]
    pub is_static: bool,
    #[serde(default)]
    pub timeouts: StageTimeouts,
}

/// The part of a policy's timing that `run` needs, as of the grant: a stage reads no pool state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTimeouts {
    /// `connect_timeout`: limit for connecting, and again for starting the script.
    #[serde(with = "millis")]
    pub start_within: Duration,
    /// `stop_grace`: from TERM to KILL.
    #[serde(with = "millis")]
    pub stop_grace: Duration,
}

impl From<&Timing> for StageTimeouts {
    fn from(timing: &Timing) -> Self {
        Self { start_within: timing.connect_timeout, stop_grace: timing.stop_grace }
    }
}

impl Default for StageTimeouts {
    fn default() -> Self {
        Self::from(&Timing::default())
    }
}

/// The content of an attempt's `job` file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub job: JobFacts,
    pub pool: PoolName,
    /// How its stages run.
    pub execution: Execution,
    /// Directory of its sources on the instance, as `config` reported it to the runner; `None`: unknown to `prepare`.
    #[serde(default)]
    pub builds_dir: Option<String>,
    pub begun: Stamp,
    #[serde(default)]
    pub assignment: Option<Assignment>,
}

/// An attempt that has just been closed by this call or an earlier one.
#[derive(Debug)]
pub struct Closing {
    /// To be held until the release is committed.
    pub lease: Lock,
    /// `None` if `prepare` never ran.
    pub record: Option<AttemptRecord>,
    pub used: bool,
    /// Another call of this attempt (a `run` that is being stopped) is still running.
    pub calls_remain: bool,
}

/// The identity of a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub owner: OwnerId,
    /// Set when the directory was copied or moved: nothing is launched, granted or terminated.
    pub moved: Option<String>,
    /// Every generation ever begun here.
    pub generations: BTreeSet<Generation>,
}

/// The mailbox in which a process waits for wake-ups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailboxName<'a> {
    Keeper(&'a PoolName),
    Attempt(&'a AttemptName),
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    Message,
    Timeout,
    /// SIGTERM.
    Stop,
    /// A keeper after SIGQUIT: the service in which it was started stops, and no attempt is open.
    Unneeded,
    /// The runner that started this call is gone.
    RunnerGone,
    /// The executable was replaced: the new one takes over.
    Replaced,
    /// The state directory was removed or replaced.
    Evicted,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// The attempt was closed and accepts no more calls.
    #[error("attempt `{attempt}` is closed: {closed}")]
    Closed { attempt: AttemptName, closed: Closed },
    #[error("{what}")]
    Io { what: String },
}

#[async_trait(?Send)]
pub trait Host {
    /// The owner of the directory, and whether it was copied or moved.
    async fn identity(&self) -> Result<Identity, HostError>;

    /// Records a new generation before its first launch, and syncs it to disk.
    async fn begin_generation(&self) -> Result<Generation, HostError>;

    /// For `prepare`: creates the attempt's directory with its lease already held, or uses an existing directory.
    /// `Closed` if `cleanup` ran first.
    async fn begin_attempt(
        &self,
        name: &AttemptName,
        record: &AttemptRecord,
    ) -> Result<(Lock, AttemptRecord), HostError>;

    /// For `run`: takes the lease shared. `None` if the attempt does not exist; `Closed` if it is closed.
    async fn enter_attempt(&self, name: &AttemptName) -> Result<Option<(Lock, AttemptRecord)>, HostError>;

    /// Writes the assignment (or its absence) into the `job` file.
    async fn assign(&self, name: &AttemptName, assignment: Option<&Assignment>) -> Result<(), HostError>;

    /// Sets the mark `used`; `Closed` if the attempt has been closed in the meantime.
    async fn mark_used(&self, name: &AttemptName) -> Result<(), HostError>;

    /// The mark `closed`, if it is set.
    async fn closed(&self, name: &AttemptName) -> Result<Option<Closed>, HostError>;

    /// Sets the mark `closed`, creating the directory if it is missing, and stops a living `run`. A mark that is set
    /// already stays as it is.
    async fn close_attempt(&self, name: &AttemptName, how: End) -> Result<Closing, HostError>;

    /// The pool's attempts, with everything that decides whether they have ended.
    async fn attempts(&self, pool: &PoolName) -> Result<BTreeMap<AttemptName, AttemptSeen>, HostError>;

    /// For the keeper: tries to lock the lease exclusively, without waiting. `None` if a call holds it.
    async fn seize_attempt(&self, name: &AttemptName) -> Result<Option<Lock>, HostError>;

    /// For the keeper, which holds the lease exclusively: sets the mark `closed`. Returns whether `used` was set.
    async fn mark_closed(&self, name: &AttemptName, how: End) -> Result<bool, HostError>;

    /// Removes the TMPDIR of a dead attempt, if device, inode and owner still match.
    async fn remove_tmpdir(&self, name: &AttemptName) -> Result<(), HostError>;

    /// Removes the directory of an attempt that ended long ago.
    async fn forget_attempt(&self, name: &AttemptName) -> Result<(), HostError>;

    /// Becomes the keeper; waits at most `within` for the previous one to exit.
    async fn lock_keeper(&self, within: Duration) -> Result<Option<Lock>, HostError>;

    /// True if a keeper is running. Takes a shared lock, so that a starting keeper never fails because of it.
    async fn keeper_lives(&self) -> Result<bool, HostError>;

    /// Starts a keeper in the background, unless another process is doing so. Returns when the keeper has detached.
    async fn start_keeper(&self) -> Result<(), HostError>;

    /// Sends the keeper a wake-up. Correctness never depends on it: errors are ignored.
    async fn wake_keeper(&self, pool: &PoolName);

    /// Sends a waiting `prepare` a wake-up: errors are ignored.
    async fn wake_attempt(&self, name: &AttemptName);

    /// Waits for a wake-up, a signal, or the end of `within`. Dropping the future loses no wake-up.
    async fn wait(&self, inbox: MailboxName<'_>, within: Duration) -> Result<WakeReason, HostError>;

    /// Sleeps within one effect; other effects continue.
    async fn pause(&self, time: Duration);

    /// Resolves when the runner stops this call, when the runner is gone, or when `cleanup` closes the attempt.
    async fn stopped(&self, name: &AttemptName) -> WakeReason;

    async fn write_report(&self, pool: &PoolName, report: &Report) -> Result<(), HostError>;

    async fn read_report(&self, pool: &PoolName) -> Result<Option<Report>, HostError>;
}
