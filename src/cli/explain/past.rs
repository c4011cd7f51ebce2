//! Reads a pool's history once and keeps what concerns the question.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use greenroom_core::attempt::End;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, InstanceId, JobKey, OfferingName, PoolName};
use greenroom_core::instance::{Answer, DrainReason};
use greenroom_core::job::JobFacts;
use greenroom_core::pool::PoolState;
use greenroom_core::time::Stamp;
use serde::Serialize;

use super::Unreadable;
use super::advice::WaitCause;
use super::sentence::{instance_of, request, sentence};
use crate::cli::fields::{self, tag};

/// The highest number of notable events of a pool that are shown.
const NOTABLE: usize = 20;
/// A shorter wait needs no explanation.
const SHORT: Duration = Duration::from_secs(1);

/// The subject to explain. The same word can name a job, an instance and a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) job: Option<u64>,
    pub(super) name: String,
}

impl Question {
    /// A job's number, with or without `#`, also at the end of its address; else a name.
    pub(super) fn of(what: &str) -> Self {
        let what = what.trim();
        let last = match what.rsplit_once("/jobs/") {
            Some((_, id)) if what.contains("://") => id.trim_end_matches('/'),
            _ => what.strip_prefix('#').unwrap_or(what),
        };
        Self { job: last.parse().ok(), name: last.to_owned() }
    }

    pub(super) fn is_pool(&self, pool: &PoolName) -> bool {
        self.name == pool.as_str()
    }
}

/// One event as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct EventLine {
    #[serde(serialize_with = "fields::moment")]
    pub(super) at: Stamp,
    #[serde(serialize_with = "fields::seconds")]
    pub(super) age_s: Duration,
    /// The event's name in the journal.
    pub(super) event: String,
    pub(super) instance: Option<InstanceId>,
    pub(super) attempt: Option<AttemptName>,
    pub(super) job: Option<u64>,
    pub(super) text: String,
}

/// Counts from the kept history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) jobs_asked: usize,
    pub(super) jobs_served: usize,
    pub(super) launches: usize,
    pub(super) launches_refused: usize,
    pub(super) became_ready: usize,
}

/// The part of a pool's history that answers the [`Question`].
#[derive(Debug, Default)]
pub(super) struct Past {
    /// The first event that is kept.
    pub(super) begins: Option<Stamp>,
    /// The events of each job with the number in question: the same number may exist on two servers.
    pub(super) jobs: BTreeMap<JobKey, Vec<EventLine>>,
    pub(super) instance: Vec<EventLine>,
    pub(super) notable: VecDeque<EventLine>,
    pub(super) tally: Tally,
    /// Names for suggestions.
    pub(super) known_jobs: BTreeSet<u64>,
    pub(super) known_instances: BTreeSet<InstanceId>,
    /// The events of the offering in question, and its launches.
    pub(super) offering: VecDeque<EventLine>,
    pub(super) of_offering: Tally,
    pub(super) known_offerings: BTreeSet<OfferingName>,
    /// Waits of jobs in question that are over.
    pub(super) waits: BTreeMap<JobKey, Vec<(Duration, WaitCause)>>,
    /// The reason for which the instance in question was drained.
    pub(super) drained: Option<DrainReason>,
    /// Attempts that came when the pool was at its limit.
    limited: BTreeSet<AttemptName>,
    /// Unreadable parts of the record, as the store reports them.
    pub(super) unreadable: Vec<String>,
    /// The events of the jobs in question.
    facts: BTreeMap<JobKey, JobFacts>,
    /// The state, as far as the kept history shows it.
    state: PoolState,
    /// Instances that the job in question has had, to follow them.
    followed: BTreeMap<InstanceId, JobKey>,
}

