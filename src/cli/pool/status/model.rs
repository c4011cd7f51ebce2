//! The status of a pool, for text and JSON alike.

use crate::cli::pool::status::until::until;
use crate::cli::when::When;
use crate::connector::ssh::link::Survey;
use crate::core::availability::Unavailable;
use crate::core::failure::Failure;
use crate::core::ids::{InstanceId, OfferingName, PoolName};
use crate::core::instance::{Answer, Instance, Phase};
use crate::core::plan::backoff::{self, LaunchGate};
use crate::core::policy::{IdlePolicy, Policy};
use crate::core::pool::PoolState;
use crate::core::report::{Report, WaitingOn};
use crate::core::reservation::Reservation;
use crate::core::schedule::ScheduleText;
use crate::core::time::Stamp;

/// Whether a keeper is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeeperStatus {
    Runs,
    Absent,
    /// It could not be determined, and why.
    Unknown(String),
}

/// What was read of a pool.
#[derive(Debug, Clone, Copy)]
pub struct StatusInput<'a> {
    pub pool: &'a PoolName,
    pub state: &'a PoolState,
    /// The report of the last pass.
    pub report: Option<&'a Report>,
    pub keeper: &'a KeeperStatus,
    /// The status of its links; `None`: they were not queried, and are not shown.
    pub links: Option<&'a Survey>,
}

/// The status of a pool.
#[derive(Debug)]
pub(super) struct Overview<'a> {
    pub(super) pool: &'a PoolName,
    pub(super) state: &'a PoolState,
    pub(super) report: Option<&'a Report>,
    pub(super) keeper: &'a KeeperStatus,
    pub(super) links: Option<&'a Survey>,
    pub(super) policy: Option<ActivePolicy<'a>>,
    /// Slots that a job could take immediately.
    pub(super) idle: u32,
    pub(super) idle_target: u32,
    pub(super) in_use: u32,
    /// The highest possible number of job slots.
    pub(super) slots: u32,
    /// What is suspended, paused or backing off.
    pub(super) suspensions: Vec<Suspension>,
    /// In the order of preference.
    pub(super) offerings: Vec<OfferingView<'a>>,
    /// In the order in which they are shown.
    pub(super) instances: Vec<InstanceView<'a>>,
    pub(super) waiting: Vec<Waiting<'a>>,
}

/// The active policy.
#[derive(Debug)]
pub(super) struct ActivePolicy<'a> {
    pub(super) policy: &'a Policy,
    pub(super) idle: &'a IdlePolicy,
    /// The entry of `policy` it comes from, from 0, and its periods.
    pub(super) entry: Option<(usize, &'a ScheduleText)>,
    pub(super) until: Option<Stamp>,
}

/// Why a pool does less than its policy allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Suspension {
    Drained { since: Stamp },
    Paused { until: Stamp, failures: u32, failure: Failure },
    Backoff { until: Stamp, failure: Failure },
}

/// An offering, and why it is unavailable now.
#[derive(Debug)]
pub(super) struct OfferingView<'a> {
    pub(super) offering: &'a OfferingName,
    pub(super) unavailable: Option<Unavailable>,
}

#[derive(Debug)]
pub(crate) struct InstanceView<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) reason: Option<String>,
    /// What the provider reports about it.
    pub(crate) detail: Option<&'a str>,
    /// The command that returns it to service.
    pub(crate) remedy: Option<String>,
}

#[derive(Debug)]
pub(super) struct Waiting<'a> {
    pub(super) reservation: &'a Reservation,
    /// From 1.
    pub(super) position: usize,
    pub(super) reason: WaitingOn,
    /// What it waits for, and how long that usually takes.
    pub(super) text: String,
}

impl<'a> Overview<'a> {
    pub(super) fn of(input: StatusInput<'a>, when: &When) -> Self {
        let StatusInput { pool, state, report, keeper, links } = input;
        let now = when.now();
        let policy = state.policy.as_deref().map(|policy| in_force(policy, now));
        let in_use = state.in_use();
        let idle_target = policy.as_ref().map_or(0, |p| p.idle.target(in_use));
        let slots = policy
            .as_ref()
            .map_or(0, |p| p.policy.max_instances.saturating_mul(p.policy.capacity_per_instance));
        let mut instances: Vec<_> =
            state.instances.values().map(|instance| view(pool, instance, state, report, when)).collect();
        instances.sort_by_key(|seen| (rank(&seen.instance.phase), seen.instance.id.clone()));
        let idle = state.instances.values().map(|i| i.usable()).sum();
        let suspensions = halts(state, now);
        let waiting = waiting(state, report, when);
        Self {
            pool,
            state,
            report,
            keeper,
            links,
            policy,
            idle,
            idle_target,
            in_use,
            slots,
            suspensions,
            offerings: offerings(state, now),
            instances,
            waiting,
        }
    }

    /// How many instances are in each phase, in the order of the table.
    pub(super) fn phases(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for seen in &self.instances {
            let word = seen.instance.phase.word();
            match counts.last_mut() {
                Some((known, count)) if *known == word => *count += 1,
                _ => counts.push((word, 1)),
            }
        }
        counts
    }
}

fn in_force(policy: &Policy, now: Stamp) -> ActivePolicy<'_> {
    let (idle, index) = policy.in_force(now);
    let entry = index.and_then(|at| Some((at, policy.schedules.get(at)?.when.text())));
    ActivePolicy { policy, idle, entry, until: until(policy, now) }
}

/// Instances that serve come first, those on their way out last.
fn rank(phase: &Phase) -> u8 {
    match phase {
        Phase::Ready => 0,
        Phase::Checking => 1,
        Phase::Launching => 2,
        Phase::Cleaning => 3,
        Phase::OutOfService { .. } => 4,
        Phase::Draining { .. } => 5,
    }
}

