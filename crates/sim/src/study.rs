//! Runs plan and apply alone, as fast as possible.
//!
//! Discrete events without processes, ports or a journal: each step of the queue applies what happened, plans, applies
//! the plan and checks everything. Shows a policy's behaviour over a week, and finds bugs that need many instances.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::attempt::{AttemptSeen, End, Presence};
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::{AttemptName, Generation, InstanceId, JobKey, Location, OwnerId, PoolName};
use greenroom_core::instance::{Answer, Phase, Release};
use greenroom_core::invariants;
use greenroom_core::inventory::{Capabilities, Listed, Listing, Status, Suspends, Tags};
use greenroom_core::job::JobFacts;
use greenroom_core::order::{Order, RefusedOrder};
use greenroom_core::plan::request::{self, Ask};
use greenroom_core::plan::{Effect, Fresh, Observed, View, checks, plan};
use greenroom_core::policy::Policy;
use greenroom_core::pool::PoolState;
use greenroom_core::time::{BootId, ManagerId, Stamp};

use super::rng::Rng;
use super::world::EPOCH_MS;

/// The kind of an event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    JobComes,
    Answered(InstanceId),
    Boots(InstanceId),
    Dies(InstanceId),
    Slept(InstanceId),
    /// A check between jobs that began after the job that left then.
    Checked(InstanceId, u64),
    Gone(InstanceId),
    JobEnds(AttemptName),
    Cancelled(AttemptName),
    Look,
}

/// A pool under a policy, and its environment.
#[derive(Debug)]
pub struct Study {
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Happens)>>,
    next: u64,
    look_at: u64,
    state: PoolState,
    observed: Observed,
    policy: Arc<Policy>,
    rng: Rng,
    /// Mean milliseconds between two jobs, and of a job.
    gap: u64,
    length: u64,
    jobs: u64,
    ending: BTreeSet<InstanceId>,
    /// Instances that are being suspended or resumed.
    moving: BTreeSet<InstanceId>,
    used: BTreeMap<InstanceId, u32>,
    wrong: Option<String>,
    /// The number of jobs, of 1,000, that order an instance of their own.
    orders: u64,
}

/// The end of a study at an event that broke a promise.
#[derive(Debug, thiserror::Error)]
#[error("after {after_ms} ms: {what}")]
pub struct BrokenPromise {
    after_ms: u64,
    what: String,
}

/// The result of a [`Study`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Findings {
    pub events: u64,
    pub jobs: u64,
    /// The largest number of instances that existed at the same time.
    pub most: usize,
    /// Virtual milliseconds.
    pub time: u64,
}

/// A load that keeps this many instances busy most of the time.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Mean milliseconds between two jobs.
    pub gap: u64,
    /// Mean milliseconds of a job.
    pub length: u64,
}

impl Study {
    pub fn new(seed: u64, policy: Policy, load: Load) -> Self {
        let pool = PoolName::new("study");
        let generation = Generation::new("g");
        let policy = Arc::new(policy);
        let mut state = PoolState { policy: Some(Arc::clone(&policy)), ..PoolState::default() };
        state.generations.insert(generation.clone(), 0);
        let begun = stamp(0);
        let observed = Observed {
            announced: BTreeMap::new(),
            healthy: BTreeMap::new(),
            unhealthy: BTreeMap::new(),
            obstacles: BTreeMap::new(),
            listing: Ok(Listing::empty(begun, Some(Location::new("cloud")))),
            denied: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            manager: begun.manager,
            attempts: BTreeMap::new(),
            attempts_at: begun,
            orphaned_builds: BTreeSet::new(),
            capabilities: Capabilities { suspends: Suspends::Yes, ..Capabilities::default() },
            owner: OwnerId::new("owner"),
            moved: None,
            generations: [generation.clone()].into(),
            launching: Some(Fresh { pool, generation }),
            unrecordable: None,
            failing_calls: BTreeMap::new(),
            awaited: BTreeMap::new(),
            busy: BTreeSet::new(),
            pulls: Some(greenroom_core::plan::Pulls::default()),
        };
        let mut study = Self {
            now: 0,
            queue: BinaryHeap::new(),
            next: 0,
            look_at: u64::MAX,
            state,
            observed,
            policy,
            rng: Rng::new(seed, "study"),
            gap: load.gap,
            length: load.length,
            jobs: 0,
            ending: BTreeSet::new(),
            moving: BTreeSet::new(),
            used: BTreeMap::new(),
            wrong: None,
            orders: 0,
        };
        study.later(0, Happens::JobComes);
        study
    }

