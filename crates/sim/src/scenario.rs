//! The plan that a seed determines: policies, jobs, faults.
//!
//! Drawn before the simulation starts, each part from a stream of its own.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::ids::{JobKey, PoolName};
use greenroom_core::inventory::Capabilities;
use greenroom_core::job::JobFacts;
use greenroom_core::policy::{IdlePolicy, Lifetime, Policy, Reuse, Timing};

use crate::exec::PlannedKill;
use crate::fault::{Fault, WINDOWED, Windows};
use crate::offerings::Stock;
use crate::process::Kind;
use crate::rng::Rng;
use crate::second::SecondManager;
use crate::{early, images, lists, orders, sick, stopped};

/// The lowest number of jobs in a scenario.
pub const JOBS: u64 = 200;

/// The exit code of a stage that asks for what cannot be had, so that its script does not begin.
pub const IMPOSSIBLE: u32 = 255;

/// A pool as the operator's configuration describes it.
#[derive(Debug, Clone)]
pub struct PoolPlan {
    pub name: PoolName,
    pub policy: Arc<Policy>,
    pub capabilities: Capabilities,
    /// Static hosts of a pool that launches nothing.
    pub hosts: u32,
    /// The times at which each offering of the pool is available.
    pub stock: Stock,
}

/// One job, as GitLab describes it.
#[derive(Debug, Clone)]
pub struct JobPlan {
    pub comes: u64,
    pub facts: JobFacts,
    pub pool: PoolName,
    /// Each stage's length in milliseconds and its script's exit code.
    pub stages: Vec<(u64, u32)>,
    pub fault: Option<Fault>,
    /// A random number for the fault: when, how long.
    pub dice: u64,
}

/// A fault that happens at a moment, by the functions of [`fate`](crate::fate).
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub at: u64,
    pub fault: Fault,
    pub dice: u64,
}

/// Everything that a seed decides beforehand; [`draw`](Self::draw) makes it.
#[derive(Debug)]
pub struct Scenario {
    pub seed: u64,
    pub pools: BTreeMap<PoolName, Rc<PoolPlan>>,
    pub jobs: Vec<JobPlan>,
    pub windows: Windows,
    pub moments: Vec<Moment>,
    pub kills: Vec<PlannedKill>,
    /// Runners of the first manager. Runner 0 cannot be observed from outside if `opaque`.
    pub runners: u32,
    /// Jobs that a runner takes concurrently.
    pub concurrent: u32,
    pub opaque: bool,
    /// The store loses nothing in a power cut.
    pub durable_store: bool,
    /// Keepers are services that are restarted when they exit.
    pub service: bool,
    pub second: Option<SecondManager>,
    /// No fault occurs after this moment.
    pub calm: u64,
    /// The moment by which everything has come to rest.
    pub end: u64,
}

