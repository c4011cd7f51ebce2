//! The cost of a decision: `cargo run --release --example core_speed`.
//!
//! Fifty instances as a busy pool has them. A discrete-event simulator decides, applies and checks after every event:
//! that may take ten microseconds on average. Fails if it takes longer.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_core::attempt::{AttemptSeen, End, Presence};
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, Generation, InstanceId, JobKey, Location, OwnerId, PoolName};
use greenroom_core::instance::{Answer, Release};
use greenroom_core::invariants::check;
use greenroom_core::inventory::{Capabilities, Listed, Listing, Status, Tags};
use greenroom_core::job::JobFacts;
use greenroom_core::plan::request::{self, Ask};
use greenroom_core::plan::{Fresh, Observed, Plan, View, plan};
use greenroom_core::policy::{IdlePolicy, Policy};
use greenroom_core::pool::PoolState;
use greenroom_core::time::{BootId, ManagerId, Stamp};

const LIMIT: Duration = Duration::from_micros(10);

struct World {
    state: PoolState,
    observed: Observed,
    policy: Arc<Policy>,
    now: Stamp,
    events: u32,
}

impl World {
    /// An empty pool for fifty instances.
    fn new(idle_count: u32) -> Self {
        let policy = Policy {
            max_instances: 50,
            max_launching: 50,
            max_use_count: None,
            idle: IdlePolicy { idle_count, ..IdlePolicy::default() },
            ..Policy::default()
        };
        let now = Stamp {
            wall_ms: 1_781_524_800_000,
            manager: ManagerId(1),
            boot: BootId(7),
            uptime_ms: 864_000_000,
        };
        let generation = Generation::new("3f9a");
        let observed = Observed {
            announced: BTreeMap::new(),
            healthy: BTreeMap::new(),
            unhealthy: BTreeMap::new(),
            listing: Ok(Listing::empty(now, Some(Location::new("here")))),
            denied: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            manager: now.manager,
            attempts: BTreeMap::new(),
            attempts_at: now,
            obstacles: BTreeMap::new(),
            orphaned_builds: BTreeSet::new(),
            capabilities: Capabilities::default(),
            owner: OwnerId::new("us"),
            moved: None,
            generations: BTreeSet::from([generation.clone()]),
            launching: Some(Fresh { pool: PoolName::new("linux"), generation }),
            unrecordable: None,
            failing_calls: BTreeMap::new(),
            awaited: BTreeMap::new(),
            busy: BTreeSet::new(),
            pulls: Some(greenroom_core::plan::Pulls::default()),
        };
        Self { state: PoolState::default(), observed, policy: Arc::new(policy), now, events: 0 }
    }

    /// Applies each event and checks the state after it, as a simulator does.
    fn carry(&mut self, events: &[Event]) {
        for event in events {
            self.state.apply(event).expect("the plan fits the state");
            assert!(check(&self.state).is_empty());
            self.events += 1;
        }
    }

    fn tell(&mut self, change: Change) {
        self.carry(&[change.at(self.now)]);
    }

    fn plan(&self) -> Plan {
        plan(View { recorded: &self.state, observed: &self.observed }, &self.policy, self.now)
    }

    /// A pass whose launches are answered, and whose instances are ready, at once.
    fn pass(&mut self) {
        let made = self.plan();
        self.carry(&made.events);
        for event in &made.events {
            if let Change::LaunchIntended { instance, .. } = &event.change {
                self.boot(instance.clone());
            }
        }
    }