    /// This study, in which `orders` of 1,000 jobs order instances of their own.
    #[must_use]
    pub fn with_orders(mut self, orders: u64) -> Self {
        self.orders = orders;
        self.observed.capabilities.orders = true;
        self
    }

    /// Runs this many events, or returns which promise broke, and when.
    pub fn run(&mut self, events: u64) -> Result<Findings, BrokenPromise> {
        let mut most = 0;
        for _ in 0..events {
            let Some(Reverse((at, _, happens))) = self.queue.pop() else { break };
            self.now = at;
            self.happen(happens);
            self.pass();
            if let Some(what) = self.broken() {
                return Err(BrokenPromise { after_ms: self.now, what });
            }
            most = most.max(self.state.instances.len());
        }
        Ok(Findings { events, jobs: self.jobs, most, time: self.now })
    }

    fn later(&mut self, after: u64, happens: Happens) {
        self.next += 1;
        self.queue.push(Reverse((self.now + after, self.next, happens)));
    }

    /// Exponential around a mean, roughly: the sum of two uniform draws.
    fn about(&mut self, mean: u64) -> u64 {
        self.rng.below(mean) + self.rng.below(mean)
    }

    fn happen(&mut self, happens: Happens) {
        let now = stamp(self.now);
        match happens {
            Happens::JobComes => self.job_comes(now),
            Happens::Answered(id) => self.answered(id, now),
            Happens::Boots(id) => self.boots(&id, now),
            Happens::Dies(id) => {
                if let Some(listed) = self.listed(&id) {
                    listed.status = Status::Stopping;
                }
            }
            Happens::Checked(id, left) => {
                self.moving.remove(&id);
                let events = checks::recheck_passed(&self.state, &id, stamp(left), now);
                self.apply(&events);
            }
            Happens::Slept(id) => {
                self.moving.remove(&id);
                if let Some(listed) = self.listed(&id) {
                    listed.status = Status::Suspended;
                }
            }
            Happens::Gone(id) => {
                self.listing().instances.retain(|l| l.id != id);
                self.ending.remove(&id);
                self.used.remove(&id);
                if self.state.instances.contains_key(&id) {
                    self.apply(&[Change::Forgotten { instance: id }.at(now)]);
                }
            }
            Happens::JobEnds(attempt) => self.job_ends(&attempt, true, now),
            Happens::Cancelled(attempt) => self.job_ends(&attempt, false, now),
            Happens::Look => self.look_at = u64::MAX,
        }
    }

    fn job_ends(&mut self, attempt: &AttemptName, used: bool, now: Stamp) {
        let leaving = Release { how: End::CleanedUp, used, closing: false };
        let events = request::release(&self.state, attempt, leaving, now);
        self.observed.attempts.remove(attempt);
        self.apply(&events);
    }

    fn job_comes(&mut self, now: Stamp) {
        self.jobs += 1;
        let gap = self.about(self.gap);
        self.later(gap, Happens::JobComes);
        let attempt = AttemptName::new(format!("a{}", self.jobs));
        let project = self.rng.pick(&["red/app", "red/lib", "blue/app"]);
        let job = JobFacts::new(JobKey::new("https://gitlab", self.jobs), project, Duration::from_mins(10));
        let job = JobFacts { order: self.order(&attempt), ..job };
        let seen = AttemptSeen {
            job: Some(job.clone()),
            instance: None,
            unreadable: None,
            begun: now,
            closed: None,
            used: false,
            lease_held: true,
            lease_at: now,
            runner: Presence::There,
            tmpdir: Presence::There,
            boot: now.boot,
        };
        self.observed.attempts.insert(attempt.clone(), seen);
        let ask = Ask { attempt, job, policy: Arc::clone(&self.policy), superseded: Vec::new() };
        let events = request::acquire(&self.state, &ask, now);
        self.apply(&events);
    }