impl Scenario {
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, "scenario");
        let mut faults = Rng::new(seed, "fault plan");
        // Two streams are drawn from in this order. A part that takes the seed alone has a stream of its own, so that
        // one more of them leaves the others as they are.
        let mut cloud = cloud_pool(&mut rng);
        let metal = metal_pool(&mut rng);
        let mut jobs = draw_jobs(seed, &mut faults);
        images::draw(seed, &mut cloud, &mut jobs);
        draw_lifetimes(seed, &mut cloud, &mut jobs);
        stopped::draw(seed, &mut cloud, &mut jobs);
        images::draw_of_hosts(seed, &metal, &mut jobs);
        orders::draw(seed, &mut cloud, &mut jobs);
        let calm = jobs.last().map_or(0, |job| job.comes);
        cloud.stock = Stock::draw(seed, calm);
        cloud.capabilities.offerings = cloud.stock.offerings.clone();
        let chosen = choose(&mut faults);
        let windows = Windows::draw(&chosen, calm, &mut faults);
        // Keepers exit only a few times in a run: a fault in between needs the time.
        let windows = windows.with(Fault::LeavesSlowly, calm, 300);
        // A keeper that is killed by chance rarely leaves a refusal that still counts.
        let dies_refused = Rng::new(seed, "dies refused").chance(100);
        let windows = if dies_refused { windows.with(Fault::DiesRefused, calm, 500) } else { windows };
        let suspends = cloud.policy.idle_stopped > 0;
        let windows = if suspends { stopped::faults(seed, windows, calm) } else { windows };
        let windows = lists::faults(seed, windows, calm);
        let mut moments = draw_moments(&chosen, calm, &mut faults);
        moments.extend(draw_unbegun(seed, calm));
        moments.extend(sick::draw(seed, calm));
        moments.extend(early::draw(seed, calm));
        moments.extend(lists::draw(seed, calm));
        moments.sort_by_key(|m| m.at);
        let durable_store = Rng::new(seed, "store").chance(200);
        let second = SecondManager::draw(seed, durable_store);
        moments.retain(|moment| second.is_none_or(|second| second.allows(moment.fault)));
        let kills = draw_kills(calm, &mut faults);
        Self {
            seed,
            pools: [cloud, metal].into_iter().map(|p| (p.name.clone(), Rc::new(p))).collect(),
            jobs,
            windows,
            moments,
            kills,
            runners: 3,
            concurrent: u32::try_from(rng.within(3..7)).unwrap_or(3),
            opaque: rng.chance(500),
            durable_store,
            service: rng.chance(500),
            second,
            calm,
            // The rest of the queue, the longest timeout of a policy, the grace and some passes.
            end: calm + 4 * 3_600_000,
        }
    }

    /// The number of a manager's runners.
    pub fn runners_of(&self, manager: usize) -> u32 {
        if manager == 0 { self.runners } else { self.second.map_or(0, |second| second.runners) }
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn timing(rng: &mut Rng) -> Timing {
    Timing {
        attempt_retention: Duration::from_mins(10),
        launch_timeout: Duration::from_mins(4),
        waiter_poll_interval: ms(rng.within(1_000..8_000)),
        pass_interval: ms(rng.within(5_000..15_000)),
        probe_interval: ms(rng.within(1_000..5_000)),
        launch_backoff_max: Duration::from_mins(2),
        stockout_backoff: Duration::from_secs(30),
        stockout_backoff_max: Duration::from_mins(4),
        quota_backoff: Duration::from_mins(3),
        acquire_timeout: Duration::from_mins(rng.within(20..40)),
        ..Timing::default()
    }
}

fn small(rng: &mut Rng, from: u64, to: u64) -> u32 {
    u32::try_from(rng.within(from..to)).unwrap_or(1)
}

fn idle(rng: &mut Rng) -> IdlePolicy {
    IdlePolicy {
        idle_count: small(rng, 0, 4),
        idle_time: Duration::from_secs(rng.pick(&[30, 120, 600])),
        scale_factor: rng.pick(&[0.0, 0.0, 0.5]),
        scale_factor_limit: rng.pick(&[0, 3]),
    }
}

fn cloud_pool(rng: &mut Rng) -> PoolPlan {
    let policy = Policy {
        max_instances: small(rng, 3, 9),
        capacity_per_instance: rng.pick(&[1, 1, 2, 3]),
        max_use_count: rng.pick(&[Some(1), Some(1), Some(2), Some(5), None]),
        max_launching: rng.pick(&[2, 10]),
        launches_per_minute: rng.pick(&[6, 60]),
        max_lifetime: rng.pick(&[None, None, Some(Lifetime(Duration::from_hours(1)))]),
        reuse: rng.pick(&[Reuse::Project, Reuse::Project, Reuse::Namespace, Reuse::Any]),
        idle: idle(rng),
        timing: timing(rng),
        ..Policy::default()
    };
    let idempotent_launch = rng.chance(750);
    let boots_here = rng.pick(&[None, None, Some(1), Some(3)]);
    PoolPlan {
        name: PoolName::new("cloud"),
        policy: Arc::new(policy),
        capabilities: Capabilities { idempotent_launch, boots_here, ..Capabilities::default() },
        hosts: 0,
        stock: Stock::default(),
    }
}

fn metal_pool(rng: &mut Rng) -> PoolPlan {
    let hosts = small(rng, 2, 4);
    let policy = Policy {
        max_instances: hosts,
        capacity_per_instance: rng.pick(&[1, 1, 2]),
        max_use_count: None,
        reuse: rng.pick(&[Reuse::Project, Reuse::Any]),
        clean_unbinds: rng.chance(500),
        idle: IdlePolicy { idle_count: hosts, ..idle(rng) },
        timing: timing(rng),
        ..Policy::default()
    };
    PoolPlan {
        name: PoolName::new("metal"),
        policy: Arc::new(policy),
        capabilities: Capabilities { launches: false, ..Capabilities::default() },
        hosts,
        stock: Stock::default(),
    }
}

const JOB_FAULTS: &[Fault] = &[
    Fault::PrepareRepeated,
    Fault::CleanupLate,
    Fault::CleanupMissing,
    Fault::RunAbandoned,
    Fault::CancelledWaiting,
    Fault::CancelledRunning,
];

fn draw_jobs(seed: u64, faults: &mut Rng) -> Vec<JobPlan> {
    let mut rng = Rng::new(seed, "jobs");
    let mut refs = Rng::new(seed, "refs");
    let gap = rng.within(8_000..24_000);
    let mut comes = 0;
    let mut jobs = Vec::new();
    for number in 0..JOBS + rng.below(20) {
        // Bursts: sometimes several come at the same time.
        comes += if rng.chance(250) { rng.below(50) } else { rng.below(2 * gap * 4 / 3) };
        let project = rng.pick(&["red/app", "red/lib", "blue/app"]);
        let key = JobKey::new("https://gitlab.example", 1000 + number);
        let facts = JobFacts::new(key, project, Duration::from_mins(rng.pick(&[20, 45])));
        let facts = JobFacts { protected: refs.chance(300), ..facts };
        let mut stages: Vec<(u64, u32)> =
            (0..rng.within(2..6)).map(|_| (rng.within(500..20_000), 0)).collect();
        if rng.chance(150) {
            let place = rng.index(stages.len());
            stages[place].1 = rng.pick(&[1, 2, 137, IMPOSSIBLE]);
        }
        let pool = PoolName::new(if rng.chance(200) { "metal" } else { "cloud" });
        // The first jobs have one fault of each kind, so that no seed lacks one.
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let fault = match JOB_FAULTS.get(index.wrapping_sub(5)) {
            Some(fault) => Some(*fault),
            None => faults.chance(120).then(|| faults.pick(JOB_FAULTS)),
        };
        jobs.push(JobPlan { comes, facts, pool, stages, fault, dice: faults.word() });
    }
    jobs
}

/// Faults that happen at a moment.
const MOMENTS: &[Fault] = &[
    Fault::DiesLeased,
    Fault::DiesIdle,
    Fault::StoppedOutside,
    Fault::Reboots,
    Fault::PowerCut,
    Fault::RecordLost,
    Fault::WallSteps,
    Fault::Copied,
    Fault::Twin,
    Fault::RunnerDies,
    Fault::ServiceDies,
    Fault::ConfigChanges,
    Fault::Drained,
];

/// Each kind is included with a chance of one half, and at least five are.
fn choose(rng: &mut Rng) -> Vec<Fault> {
    let every: Vec<Fault> = WINDOWED.iter().map(|(fault, _)| *fault).chain(MOMENTS.iter().copied()).collect();
    loop {
        let chosen: Vec<Fault> = every.iter().copied().filter(|_| rng.chance(450)).collect();
        if chosen.len() >= 5 {
            return chosen;
        }
    }
}

fn draw_moments(chosen: &[Fault], calm: u64, rng: &mut Rng) -> Vec<Moment> {
    let mut moments = Vec::new();
    for fault in MOMENTS.iter().filter(|fault| chosen.contains(fault)) {
        let times = if *fault == Fault::Copied { 1 } else { rng.within(1..4) };
        for _ in 0..times {
            moments.push(Moment { at: rng.below(calm * 9 / 10), fault: *fault, dice: rng.word() });
        }
    }
    moments.sort_by_key(|m| m.at);
    moments
}

/// Instances that begin no stages or no containers, from a stream of their own.
fn draw_unbegun(seed: u64, calm: u64) -> Vec<Moment> {
    let mut rng = Rng::new(seed, "unbegun");
    let times = if rng.chance(500) { rng.within(1..4) } else { 0 };
    let mut moments = Vec::new();
    for fault in [Fault::BeginsNoStage, Fault::EngineBroken] {
        for _ in 0..times {
            moments.push(Moment { at: rng.below(calm * 9 / 10), fault, dice: rng.word() });
        }
    }
    moments
}

/// Kills, of every kind of process; the counts are small where a process has few steps.
fn draw_kills(calm: u64, rng: &mut Rng) -> Vec<PlannedKill> {
    let mut kills = Vec::new();
    for _ in 0..rng.within(4..12) {
        let (kind, calls) = rng.pick(&[
            (Kind::Prepare, 20),
            (Kind::Run, 10),
            (Kind::Cleanup, 8),
            (Kind::Keep, 60),
            (Kind::Keep, 20),
            (Kind::Reap, 15),
        ]);
        kills.push(PlannedKill { kind, from: rng.below(calm * 9 / 10), calls: rng.within(1..calls + 1) });
    }
    kills
}

// Lifetimes: some seeds have a default one, and jobs with timeouts that exceed it.
//
// Everything is drawn from a stream of its own, so that the course of the other seeds does not depend on this file.

/// Makes the pool's lifetime a default in some seeds, and gives some of its jobs longer timeouts.
pub(super) fn draw_lifetimes(seed: u64, pool: &mut PoolPlan, jobs: &mut [JobPlan]) {
    let mut rng = Rng::new(seed, "lifetimes");
    if pool.policy.max_lifetime.is_none() || !rng.chance(500) {
        return;
    }
    Arc::make_mut(&mut pool.policy).extends_lifetime = true;
    for job in jobs.iter_mut().filter(|job| job.pool == pool.name) {
        if rng.chance(150) {
            job.facts.timeout = Duration::from_mins(rng.pick(&[60, 75, 100]));
        }
    }
}