    fn boot(&mut self, instance: InstanceId) {
        let answer = Answer::Accepted { at: self.now };
        self.tell(Change::LaunchAnswered { instance: instance.clone(), attempt: 1, answer });
        let host_key = "ssh-ed25519 AAAA".to_owned();
        let endpoint = Endpoint {
            address: "192.0.2.1".into(),
            port: 22,
            user: "root".into(),
            host_key,
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        self.tell(Change::Reached { instance: instance.clone(), endpoint });
        self.carry(&request::ready(&self.state, &instance, self.now));
        let launch = self.state.instance(&instance).and_then(|i| i.launch.clone()).expect("it was launched");
        let (pool, owner) = (PoolName::new("linux"), self.observed.owner.clone());
        let tags = Some(Tags { pool, owner, generation: launch.generation, number: launch.number });
        if let Ok(listing) = &mut self.observed.listing {
            listing.instances.push(Listed {
                id: instance,
                tags,
                status: Status::Running,
                created: None,
                detail: None,
                by_job: false,
                refused: None,
                static_host: None,
                notice: None,
            });
            listing.instances.sort_by(|a, b| a.id.cmp(&b.id));
        }
    }

    fn ask(&mut self, job: u64) {
        let key = JobKey::new("https://gitlab.example.org", job);
        let job_facts = JobFacts::new(key, "group/project", Duration::from_hours(1));
        let attempt = name(job);
        let ask = Ask {
            attempt: attempt.clone(),
            job: job_facts.clone(),
            policy: Arc::clone(&self.policy),
            superseded: Vec::new(),
        };
        let events = request::acquire(&self.state, &ask, self.now);
        self.carry(&events);
        let seen = AttemptSeen {
            job: Some(job_facts),
            instance: self.state.granted.get(&attempt).map(|g| g.instance.clone()),
            unreadable: None,
            begun: self.now,
            closed: None,
            used: true,
            lease_held: !self.state.granted.contains_key(&attempt),
            lease_at: self.now,
            runner: Presence::There,
            tmpdir: Presence::There,
            boot: self.now.boot,
        };
        self.observed.attempts.insert(attempt, seen);
    }

    fn leave(&mut self, job: u64) {
        let leaving = Release { how: End::CleanedUp, used: true, closing: false };
        self.observed.attempts.remove(&name(job));
        let events = request::release(&self.state, &name(job), leaving, self.now);
        self.carry(&events);
        for event in &events {
            if let Change::Granted { attempt, instance } = &event.change
                && let Some(seen) = self.observed.attempts.get_mut(attempt)
            {
                (seen.instance, seen.lease_held) = (Some(instance.clone()), false);
            }
        }
    }
}

fn name(job: u64) -> AttemptName {
    AttemptName::new(format!("custom-executor{job:09}"))
}

/// The best of several rounds: others use this machine, too.
fn measure<T>(what: &str, mut once: impl FnMut() -> T) {
    const TIMES: u32 = 2_000;
    let round = || {
        let began = Instant::now();
        (0..TIMES).for_each(|_| drop(black_box(once())));
        began.elapsed() / TIMES
    };
    let rounds = std::iter::repeat_with(round).take(15);
    say(what, rounds.min().unwrap_or_default());
}

#[expect(clippy::print_stdout, reason = "its purpose")]
fn say(what: &str, each: Duration) {
    println!("{what:<52} {:>9.2} µs", each.as_secs_f64() * 1e6);
}

/// Jobs come and go, a pass after each: the time for each event, best of several rounds.
fn events_loop(what: &str, world: &mut World, first: u64, at_once: u64) -> Duration {
    let mut best = Duration::MAX;
    for round in 0..10 {
        let before = world.events;
        let began = Instant::now();
        for job in first + round * 1_000..first + (round + 1) * 1_000 {
            world.now = world.now.plus(Duration::from_millis(7));
            world.ask(job);
            world.pass();
            world.leave(job - at_once);
            world.pass();
        }
        best = best.min(began.elapsed() / (world.events - before));
    }
    say(what, best);
    best
}

fn main() -> ExitCode {
    let mut pool = World::new(15);
    (1..=35).for_each(|job| pool.ask(job));
    pool.pass();
    assert_eq!((pool.state.instances.len(), pool.state.waiting.len()), (50, 0));
    measure("plan, 50 instances, 35 jobs, nothing to do", || pool.plan());
    measure("check of the same", || check(&pool.state));
    measure("copy of the state", || pool.state.clone());
    let mut full = World::new(0);
    (1..=100).for_each(|job| full.ask(job));
    full.pass();
    assert_eq!((full.state.granted.len(), full.state.waiting.len()), (50, 50));
    measure("plan, 50 instances, all busy, 50 jobs waiting", || full.plan());
    measure("check of the same", || check(&full.state));
    let each = events_loop("an event: decide, apply, check, plan (idle pool)", &mut pool, 36, 35);
    let busy = events_loop("an event: the same (full pool, 50 waiting)", &mut full, 101, 100);
    if each < LIMIT && busy < LIMIT { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