impl Past {
    pub(super) fn read(
        question: &Question,
        history: impl Iterator<Item = Result<Event, Unreadable>>,
        now: Stamp,
    ) -> Self {
        let mut past = Self::default();
        for event in history {
            match event {
                Ok(event) => past.take(question, &event, now),
                Err(problem) => past.unreadable.push(problem.to_string()),
            }
        }
        past
    }

    pub(super) fn facts(&self, job: &JobKey) -> Option<&JobFacts> {
        self.facts.get(job)
    }

    fn take(&mut self, question: &Question, event: &Event, now: Stamp) {
        self.begins.get_or_insert(event.at);
        let line = self.line(event, now);
        count(&mut self.tally, &event.change);
        self.take_offering(question, &event.change, &line);
        self.take_wait(question, event);
        if let Some(id) = &line.instance {
            self.known_instances.insert(id.clone());
            if id.as_str() == question.name {
                self.instance.push(line.clone());
                if let Change::DrainingBegun { reason, .. } = &event.change {
                    self.drained = Some(reason.clone());
                }
            }
        }
        if let Some(job) = self.job_of(event).filter(|job| Some(job.id) == question.job) {
            match (&event.change, &line.instance) {
                (Change::Requested { job: facts, .. }, _) => {
                    self.facts.insert(job.clone(), facts.clone());
                }
                (Change::Granted { .. }, Some(id)) => {
                    self.followed.insert(id.clone(), job.clone());
                }
                _ => {}
            }
            self.jobs.entry(job).or_default().push(line.clone());
        } else if let Some(job) = self.follows(event, &line) {
            self.jobs.entry(job).or_default().push(line.clone());
        }
        if is_notable(&event.change) {
            if self.notable.len() == NOTABLE {
                self.notable.pop_front();
            }
            self.notable.push_back(line);
        }
        // An inapplicable event concerns something before the kept history; the others are still applied.
        self.state.apply(event).ok();
    }

    fn line(&mut self, event: &Event, now: Stamp) -> EventLine {
        let attempt = attempt_of(&event.change).cloned();
        let on = attempt.as_ref().and_then(|a| instance_of(&self.state, a)).map(|i| i.id.clone());
        let job = self.job_of(event);
        if let (Change::Requested { .. }, Some(key)) = (&event.change, &job) {
            self.known_jobs.insert(key.id);
        }
        EventLine {
            at: event.at,
            age_s: now.since(event.at),
            event: tag(&event.change, "event"),
            instance: named(&event.change).cloned().or(on),
            job: job.map(|key| key.id),
            text: sentence(&self.state, event),
            attempt,
        }
    }

    fn job_of(&self, event: &Event) -> Option<JobKey> {
        if let Change::Requested { job, .. } = &event.change {
            return Some(job.key.clone());
        }
        let attempt = attempt_of(&event.change)?;
        let closing = || instance_of(&self.state, attempt)?.holders.get(attempt).map(|h| h.job.clone());
        request(&self.state, attempt).map(|r| r.job.key.clone()).or_else(closing)
    }

    /// The job in question, if the event concerns an instance that it has had, which is gone or serves another job
    /// later.
    fn follows(&mut self, event: &Event, line: &EventLine) -> Option<JobKey> {
        let id = line.instance.as_ref()?;
        let job = self.followed.get(id)?.clone();
        let still_there = || {
            let known = self.state.instance(id);
            known.is_some_and(|i| i.holders.values().any(|h| h.job == job && h.closing.is_none()))
        };
        match &event.change {
            Change::Granted { .. } if still_there() => None,
            Change::Forgotten { .. } | Change::RecordDropped { .. } | Change::Granted { .. } => {
                self.followed.remove(id);
                Some(job)
            }
            // Events of other jobs on it do not concern this one.
            Change::Released { .. }
            | Change::Rejected { .. }
            | Change::JobEnded { .. }
            | Change::Rechecked { .. }
            | Change::SlotFreed { .. } => None,
            _ => Some(job),
        }
    }