    /// The order of the next job, if it orders anything. Some of these jobs end while they wait.
    fn order(&mut self, attempt: &AttemptName) -> Option<Arc<Order>> {
        if self.orders == 0 || !self.rng.chance(self.orders) {
            return None;
        }
        if self.rng.chance(150) {
            let after = self.about(20_000);
            self.later(after, Happens::Cancelled(attempt.clone()));
        }
        Some(Arc::new(Order { image: "ruby:3.3".into(), services: Vec::new(), more_services: 0 }))
    }

    fn answered(&mut self, instance: InstanceId, now: Stamp) {
        let Some(launch) = self.state.instance(&instance).and_then(|i| i.launch.clone()) else { return };
        let ordered = self.state.instance(&instance).and_then(|i| i.ordered.clone());
        let refused = ordered.is_some() && self.rng.chance(100);
        if let Some(ordered) = ordered.filter(|_| refused) {
            let refused = RefusedOrder { reason: "no such image".to_owned(), by_job: true };
            let events = request::refuse_order(&self.state, &ordered.attempt, &refused, now);
            self.apply(&events);
        }
        let answer = if refused {
            let class = ErrorClass::Order { by_job: true };
            Answer::Refused { at: now, failure: Failure { class, message: "no such image".to_owned() } }
        } else if self.rng.chance(20) {
            let class = ErrorClass::NoCapacity { scope: "zone".to_owned() };
            Answer::Refused { at: now, failure: Failure { class, message: "none left".to_owned() } }
        } else {
            let tags = Tags {
                pool: PoolName::new("study"),
                owner: self.observed.owner.clone(),
                generation: launch.generation,
                number: launch.number,
            };
            let listed = Listed {
                id: instance.clone(),
                tags: Some(tags),
                status: Status::Starting,
                created: Some(now),
                detail: None,
                by_job: false,
                refused: None,
                static_host: None,
                notice: None,
            };
            let instances = &mut self.listing().instances;
            let place = instances.partition_point(|l| l.id < instance);
            instances.insert(place, listed);
            if !self.rng.chance(20) {
                let takes = 10_000 + self.about(15_000);
                self.later(takes, Happens::Boots(instance.clone()));
            }
            Answer::Accepted { at: now }
        };
        self.apply(&[Change::LaunchAnswered { instance, attempt: launch.attempt, answer }.at(now)]);
    }

