//! Merges parts of a journal into records of jobs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use super::{AttemptFacts, InstanceFacts, JobPhase, JobRecord, Part, Period};
use crate::ids::{AttemptName, InstanceId, JobKey};
use crate::job_end::JobEnd;
use crate::pool::PoolState;
use crate::start::Start;
use crate::time::Stamp;

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
        let open = BTreeMap::new();
        let instances = BTreeMap::new();
        Self { period, begins: None, open, instances, ended: Vec::new() }
    }

    /// Time of the first event.
    pub fn begins(&self) -> Option<Stamp> {
        self.begins
    }

    pub fn add(&mut self, part: Part) {
        self.begins = self.begins.or(part.begins);
        for fresh in &part.instances {
            let unused = InstanceFacts { freed: None, ..fresh.clone() };
            match self.instances.entry(fresh.instance.clone()) {
                Entry::Vacant(free) => drop(free.insert(unused)),
                Entry::Occupied(mut known) if fresh.launched => drop(known.insert(unused)),
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.ready = known.ready.filter(|_| !fresh.resumed).or(fresh.ready);
                    known.resumed |= fresh.resumed;
                }
            }
        }
        let left: Vec<(InstanceId, Stamp)> =
            part.attempts.iter().filter_map(|facts| self.left(facts)).collect();
        for facts in part.attempts {
            self.attempt(facts, &left);
        }
        // Only now: later than the grants of this part.
        let freed = part.instances.into_iter().filter_map(|fresh| Some((fresh.instance, fresh.freed?)));
        for (instance, at) in left.into_iter().chain(freed) {
            if let Some(known) = self.instances.get_mut(&instance) {
                known.freed = later(known.freed, Some(at));
            }
        }
        for gone in part.gone {
            self.instances.remove(&gone);
        }
    }

    /// The instance of an earlier part's grant, which the attempt leaves in this part.
    fn left(&self, facts: &AttemptFacts) -> Option<(InstanceId, Stamp)> {
        let is_earlier = facts.requested.is_none() && facts.granted.is_none() && !facts.rejected;
        let (at, _) = facts.left.filter(|_| is_earlier)?;
        let (_, instance) = self.open.get(&facts.attempt)?.granted.clone()?;
        Some((instance, at))
    }

    /// `left`: instances of earlier grants, left in this part.
    fn attempt(&mut self, facts: AttemptFacts, left: &[(InstanceId, Stamp)]) {
        let facts = match self.open.remove(&facts.attempt) {
            Some(earlier) if facts.requested.is_none() => {
                let later = self.with_instance(facts, left);
                merged(earlier, later)
            }
            _ => self.with_instance(facts, left),
        };
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

    /// Completes the facts of a grant of this part with those of its instance from earlier parts.
    fn with_instance(&self, facts: AttemptFacts, left: &[(InstanceId, Stamp)]) -> AttemptFacts {
        let Some((granted, id)) = &facts.granted else { return facts };
        let known = self.instances.get(id);
        let before = left.iter().filter(|(instance, at)| instance == id && granted.reached(*at));
        let freed = before.fold(facts.freed, |freed, (_, at)| later(freed, Some(*at)));
        let freed = later(freed, known.and_then(|known| known.freed));
        let known = known.filter(|known| known.launched);
        let ready = facts.ready.or_else(|| known?.ready);
        let offering = facts.offering.clone().or_else(|| known?.offering.clone());
        let resumed = facts.resumed || known.is_some_and(|known| known.resumed);
        AttemptFacts { ready, freed, resumed, offering, ..facts }
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
        let mut jobs: Vec<JobRecord> = Vec::with_capacity(attempts.len());
        let mut places: BTreeMap<JobKey, usize> = BTreeMap::new();
        for facts in attempts {
            let is_open = facts.left.is_none() && is_open(&facts.attempt);
            let Some(record) = record(facts, is_open) else { continue };
            match places.entry(record.job.clone()) {
                Entry::Vacant(free) => {
                    free.insert(jobs.len());
                    jobs.push(record);
                }
                // It stays where its first attempt is.
                Entry::Occupied(known) => {
                    let job = &mut jobs[*known.get()];
                    let attempts = job.attempts + record.attempts;
                    let requested = job.requested;
                    let waited = job.waited + record.waited;
                    *job = JobRecord { requested, attempts, waited, ..record };
                }
            }
        }
        jobs
    }
}

fn later(one: Option<Stamp>, other: Option<Stamp>) -> Option<Stamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other.is_after(one) { other } else { one }),
        _ => one.or(other),
    }
}

fn merged(earlier: AttemptFacts, later: AttemptFacts) -> AttemptFacts {
    let regranted = later.granted.is_some() || later.rejected;
    let (granted, ready, freed, offering, resumed) = if regranted {
        (later.granted, later.ready, later.freed, later.offering, later.resumed)
    } else {
        (earlier.granted, earlier.ready, earlier.freed, earlier.offering, earlier.resumed)
    };
    AttemptFacts {
        attempt: earlier.attempt,
        job: earlier.job,
        requested: earlier.requested,
        granted,
        ready,
        freed,
        resumed,
        offering,
        rejected: earlier.rejected || later.rejected,
        end: later.end.or(earlier.end),
        left: later.left.or(earlier.left),
    }
}

fn record(facts: AttemptFacts, is_open: bool) -> Option<JobRecord> {
    let job = facts.job?;
    let requested = facts.requested?;
    let granted = facts.granted.as_ref().map(|(at, _)| *at);
    let left = facts.left.map(|(at, _)| at);
    let waited = granted.or(left).map_or(Duration::ZERO, |until| until.since(requested));
    let phase = match (is_open, granted) {
        (false, _) => JobPhase::Ended,
        (true, Some(_)) => JobPhase::Running,
        (true, None) => JobPhase::Waiting,
    };
    // After an instance that did not respond, the next idle one is granted later than in the request.
    let is_unknown = facts.ready.or(facts.freed).is_none();
    let start = granted.map(|granted| {
        if is_unknown && facts.rejected {
            return Start::Warm;
        }
        Start::of(requested, granted, facts.ready, facts.freed).after_resume(facts.resumed)
    });
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
        start,
        instance: facts.granted.map(|(_, id)| id),
        offering: facts.offering,
        granted,
        left,
        end,
    })
}
