//! Merges parts of a journal into records of jobs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use super::{AttemptFacts, InstanceFacts, JobPhase, JobRecord, Part, Period, Start};
use crate::core::ids::{AttemptName, InstanceId, JobKey};
use crate::core::job_end::JobEnd;
use crate::core::pool::PoolState;
use crate::core::time::Stamp;

/// A grant that takes longer had to wait for something.
const IMMEDIATELY: Duration = Duration::from_secs(1);

/// Takes parts, oldest first.
#[derive(Debug)]
pub struct Collector {
    period: Period,
    begins: Option<Stamp>,
    /// Attempts that have not ended so far.
    open: BTreeMap<AttemptName, AttemptFacts>,
    /// Instances that are not gone so far.
    instances: BTreeMap<InstanceId, InstanceFacts>,
    ended: Vec<AttemptFacts>,
}

impl Collector {
    pub fn new(period: Period) -> Self {
        let (open, instances) = (BTreeMap::new(), BTreeMap::new());
        Self { period, begins: None, open, instances, ended: Vec::new() }
    }

    /// Time of the first event.
    pub fn begins(&self) -> Option<Stamp> {
        self.begins
    }

    pub fn add(&mut self, part: Part) {
        self.begins = self.begins.or(part.begins);
        for fresh in part.instances {
            match self.instances.entry(fresh.instance.clone()) {
                Entry::Vacant(free) => drop(free.insert(fresh)),
                Entry::Occupied(mut known) if fresh.launched => drop(known.insert(fresh)),
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.ready = known.ready.or(fresh.ready);
                }
            }
        }
        for facts in part.attempts {
            self.attempt(facts);
        }
        for gone in part.gone {
            self.instances.remove(&gone);
        }
    }

    fn attempt(&mut self, facts: AttemptFacts) {
        let facts = match self.open.remove(&facts.attempt) {
            Some(earlier) if facts.requested.is_none() => merged(earlier, facts),
            _ => facts,
        };
        let facts = self.with_instance(facts);
        match facts.left {
            // The request is no longer kept: nothing tells which job it was.
            Some(_) if facts.requested.is_none() => {}
            Some((left, _)) => {
                if facts.requested.is_some_and(|requested| self.period.contains(requested, Some(left))) {
                    self.ended.push(facts);
                }
            }
            None => drop(self.open.insert(facts.attempt.clone(), facts)),
        }
    }

    /// Completes the facts with those of the granted instance, which may have been launched in an earlier part.
    fn with_instance(&self, facts: AttemptFacts) -> AttemptFacts {
        let known = facts.granted.as_ref().and_then(|(_, id)| self.instances.get(id));
        let Some(known) = known.filter(|known| known.launched) else { return facts };
        let (ready, offering) = (facts.ready.or(known.ready), facts.offering.or(known.offering.clone()));
        AttemptFacts { ready, offering, ..facts }
    }

    /// The jobs of the period, in the order of their requests. `state`: the present one, which shows whether an attempt
    /// without a recorded end is still open.
    pub fn finish(self, state: &PoolState) -> Vec<JobRecord> {
        let is_open =
            |name: &AttemptName| state.granted.contains_key(name) || state.waiting_for(name).is_some();
        let mut attempts = self.ended;
        let period = self.period;
        let unended = self.open.into_values();
        attempts.extend(unended.filter(|facts| facts.requested.is_some_and(|at| period.contains(at, None))));
        attempts.sort_by_key(|facts| facts.requested.map(|at| at.wall_ms));
        let mut jobs: BTreeMap<JobKey, JobRecord> = BTreeMap::new();
        for facts in attempts {
            let is_open = facts.left.is_none() && is_open(&facts.attempt);
            let Some(record) = record(facts, is_open) else { continue };
            match jobs.entry(record.job.clone()) {
                Entry::Vacant(free) => drop(free.insert(record)),
                Entry::Occupied(mut known) => {
                    let earlier = known.get();
                    let attempts = earlier.attempts + record.attempts;
                    let (requested, waited) = (earlier.requested, earlier.waited + record.waited);
                    known.insert(JobRecord { requested, attempts, waited, ..record });
                }
            }
        }
        let mut jobs: Vec<JobRecord> = jobs.into_values().collect();
        jobs.sort_by_key(|job| job.requested.wall_ms);
        jobs
    }
}

fn merged(earlier: AttemptFacts, later: AttemptFacts) -> AttemptFacts {
    let regranted = later.granted.is_some() || later.rejected;
    let (granted, ready, offering) = if regranted {
        (later.granted, later.ready, later.offering)
    } else {
        (earlier.granted, earlier.ready, earlier.offering)
    };
    AttemptFacts {
        attempt: earlier.attempt,
        job: earlier.job,
        requested: earlier.requested,
        granted,
        ready,
        offering,
        rejected: earlier.rejected || later.rejected,
        end: later.end.or(earlier.end),
        left: later.left.or(earlier.left),
    }
}

fn record(facts: AttemptFacts, is_open: bool) -> Option<JobRecord> {
    let (job, requested) = (facts.job?, facts.requested?);
    let granted = facts.granted.as_ref().map(|(at, _)| *at);
    let left = facts.left.map(|(at, _)| at);
    let waited = granted.or(left).map_or(Duration::ZERO, |until| until.since(requested));
    let phase = match (is_open, granted) {
        (false, _) => JobPhase::Ended,
        (true, Some(_)) => JobPhase::Running,
        (true, None) => JobPhase::Waiting,
    };
    let end = facts.end.or_else(|| JobEnd::of_attempt(facts.left?.1));
    Some(JobRecord {
        job: job.key,
        project: job.project,
        name: job.name,
        stage: job.stage,
        pipeline: job.pipeline,
        git_ref: job.git_ref,
        requested,
        attempts: 1,
        phase,
        waited,
        start: granted.map(|granted| start(requested, granted, facts.ready, facts.rejected)),
        instance: facts.granted.map(|(_, id)| id),
        offering: facts.offering,
        granted,
        left,
        end,
    })
}

/// An idle instance is granted in the transaction of the request, or after an idle one that did not respond.
fn start(requested: Stamp, granted: Stamp, ready: Option<Stamp>, rejected: bool) -> Start {
    match ready {
        Some(ready) if !requested.reached(ready) => Start::Booted,
        _ if rejected || granted.since(requested) < IMMEDIATELY => Start::Warm,
        _ => Start::Freed,
    }
}
