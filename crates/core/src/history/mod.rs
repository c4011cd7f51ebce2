//! The history of jobs, as the kept events tell it.
//!
//! Any part of a journal gives a [`Part`], which does not depend on the parts before it: a store can keep it as an index. A
//! [`Collector`] merges parts, oldest first, into one [`JobRecord`] for each job.

mod collect;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use collect::Collector;
use serde::{Deserialize, Serialize};

use crate::attempt::End;
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId, JobKey, OfferingName};
use crate::images::WantedImages;
use crate::job::JobFacts;
use crate::job_end::JobEnd;
use crate::start::Start;
use crate::time::Stamp;

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

/// The facts that a part of the journal tells.
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
    /// Time at which the granted instance first became ready, since it was resumed if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ready: Option<Stamp>,
    /// Time at which a job or a cleaning last left room on the instance, before this grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    freed: Option<Stamp>,
    /// The granted instance was stopped before it became ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    resumed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offering: Option<OfferingName>,
    /// True if the attempt found an instance unusable before this grant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    rejected: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<JobEnd>,
    /// The time at which the attempt left the queue or its instance, and the reason.
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
    /// Time at which a job or a cleaning last left room on the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    freed: Option<Stamp>,
    /// True if the instance was resumed in this part, and `ready` is the first time since then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    resumed: bool,
}

/// The present or last activity of a job.
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
    /// Time of the request, by the job's first attempt of the period.
    pub requested: Stamp,
    /// Number of times that GitLab Runner tried to prepare the job.
    pub attempts: u32,
    pub phase: JobPhase,
    /// Time that the job's attempts waited for their grants; an attempt that still waits is left out.
    pub waited: Duration,
    pub start: Option<Start>,
    pub instance: Option<InstanceId>,
    pub offering: Option<OfferingName>,
    pub granted: Option<Stamp>,
    /// Time at which the job left its instance or the queue; `None`: not yet, or unknown.
    pub left: Option<Stamp>,
    /// The job's end; `None`: not yet, or unknown.
    pub end: Option<JobEnd>,
}

impl JobRecord {
    /// Time for which the job held its instance.
    pub fn lasted(&self) -> Option<Duration> {
        Some(self.left?.since(self.granted?))
    }
}

// Gathers the facts of a part of a journal.

/// Takes the events of a part in their order.
#[derive(Debug, Default)]
pub struct PartBuilder {
    begins: Option<Stamp>,
    attempts: BTreeMap<AttemptName, AttemptFacts>,
    instances: BTreeMap<InstanceId, InstanceFacts>,
    gone: BTreeSet<InstanceId>,
}

impl PartBuilder {
    pub fn take(&mut self, event: &Event) {
        let at = event.at;
        self.begins.get_or_insert(at);
        match &event.change {
            Change::LaunchIntended { instance, offering, .. } => self.launched(instance, offering.as_ref()),
            Change::BecameReady { instance } => {
                self.instance(instance, false).ready.get_or_insert(at);
            }
            Change::ResumeIntended { instance } => {
                let known = self.instance(instance, false);
                known.ready = None;
                known.resumed = true;
            }
            Change::Forgotten { instance } | Change::RecordDropped { instance, .. } => {
                let launched_here = self.instances.remove(instance).is_some_and(|known| known.launched);
                if !launched_here {
                    self.gone.insert(instance.clone());
                }
            }
            Change::Requested { attempt, job, .. } => {
                // Of a name that is used again, the later attempt counts.
                let fresh = AttemptFacts {
                    job: Some(JobFacts { images: WantedImages::default(), ..job.clone() }),
                    requested: Some(at),
                    ..AttemptFacts::new(attempt.clone())
                };
                self.attempts.insert(attempt.clone(), fresh);
            }
            Change::Granted { attempt, instance } => self.granted(attempt, instance, at),
            Change::Rejected { attempt, .. } => {
                let known = self.attempt(attempt);
                known.granted = None;
                known.ready = None;
                known.freed = None;
                known.offering = None;
                known.rejected = true;
                known.resumed = false;
            }
            Change::Cleaned { instance, .. } | Change::ReturnedToService { instance } => {
                self.instance(instance, false).freed = Some(at);
            }
            Change::JobEnded { attempt, end } => self.attempt(attempt).end = Some(end.clone()),
            Change::Withdrawn { attempt, how } => self.left(attempt, at, *how),
            Change::Released { attempt, release } => {
                self.left(attempt, at, release.how);
                let held = self.attempts.get(attempt).and_then(|facts| facts.granted.clone());
                self.freed(held, at);
            }
            Change::PolicySet { .. }
            | Change::GenerationBegun { .. }
            | Change::OfferingsChanged { .. }
            | Change::LaunchAnswered { .. }
            | Change::Reached { .. }
            | Change::SuspendIntended { .. }
            | Change::Suspended { .. }
            | Change::Adopted { .. }
            | Change::Resized { .. }
            | Change::Readdressed { .. }
            | Change::BecameUnreachable { .. }
            | Change::OrderRefused { .. }
            | Change::StageNotBegun { .. }
            | Change::StageBegun { .. }
            | Change::Rechecked { .. }
            | Change::FailedEarly { .. }
            | Change::SlotFreed { .. }
            | Change::ImagesFound { .. }
            | Change::ImagesRemoved { .. }
            | Change::CleaningBegun { .. }
            | Change::OutOfService { .. }
            | Change::Unbound { .. }
            | Change::DrainingBegun { .. }
            | Change::MissingFromList { .. }
            | Change::Located { .. }
            | Change::ListedAgain { .. }
            | Change::PoolDrained
            | Change::PoolResumed => {}
        }
    }

    pub fn finish(self) -> Part {
        Part {
            begins: self.begins,
            attempts: self.attempts.into_values().collect(),
            instances: self.instances.into_values().collect(),
            gone: self.gone.into_iter().collect(),
        }
    }

    fn attempt(&mut self, name: &AttemptName) -> &mut AttemptFacts {
        self.attempts.entry(name.clone()).or_insert_with(|| AttemptFacts::new(name.clone()))
    }

    fn instance(&mut self, id: &InstanceId, launched: bool) -> &mut InstanceFacts {
        let new = || InstanceFacts {
            instance: id.clone(),
            launched,
            offering: None,
            ready: None,
            freed: None,
            resumed: false,
        };
        self.instances.entry(id.clone()).or_insert_with(new)
    }

    fn launched(&mut self, id: &InstanceId, offering: Option<&OfferingName>) {
        self.gone.remove(id);
        self.instance(id, true).offering = offering.cloned();
    }

    fn granted(&mut self, attempt: &AttemptName, instance: &InstanceId, at: Stamp) {
        let known = self.instance(instance, false);
        let freed = known.freed;
        let resumed = known.resumed;
        let launched = Some(known.clone()).filter(|known| known.launched);
        let (ready, offering) = launched.map_or((None, None), |known| (known.ready, known.offering));
        let facts = self.attempt(attempt);
        facts.granted = Some((at, instance.clone()));
        facts.ready = ready;
        facts.freed = freed;
        facts.offering = offering;
        facts.resumed = resumed;
    }

    /// The instance of a grant has room again.
    fn freed(&mut self, held: Option<(Stamp, InstanceId)>, at: Stamp) {
        if let Some((_, instance)) = held {
            self.instance(&instance, false).freed = Some(at);
        }
    }

    fn left(&mut self, attempt: &AttemptName, at: Stamp, how: End) {
        self.attempt(attempt).left.get_or_insert((at, how));
    }
}