    /// Launches of the offering in question, and their boots.
    fn take_offering(&mut self, question: &Question, change: &Change, line: &EventLine) {
        let launched = |id: &InstanceId| self.state.instance(id).and_then(|known| known.offering()).cloned();
        let offering = match change {
            Change::LaunchIntended { offering, .. } => offering.clone(),
            Change::LaunchAnswered { instance, .. } | Change::BecameReady { instance } => launched(instance),
            Change::DrainingBegun { instance, reason } if reason.is_launch_failure() => launched(instance),
            _ => None,
        };
        let Some(offering) = offering else { return };
        if offering.as_str() == question.name {
            count(&mut self.of_offering, change);
            if self.offering.len() == NOTABLE {
                self.offering.pop_front();
            }
            self.offering.push_back(line.clone());
        }
        self.known_offerings.insert(offering);
    }

    /// Takes the length of a wait that is over, and its cause, if the job is in question.
    fn take_wait(&mut self, question: &Question, event: &Event) {
        let (attempt, instance) = match &event.change {
            Change::Requested { attempt, job, .. } if Some(job.key.id) == question.job => {
                let limit = self.state.policy.as_ref().map(|policy| policy.max_instances);
                if limit.is_some_and(|limit| self.state.alive() >= limit) {
                    self.limited.insert(attempt.clone());
                }
                return;
            }
            Change::Granted { attempt, instance } => (attempt, Some(instance)),
            Change::Withdrawn { attempt, how: End::GivenBack } => (attempt, None),
            _ => return,
        };
        let Some(request) = request(&self.state, attempt).filter(|r| Some(r.job.key.id) == question.job)
        else {
            return;
        };
        let waited = event.at.since(request.requested_at);
        if waited < SHORT {
            return;
        }
        let known = instance.and_then(|id| self.state.instance(id));
        let booted =
            known.and_then(|known| known.ready).is_some_and(|ready| !request.requested_at.reached(ready));
        let cause = match instance {
            None => WaitCause::GaveUp,
            Some(_) if self.limited.contains(attempt) => WaitCause::Limit,
            Some(_) if booted && known.is_some_and(|known| known.resumed.is_some()) => WaitCause::Resume,
            Some(_) if request.job.order.is_some() => WaitCause::Ordered,
            Some(_) if booted => WaitCause::Boot,
            Some(_) => WaitCause::Freed,
        };
        let job = request.job.key.clone();
        self.waits.entry(job).or_default().push((waited, cause));
    }
}

fn count(tally: &mut Tally, change: &Change) {
    match change {
        Change::Requested { .. } => tally.jobs_asked += 1,
        Change::Released { release: leaving, .. } if leaving.used => tally.jobs_served += 1,
        Change::LaunchIntended { .. } => tally.launches += 1,
        Change::LaunchAnswered { answer: Answer::Refused { .. }, .. } => tally.launches_refused += 1,
        Change::BecameReady { .. } => tally.became_ready += 1,
        _ => {}
    }
}

