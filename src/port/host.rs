//! The state directory beside the journal: attempts, leases, marks, the keeper's lock, wake-ups.
//!
//! A lease is a kernel lock on an attempt's `lease` file. `prepare`, `run` and `cleanup` hold it shared from start to
//! end; only the keeper tries it exclusively, without waiting. Lock order everywhere: lease, then store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::core::attempt::AttemptSeen;
use crate::core::endpoint::Endpoint;
use crate::core::ids::{AttemptName, Generation, InstanceId, OwnerId, PoolName};
use crate::core::job::JobFacts;
use crate::core::policy::Timing;
use crate::core::report::Report;
use crate::core::time::{Stamp, millis};

/// A kernel lock, given back when it is dropped, also by kill -9.
pub trait Held: fmt::Debug {}

pub type Lock = Box<dyn Held>;

/// The instance that a job was given, and how to reach it: all that `run` needs.
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

/// The part of a policy's timing that `run` needs, as it was at the grant: a stage reads no pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTimeouts {
    /// `connect_timeout`: to connect, and again until the instance has begun with the script.
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

/// What the `job` file of an attempt says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub job: JobFacts,
    pub pool: PoolName,
    /// The interpreter of its scripts.
    pub shell: String,
    /// Where its sources lie on the instance, as `config` told the runner; `None`: `prepare` could not tell.
    #[serde(default)]
    pub builds_dir: Option<String>,
    pub begun: Stamp,
    #[serde(default)]
    pub assignment: Option<Assignment>,
}

/// An attempt that has just been closed by this call or an earlier one.
#[derive(Debug)]
pub struct Closing {
    /// Keep it until the release is committed.
    pub lease: Lock,
    /// `None` if no `prepare` ever came.
    pub record: Option<AttemptRecord>,
    pub used: bool,
    /// Another call of this attempt (a `run` that is being stopped) still lives.
    pub lingering: bool,
}

/// Whose state directory this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub owner: OwnerId,
    /// Set when the directory was copied or moved: nothing is launched, granted or terminated.
    pub moved: Option<String>,
    /// Every generation ever begun here.
    pub generations: BTreeSet<Generation>,
}

/// Where a process waits.
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
    /// A keeper after SIGQUIT: the service that it was started in stops, and the last job has gone.
    Unneeded,
    /// The runner that called us is gone.
    RunnerGone,
    /// Another executable lies where ours was: it shall take over.
    Replaced,
    /// The state directory is gone, or is another one.
    Evicted,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// `cleanup` has been here: the attempt takes no more calls.
    #[error("attempt `{attempt}` is closed")]
    Closed { attempt: AttemptName },
    #[error("{what}")]
    Io { what: String },
}

#[async_trait(?Send)]
pub trait Host {
    /// Whose directory is this, and is it where it was made?
    async fn identity(&self) -> Result<Identity, HostError>;

    /// Records a new generation, synced, before its first launch.
    async fn begin_generation(&self) -> Result<Generation, HostError>;

    /// `prepare`: makes the attempt's directory with the lease already held and puts it in place; if the name
    /// exists, uses that one. `Closed` if `cleanup` came first.
    async fn begin_attempt(
        &self,
        name: &AttemptName,
        record: &AttemptRecord,
    ) -> Result<(Lock, AttemptRecord), HostError>;

    /// `run`: takes the lease shared. `None` if there is no such attempt; `Closed` if it is closed.
    async fn enter_attempt(&self, name: &AttemptName) -> Result<Option<(Lock, AttemptRecord)>, HostError>;

    /// Writes the assignment (or its absence) into the `job` file.
    async fn assign(&self, name: &AttemptName, assignment: Option<&Assignment>) -> Result<(), HostError>;

    /// Sets the mark `used`; `Closed` if the attempt was closed meanwhile.
    async fn mark_used(&self, name: &AttemptName) -> Result<(), HostError>;

    async fn is_closed(&self, name: &AttemptName) -> Result<bool, HostError>;

    /// Sets the mark `closed`, making the directory if there is none, and tells a living `run` to stop.
    async fn close_attempt(&self, name: &AttemptName) -> Result<Closing, HostError>;

    /// Everything about this pool's attempts that decides whether they are over.
    async fn attempts(&self, pool: &PoolName) -> Result<BTreeMap<AttemptName, AttemptSeen>, HostError>;

    /// The keeper: tries the lease exclusively, without waiting. `None` if some call holds it.
    async fn seize_attempt(&self, name: &AttemptName) -> Result<Option<Lock>, HostError>;

    /// The keeper, holding the lease exclusively: sets the mark `closed`; says whether `used` was set.
    async fn mark_closed(&self, name: &AttemptName) -> Result<bool, HostError>;

    /// Removes what a dead attempt left in its TMPDIR, if device, inode and owner still match.
    async fn clear_leftovers(&self, name: &AttemptName) -> Result<(), HostError>;

    /// Removes the directory of an attempt that ended long ago.
    async fn forget_attempt(&self, name: &AttemptName) -> Result<(), HostError>;

    /// Becomes the keeper; waits at most `within` for the one before to go.
    async fn lock_keeper(&self, within: Duration) -> Result<Option<Lock>, HostError>;

    /// Is there a keeper? Tried shared, so that a starting one is not turned away.
    async fn keeper_lives(&self) -> Result<bool, HostError>;

    /// Starts a keeper in the background, unless somebody is doing so. Returns when it is on its own.
    async fn start_keeper(&self) -> Result<(), HostError>;

    /// A hint, never needed for correctness: errors are ignored.
    async fn wake_keeper(&self, pool: &PoolName);

    /// A hint to a waiting `prepare`: errors are ignored.
    async fn wake_attempt(&self, name: &AttemptName);

    /// Waits for a hint, a signal, or the end of `within`. Dropping the future loses no hint.
    async fn wait(&self, inbox: MailboxName<'_>, within: Duration) -> Result<WakeReason, HostError>;

    /// Lets time pass, inside one effect; other effects go on.
    async fn pause(&self, time: Duration);

    /// Resolves when the runner wants this call to stop, or is gone, or `cleanup` came beside it.
    async fn stopped(&self, name: &AttemptName) -> WakeReason;

    async fn write_report(&self, pool: &PoolName, report: &Report) -> Result<(), HostError>;

    async fn read_report(&self, pool: &PoolName) -> Result<Option<Report>, HostError>;
}