    fn boots(&mut self, id: &InstanceId, now: Stamp) {
        self.moving.remove(id);
        if self.state.instance(id).is_none_or(|i| i.phase != Phase::Launching && !i.phase.is_resuming()) {
            return;
        }
        if let Some(listed) = self.listed(id) {
            listed.status = Status::Running;
        }
        let endpoint = Endpoint {
            address: id.to_string(),
            port: 22,
            user: "root".into(),
            host_key: String::new(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        self.apply(&[Change::Reached { instance: id.clone(), endpoint }.at(now)]);
        let events = request::ready(&self.state, id, now);
        self.apply(&events);
        if self.rng.chance(20) {
            let after = self.about(600_000);
            self.later(after, Happens::Dies(id.clone()));
        }
    }

    fn pass(&mut self) {
        let now = stamp(self.now);
        self.listing().begun = now;
        self.observed.attempts_at = now;
        let policy = Arc::clone(&self.policy);
        let plan = plan(View { recorded: &self.state, observed: &self.observed }, &policy, now);
        self.apply(&plan.events);
        for effect in plan.effects {
            match effect {
                Effect::Launch { instance, .. } => self.later(800, Happens::Answered(instance)),
                Effect::Suspend { instance } if self.moving.insert(instance.clone()) => {
                    let takes = self.about(5_000);
                    self.later(takes, Happens::Slept(instance));
                }
                Effect::Resume { instance } if self.moving.insert(instance.clone()) => {
                    let takes = self.about(3_000);
                    self.later(takes, Happens::Boots(instance));
                }
                Effect::Recheck { instance } if self.moving.insert(instance.clone()) => {
                    let Some(left) = self.state.instance(&instance).and_then(|i| i.released) else {
                        continue;
                    };
                    self.later(200, Happens::Checked(instance, left.uptime_ms));
                }
                Effect::Terminate { instance } | Effect::Forget { instance } | Effect::Reap { instance }
                    if self.ending.insert(instance.clone()) =>
                {
                    let takes = self.about(8_000);
                    self.later(takes, Happens::Gone(instance));
                }
                _ => {}
            }
        }
        if let Some(next) = plan.report.next {
            let after = u64::try_from(now.until(next).as_millis()).unwrap_or(u64::MAX).max(1);
            // A pass that is due earlier comes anyway, and plans the next one.
            if self.now.saturating_add(after) < self.look_at {
                self.look_at = self.now.saturating_add(after);
                self.later(after, Happens::Look);
            }
        }
    }

    fn apply(&mut self, events: &[Event]) {
        for event in events {
            if let Err(misfit) = self.state.apply(event) {
                self.wrong.get_or_insert_with(|| format!("{misfit}: {event:?}"));
            }
            match &event.change {
                Change::Granted { attempt, instance } => self.granted(attempt, instance),
                // Its `prepare` ends.
                Change::OrderRefused { attempt, .. } => {
                    self.later(500, Happens::Cancelled(attempt.clone()));
                }
                _ => {}
            }
        }
    }

    /// Promise 1: no job gets a used-up instance.
    fn granted(&mut self, attempt: &AttemptName, instance: &InstanceId) {
        let used = self.used.entry(instance.clone()).or_default();
        *used += 1;
        if self.policy.max_use_count.is_some_and(|most| *used > most) {
            let problem = format!("promise 1: {instance} is used {used} times");
            self.wrong.get_or_insert(problem);
        }
        let takes = 1_000 + self.about(self.length);
        self.later(takes, Happens::JobEnds(attempt.clone()));
    }

    fn listing(&mut self) -> &mut Listing {
        let begun = stamp(self.now);
        if self.observed.listing.is_err() {
            self.observed.listing = Ok(Listing::empty(begun, Some(Location::new("cloud"))));
        }
        self.observed.listing.as_mut().expect("set just before")
    }

    fn listed(&mut self, id: &InstanceId) -> Option<&mut Listed> {
        self.listing().instances.iter_mut().find(|l| l.id == *id)
    }

    /// The promise that is broken after an event, if one is, and how.
    fn broken(&self) -> Option<String> {
        if let Some(wrong) = &self.wrong {
            return Some(wrong.clone());
        }
        if let Some(law) = invariants::check(&self.state).into_iter().next() {
            return Some(format!("promise 1: {law}"));
        }
        let listed = self.observed.listing.as_ref().map_or(0, |l| l.instances.len());
        let limit = usize::try_from(self.policy.max_instances).unwrap_or(usize::MAX);
        if listed.max(self.state.instances.len()) > limit {
            return Some(format!("promise 2: {listed} instances, limit {limit}"));
        }
        for id in &self.ending {
            if self.state.instance(id).is_some_and(|i| !i.holders.is_empty()) {
                return Some(format!("promise 4: {id} is terminated in use"));
            }
        }
        if let Some(broken) = self.kept_for_none() {
            return Some(broken);
        }
        let first = self.state.waiting.values().find(|job| job.refused.is_none())?;
        let healthy = |id: &InstanceId| {
            let listing = self.observed.listing.as_ref();
            listing.is_ok_and(|l| l.instances.iter().any(|i| i.id == *id && i.status == Status::Running))
        };
        for instance in self.state.instances.values().filter(|i| i.usable() > 0) {
            let trusted = instance.domain.as_ref().is_none_or(|d| *d == first.domain);
            let own = instance.ordered.as_ref().map(|ordered| &ordered.attempt);
            let of_its_kind = own == first.job.order.as_ref().map(|_| &first.attempt);
            if of_its_kind && trusted && healthy(&instance.id) {
                return Some(format!("promise 5: job {} waits, {} is free", first.job.key, instance.id));
            }
        }
        None
    }

    /// Promise 3: what a job ordered ends with that job.
    fn kept_for_none(&self) -> Option<String> {
        let kept = self.state.instances.values().filter(|i| !matches!(i.phase, Phase::Draining { .. }));
        for (instance, ordered) in kept.filter_map(|i| Some((i, i.ordered.as_ref()?))) {
            let holds = self.state.granted.contains_key(&ordered.attempt);
            if !holds && self.state.waiting_for(&ordered.attempt).is_none_or(|job| job.refused.is_some()) {
                return Some(format!("promise 3: {} is kept for job {}", instance.id, ordered.job));
            }
        }
        None
    }
}

fn stamp(ms: u64) -> Stamp {
    Stamp {
        wall_ms: EPOCH_MS + i64::try_from(ms).unwrap_or(i64::MAX),
        manager: ManagerId(1),
        boot: BootId(1),
        uptime_ms: ms,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::policy::{IdlePolicy, Reuse};
    use greenroom_core::start::Start;

    use super::*;

    fn policy(reuse: Reuse, max_use_count: Option<u32>, capacity_per_instance: u32) -> Policy {
        let idle = IdlePolicy { idle_count: 5, idle_time: Duration::from_mins(2), ..IdlePolicy::default() };
        Policy { max_instances: 50, max_use_count, capacity_per_instance, reuse, idle, ..Policy::default() }
    }

    #[test]
    fn thousands_of_events_break_no_promise_under_any_policy() {
        for (seed, reuse) in [(1, Reuse::Any), (2, Reuse::Project), (3, Reuse::Namespace)] {
            for (uses, capacity) in [(Some(1), 1), (Some(3), 2), (None, 4)] {
                let load = Load { gap: 2_500, length: 60_000 };
                let findings = Study::new(seed, policy(reuse, uses, capacity), load).run(1_500).unwrap();
                assert!(findings.jobs > 150 && findings.most >= 10, "{findings:?}");
            }
        }
    }

    #[test]
    fn stopped_instances_serve_bursts_and_break_no_promise() {
        for (seed, reuse) in [(4, Reuse::Any), (5, Reuse::Project)] {
            let policy = Policy { idle_stopped: 6, ..policy(reuse, Some(1), 1) };
            let policy = Policy { idle: IdlePolicy::default(), ..policy };
            let mut study = Study::new(seed, policy, Load { gap: 20_000, length: 30_000 });
            let findings = study.run(4_000).unwrap();
            let resumed = study.state.counters.started.get(&Start::Resumed).copied().unwrap_or(0);
            assert!(findings.jobs > 200 && resumed > 100, "{findings:?}, {resumed} resumed");
        }
    }

    #[test]
    fn what_jobs_order_is_theirs_alone_and_ends_with_them() {
        for (seed, reuse, most) in [(6, Reuse::Any, 50), (7, Reuse::Project, 12), (8, Reuse::Project, 3)] {
            for (uses, capacity) in [(Some(1), 1), (Some(3), 2), (None, 4)] {
                let policy = Policy { max_instances: most, ..policy(reuse, uses, capacity) };
                let mut study =
                    Study::new(seed, policy, Load { gap: 6_000, length: 30_000 }).with_orders(400);
                let findings = study.run(2_000).unwrap();
                let abandoned = study.state.counters.drained.get("abandoned").copied().unwrap_or(0);
                assert!(findings.jobs > 100 && abandoned > 0, "{findings:?}, {abandoned} abandoned");
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_findings() {
        let run = || {
            let load = Load { gap: 2_500, length: 60_000 };
            Study::new(9, policy(Reuse::Any, None, 2), load).run(2_000).unwrap()
        };
        assert_eq!(run(), run());
    }
}