/// True if the event matters for the whole pool. The usual events of jobs and instances are only counted.
fn is_notable(change: &Change) -> bool {
    match change {
        Change::PolicySet { .. }
        | Change::GenerationBegun { .. }
        | Change::OfferingsChanged { .. }
        | Change::Adopted { .. }
        | Change::Resized { .. }
        | Change::Readdressed { .. }
        | Change::BecameUnreachable { .. }
        | Change::Rejected { .. }
        | Change::StageNotBegun { .. }
        | Change::FailedEarly { .. }
        | Change::StageBegun { .. }
        | Change::OrderRefused { .. }
        | Change::OutOfService { .. }
        | Change::ReturnedToService { .. }
        | Change::Unbound { .. }
        | Change::MissingFromList { .. }
        | Change::Located { .. }
        | Change::ListedAgain { .. }
        | Change::RecordDropped { .. }
        | Change::PoolDrained
        | Change::PoolResumed => true,
        Change::LaunchAnswered { answer, .. } => {
            matches!(answer, Answer::Unknown { .. } | Answer::Refused { .. })
        }
        Change::Withdrawn { how, .. } => *how != End::Superseded,
        Change::Released { release: leaving, .. } => leaving.how != End::CleanedUp,
        Change::DrainingBegun { reason: why, .. } => {
            !matches!(why, DrainReason::UsedUp | DrainReason::Surplus)
        }
        Change::LaunchIntended { .. }
        | Change::Reached { .. }
        | Change::BecameReady { .. }
        | Change::Rechecked { .. }
        | Change::SuspendIntended { .. }
        | Change::Suspended { .. }
        | Change::ResumeIntended { .. }
        | Change::Requested { .. }
        | Change::Granted { .. }
        | Change::JobEnded { .. }
        | Change::SlotFreed { .. }
        | Change::ImagesFound { .. }
        | Change::ImagesRemoved { .. }
        | Change::CleaningBegun { .. }
        | Change::Cleaned { .. }
        | Change::Forgotten { .. } => false,
    }
}

/// The instance that an event names itself.
fn named(change: &Change) -> Option<&InstanceId> {
    match change {
        Change::LaunchIntended { instance, .. }
        | Change::LaunchAnswered { instance, .. }
        | Change::Reached { instance, .. }
        | Change::BecameReady { instance }
        | Change::SuspendIntended { instance }
        | Change::Suspended { instance }
        | Change::ResumeIntended { instance }
        | Change::Adopted { instance, .. }
        | Change::Resized { instance, .. }
        | Change::Readdressed { instance, .. }
        | Change::BecameUnreachable { instance, .. }
        | Change::Granted { instance, .. }
        | Change::StageBegun { instance, .. }
        | Change::Rechecked { instance }
        | Change::ImagesFound { instance, .. }
        | Change::ImagesRemoved { instance, .. }
        | Change::CleaningBegun { instance }
        | Change::Cleaned { instance, .. }
        | Change::OutOfService { instance, .. }
        | Change::ReturnedToService { instance }
        | Change::Unbound { instance }
        | Change::DrainingBegun { instance, .. }
        | Change::MissingFromList { instance, .. }
        | Change::Located { instance, .. }
        | Change::ListedAgain { instance }
        | Change::RecordDropped { instance, .. }
        | Change::Forgotten { instance } => Some(instance),
        Change::PolicySet { .. }
        | Change::GenerationBegun { .. }
        | Change::OfferingsChanged { .. }
        | Change::Requested { .. }
        | Change::Withdrawn { .. }
        | Change::OrderRefused { .. }
        | Change::Rejected { .. }
        | Change::StageNotBegun { .. }
        | Change::FailedEarly { .. }
        | Change::JobEnded { .. }
        | Change::Released { .. }
        | Change::SlotFreed { .. }
        | Change::PoolDrained
        | Change::PoolResumed => None,
    }
}

fn attempt_of(change: &Change) -> Option<&AttemptName> {
    match change {
        Change::Requested { attempt, .. }
        | Change::Granted { attempt, .. }
        | Change::Withdrawn { attempt, .. }
        | Change::OrderRefused { attempt, .. }
        | Change::Rejected { attempt, .. }
        | Change::StageNotBegun { attempt, .. }
        | Change::FailedEarly { attempt, .. }
        | Change::JobEnded { attempt, .. }
        | Change::Released { attempt, .. }
        | Change::SlotFreed { attempt } => Some(attempt),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_asked_for_by_number_hash_or_address() {
        for what in ["4711", "#4711", " 4711 ", "https://gitlab.example.com/acme/shop/-/jobs/4711"] {
            assert_eq!(Question::of(what).job, Some(4711), "{what}");
        }
        assert_eq!(Question::of("linux-7f3a-1"), Question { job: None, name: "linux-7f3a-1".into() });
    }
}