/// What is suspended, paused or backing off now.
pub(crate) fn halts(state: &PoolState, now: Stamp) -> Vec<Suspension> {
    let mut halts = Vec::new();
    if let Some(since) = state.drained {
        halts.push(Suspension::Drained { since });
    }
    let Some(policy) = state.policy.as_deref() else { return halts };
    match backoff::judge(&state.launches, &policy.timing, now) {
        LaunchGate::Paused { until, failures, failure } => {
            halts.push(Suspension::Paused { until, failures, failure });
        }
        LaunchGate::Backoff { until, failure } => halts.push(Suspension::Backoff { until, failure }),
        LaunchGate::Open | LaunchGate::Trial { .. } => {}
    }
    halts
}

fn offerings<'a>(state: &'a PoolState, now: Stamp) -> Vec<OfferingView<'a>> {
    let mut passed = passed_over(state, now);
    let view = |offering: &'a OfferingName| {
        let place = passed.iter().position(|p| p.offering == *offering);
        OfferingView { offering, unavailable: place.map(|place| passed.remove(place)) }
    };
    state.availability.offerings().iter().map(view).collect()
}

/// The offerings that launches skip now.
pub(crate) fn passed_over(state: &PoolState, now: Stamp) -> Vec<Unavailable> {
    let timing = state.policy.as_deref().map(|policy| &policy.timing);
    timing.map_or(Vec::new(), |timing| state.availability.unavailable(timing, now).collect())
}

/// Why one of them is unavailable, and until when.
pub(crate) fn until_tried(passed: &Unavailable, when: &When) -> String {
    format!("{passed}, next try {}", when.left(passed.until))
}

/// The view of one instance.
pub(crate) fn view<'a>(
    pool: &PoolName,
    instance: &'a Instance,
    state: &PoolState,
    report: Option<&'a Report>,
    when: &When,
) -> InstanceView<'a> {
    let why = match &instance.phase {
        Phase::Launching => Some(launching(instance, state)),
        Phase::Checking => Some("reachable, not yet ready".to_owned()),
        Phase::Ready => ready(instance, when),
        Phase::Cleaning => Some("being cleaned between jobs".to_owned()),
        Phase::OutOfService { reason: why } => Some(why.clone()),
        Phase::Draining { reason: why } if instance.holders.is_empty() => Some(why.to_string()),
        Phase::Draining { reason: why } => Some(format!("{why}; waiting for its jobs to finish")),
    };
    let remedy = matches!(instance.phase, Phase::OutOfService { .. }).then(|| bring_back(pool, &instance.id));
    let detail = report.and_then(|report| report.detail(&instance.id));
    InstanceView { instance, reason: why, detail, remedy }
}

/// The command that returns an instance to service.
fn bring_back(pool: &PoolName, instance: &InstanceId) -> String {
    format!("greenroom pool resume {pool} --instance {instance}")
}

fn launching(instance: &Instance, state: &PoolState) -> String {
    let Some(launch) = &instance.launch else { return "adopted, not yet reached".to_owned() };
    match &launch.answer {
        Answer::Pending => "launch requested, the provider has not answered yet".to_owned(),
        Answer::Accepted { .. } => match state.launches.usual_boot() {
            Some(usual) => format!("booting, usually {}", crate::core::time::Pretty(usual)),
            None => "booting".to_owned(),
        },
        Answer::Unknown { .. } => "the launch got no answer: the instance may or may not exist".to_owned(),
        Answer::Refused { failure, .. } => format!("launch {} refused: {failure}", launch.attempt),
    }
}

fn ready(instance: &Instance, when: &When) -> Option<String> {
    if let Some(since) = instance.missing {
        let age = when.age(since);
        return Some(format!("missing from the provider's list for {age}"));
    }
    let closing: Vec<String> =
        instance.holders.values().filter(|h| h.closing.is_some()).map(|h| h.job.to_string()).collect();
    if !closing.is_empty() {
        return Some(format!("closing, the last call is still running: job {}", closing.join(", ")));
    }
    // Longer in its phase than idle: it has served a job in between.
    (instance.is_idle() && instance.idle_since() != instance.since)
        .then(|| format!("idle for {}", when.age(instance.idle_since())))
}

fn waiting<'a>(state: &'a PoolState, report: Option<&Report>, when: &When) -> Vec<Waiting<'a>> {
    let reported = |r: &Reservation| {
        let entries = report.into_iter().flat_map(|report| &report.waiting);
        entries.filter(|(attempt, _)| *attempt == r.attempt).map(|(_, on)| on.clone()).next()
    };
    let line = |(at, reservation): (usize, &'a std::sync::Arc<Reservation>)| {
        let on = reported(reservation).unwrap_or(WaitingOn::NextPass);
        let text = on_what(&on, state, when);
        Waiting { reservation, position: at + 1, reason: on, text }
    };
    state.waiting.values().enumerate().map(line).collect()
}

/// What a job waits for, and until when or how long that usually takes.
pub(crate) fn on_what(on: &WaitingOn, state: &PoolState, when: &When) -> String {
    match on {
        WaitingOn::Boot { .. } => match state.launches.usual_boot() {
            Some(usual) => format!("{on}, usually {}", crate::core::time::Pretty(usual)),
            None => on.to_string(),
        },
        WaitingOn::Rate { until } | WaitingOn::Backoff { until, .. } | WaitingOn::Paused { until, .. } => {
            format!("{on}, {}", when.until(*until))
        }
        WaitingOn::NoOffering { until, .. } => format!("{on}, next try {}", when.left(*until)),
        _ => on.to_string(),
    }
}
