//! What the kept events tell about jobs.
//!
//! Any part of a journal gives a `Part`, which does not depend on the parts before it: a store can keep it as an index.
//! A `Collector` merges parts, oldest first, into one record for each job.

mod collect;
mod part;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::attempt::End;
use super::ids::{AttemptName, InstanceId, JobKey, OfferingName};
use super::job::JobFacts;
use super::job_end::JobEnd;
use super::start::Start;
use super::time::Stamp;

pub use collect::Collector;
pub use part::PartBuilder;

/// The time that a question is about, by the wall clock. It contains a job that was waiting or running at any moment of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Milliseconds since 1970.
    pub since_ms: i64,
    pub until_ms: i64,
}

impl Period {
    pub const ALL: Self = Self { since_ms: i64::MIN, until_ms: i64::MAX };

    /// `left`: `None`, the job has not ended.
    fn contains(&self, requested: Stamp, left: Option<Stamp>) -> bool {
        requested.wall_ms <= self.until_ms && left.is_none_or(|left| left.wall_ms >= self.since_ms)
    }
}

/// What a part of the journal tells.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Time of its first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<Stamp>,
    attempts: Vec<AttemptFacts>,
    /// Instances that were launched, became ready or got jobs in it, and are not gone at its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    instances: Vec<InstanceFacts>,
    /// Instances that were launched before it, and are gone at its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<InstanceId>,
}

/// An attempt, as far as a part of the journal tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct AttemptFacts {
    attempt: AttemptName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<JobFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requested: Option<Stamp>,
    /// The last grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    granted: Option<(Stamp, InstanceId)>,
    /// When the granted instance first became ready, since it was resumed if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ready: Option<Stamp>,
    /// When a job or a cleaning last left room on it, before this grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    freed: Option<Stamp>,
    /// The granted instance was stopped before it became ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    resumed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offering: Option<OfferingName>,
    /// It found an instance unusable before this grant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    rejected: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<JobEnd>,
    /// When and why it left the queue or its instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<(Stamp, End)>,
}

impl AttemptFacts {
    fn new(attempt: AttemptName) -> Self {
        Self {
            attempt,
            job: None,
            requested: None,
            granted: None,
            ready: None,
            freed: None,
            resumed: false,
            offering: None,
            rejected: false,
            end: None,
            left: None,
        }
    }
}

/// An instance, as far as a part of the journal tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct InstanceFacts {
    instance: InstanceId,
    /// False: it was launched before this part, so `ready` may not be the first time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    launched: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offering: Option<OfferingName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ready: Option<Stamp>,
    /// When a job or a cleaning last left room on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    freed: Option<Stamp>,
    /// It was resumed in this part, and `ready` is the first time since then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    resumed: bool,
}

/// What a job does, or did last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobPhase {
    Waiting,
    Running,
    Ended,
}

/// A job, from its first request to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRecord {
    pub job: JobKey,
    pub project: Arc<str>,
    pub name: Option<Arc<str>>,
    pub stage: Option<Arc<str>>,
    pub pipeline: Option<u64>,
    pub git_ref: Option<Arc<str>>,
    /// By its first attempt of the period.
    pub requested: Stamp,
    /// How often GitLab Runner tried to prepare it.
    pub attempts: u32,
    pub phase: JobPhase,
    /// How long its attempts waited for their grants; an attempt that still waits is left out.
    pub waited: Duration,
    pub start: Option<Start>,
    pub instance: Option<InstanceId>,
    pub offering: Option<OfferingName>,
    pub granted: Option<Stamp>,
    /// When it left its instance or the queue; `None`: not yet, or unknown.
    pub left: Option<Stamp>,
    /// How it ended; `None`: not yet, or unknown.
    pub end: Option<JobEnd>,
}

impl JobRecord {
    /// How long it held its instance.
    pub fn lasted(&self) -> Option<Duration> {
        Some(self.left?.since(self.granted?))
    }
}
