//! The attempts of a runner host: their records, leases and marks.
//!
//! A lease is a kernel lock on an attempt's `lease` file. `prepare`, `run` and `cleanup` hold it shared from start to
//! end; only the keeper tries to lock it exclusively, without waiting. Lock order everywhere: lease, then store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::attempt::{AttemptSeen, Closed, End};
use greenroom_core::container::name::JobContainer;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Execution;
use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::job::JobFacts;
use greenroom_core::order::LaunchOrder;
use greenroom_core::policy::{Timing, container_start, is_container_start};
use greenroom_core::time::{Stamp, millis};
use serde::{Deserialize, Serialize};

use super::host_error::HostError;
use super::lock::Lock;

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
    /// The instance did not begin a stage of the jobs before, or an earlier one of this job: one that begins is recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbegun: bool,
    /// The job's container; `None` until it is created, and for jobs on the machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<JobContainer>,
}

/// The part of a policy's [`Timing`] that `run` needs, as of the grant: a stage reads no pool state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTimeouts {
    /// `connect_timeout`: limit for connecting, and again for starting the script.
    #[serde(with = "millis")]
    pub start_within: Duration,
    /// `stop_grace`: from TERM to KILL.
    #[serde(with = "millis")]
    pub stop_grace: Duration,
    /// `container_start_timeout`: limit for the engine to start the job's container.
    #[serde(with = "millis", default = "container_start", skip_serializing_if = "is_container_start")]
    pub container_start: Duration,
}

impl From<&Timing> for StageTimeouts {
    fn from(timing: &Timing) -> Self {
        Self {
            start_within: timing.connect_timeout,
            stop_grace: timing.stop_grace,
            container_start: timing.container_start_timeout,
        }
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
    /// The way in which the attempt's stages run.
    pub execution: Execution,
    /// Directory of its sources on the instance, as `config` reported it to the runner; `None`: unknown to `prepare`.
    #[serde(default)]
    pub builds_dir: Option<String>,
    pub begun: Stamp,
    #[serde(default)]
    pub assignment: Option<Assignment>,
    /// The job's order with the values of variables. [`Attempts::begin_attempt`] writes it into a file of its own, and only
    /// [`Attempts::order`] reads it.
    #[serde(skip)]
    pub order: Option<LaunchOrder>,
}

/// An attempt that has just been closed by this call or an earlier one.
#[derive(Debug)]
pub struct Closing {
    /// The attempt's lease, to be held until the release is committed.
    pub lease: Lock,
    /// `None` if `prepare` never ran.
    pub record: Option<AttemptRecord>,
    pub used: bool,
    /// Another call of this attempt (a `run` that is being stopped) is still running.
    pub calls_remain: bool,
}

/// The attempts of one manager. A manager judges its own attempts and no others, because only there leases and runners can
/// be seen.
#[async_trait(?Send)]
pub trait Attempts: fmt::Debug {
    /// Begins an attempt, for `prepare`: creates the attempt's directory with its lease already held, or uses an existing
    /// directory. [`HostError::Closed`] if `cleanup` ran first.
    async fn begin_attempt(
        &self,
        name: &AttemptName,
        record: &AttemptRecord,
    ) -> Result<(Lock, AttemptRecord), HostError>;

    /// Enters an attempt, for `run`: takes the lease shared. `None` if the attempt does not exist; [`HostError::Closed`] if
    /// it is closed.
    async fn enter_attempt(&self, name: &AttemptName) -> Result<Option<(Lock, AttemptRecord)>, HostError>;

    /// The order, for the keeper, that [`begin_attempt`](Self::begin_attempt) wrote; `None` if the attempt has none, is
    /// closed, or is gone.
    async fn order(&self, name: &AttemptName) -> Result<Option<LaunchOrder>, HostError>;

    /// The directory of an attempt's sources, as its `prepare` recorded it; `None` if it recorded none, or is gone.
    async fn builds_dir(&self, _name: &AttemptName) -> Result<Option<String>, HostError> {
        Ok(None)
    }

    /// Writes the [`Assignment`] (or its absence) into the `job` file, the [`AttemptRecord`].
    async fn assign(&self, name: &AttemptName, assignment: Option<&Assignment>) -> Result<(), HostError>;

    /// Sets the mark `used`; [`HostError::Closed`] if the attempt has been closed in the meantime.
    async fn mark_used(&self, name: &AttemptName) -> Result<(), HostError>;

    /// The mark `closed`, if it is set.
    async fn closed(&self, name: &AttemptName) -> Result<Option<Closed>, HostError>;

    /// Sets the mark `closed`, creating the directory if it is missing, and stops a living `run`. A mark that is set
    /// already stays as it is.
    async fn close_attempt(&self, name: &AttemptName, how: End) -> Result<Closing, HostError>;

    /// The pool's attempts, with everything that decides whether they have ended.
    async fn attempts_of(&self, pool: &PoolName) -> Result<BTreeMap<AttemptName, AttemptSeen>, HostError>;

    /// Attempts of any pool that are gone, although builds of theirs are left on the runner host. A host may search for
    /// them less often than it is asked.
    async fn orphaned_builds(&self) -> BTreeSet<AttemptName> {
        BTreeSet::new()
    }

    /// Seizes an attempt, for the keeper: tries to lock the lease exclusively, without waiting. `None` if a call holds it.
    async fn seize_attempt(&self, name: &AttemptName) -> Result<Option<Lock>, HostError>;

    /// Sets the mark `closed`, for the keeper, which holds the lease exclusively. Returns whether `used` was set.
    async fn mark_closed(&self, name: &AttemptName, how: End) -> Result<bool, HostError>;

    /// Removes the TMPDIR of a dead attempt, if device, inode and owner still match.
    async fn remove_tmpdir(&self, name: &AttemptName) -> Result<(), HostError>;

    /// Removes the directory of an attempt that ended long ago, or is gone, and its builds on the runner host.
    async fn forget_attempt(&self, name: &AttemptName) -> Result<(), HostError>;
}
