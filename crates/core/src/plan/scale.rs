//! Step *scale*: how many to launch.

use std::sync::Arc;
use std::time::Duration;

use super::backoff::{self, LaunchGate, OwnGate};
use super::launch_limits::LaunchLimits;
use super::listing::Elsewhere;
use super::observed::Fresh;
use super::reconcile::{act, drain};
use super::upcoming::{self, InstanceCounts, MissingOrder};
use super::{Effect, PlanBuilder, ScaleInput, tier};
use crate::availability::{Choice, Unavailable};
use crate::event::Change;
use crate::ids::InstanceId;
use crate::instance::{DrainReason, Instance};
use crate::job::Reservation;
use crate::order::Ordered;
use crate::policy::{Lifetime, Policy, Reuse};
use crate::report::{Note, Report, WaitingOn};

/// The reasons that block the launches which are still wanted.
#[derive(Debug, Default)]
pub(super) struct ScaleReport {
    /// All launches.
    pub(super) blocked: Option<WaitingOn>,
    /// Launches of the pool's own kind.
    pub(super) shared: Option<WaitingOn>,
    /// Launches that jobs ordered.
    pub(super) ordered: Option<WaitingOn>,
    pub(super) limit_reached: bool,
}

pub(super) fn step(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>, report: &mut Report) -> ScaleReport {
    watch_periods(draft, input.policy);
    let counted = counted(draft, input);
    let max_instances = input.policy.max_instances;
    // A refused launch created nothing.
    let alive = counted.saturating_sub(InstanceCounts::of(draft, input).refused);
    if alive > max_instances {
        report.notes.push(Note::OverLimit { alive, max_instances });
    }
    if let Some(since) = draft.state().drained {
        return ScaleReport { blocked: Some(WaitingOn::Drained { since }), ..ScaleReport::default() };
    }
    if !input.observed.capabilities.launches {
        return ScaleReport { blocked: Some(WaitingOn::NoHost { unusable: None }), ..ScaleReport::default() };
    }
    let wants = Wants::of(draft, input, shared(draft, input));
    let wanted = wants.count();
    drop_refused(draft, input, &wants);
    let mut scaled = ScaleReport::default();
    let elsewhere = input.elsewhere.filter(|_| wanted > 0).map(Elsewhere::waiting_on);
    if let Some(on) = elsewhere.or_else(|| no_offering(draft, input, wanted)) {
        report.launches = Some(on.clone());
        scaled.blocked = Some(on);
        return scaled;
    }
    if let Some(problem) = input.observed.unrecordable.clone().filter(|_| wanted > 0) {
        let on = WaitingOn::Disk { problem };
        report.launches = Some(on.clone());
        scaled.blocked = Some(on);
        draft.wake_at(draft.now.plus(input.policy.timing.list_interval));
        return scaled;
    }
    let Some(fresh) = &input.observed.launching else { return scaled };
    let longest = draft.state().waiting.values().map(|job| job.job.timeout).max().unwrap_or_default();
    let lifetime = input.policy.lifetime_for(longest);
    let Picked { now, crowded } = picked(draft, input, &wants, &mut scaled);
    for want in now {
        launch(draft, input, fresh, lifetime, want);
    }
    give_way(draft, input, crowded);
    report.launches.clone_from(&scaled.shared);
    scaled
}

/// The wanted instances that are launched in this pass.
#[derive(Default)]
struct Picked<'a> {
    now: Vec<Want<'a>>,
    /// Number of instances that would be launched, too, if refused launches did not take their room.
    crowded: usize,
}

/// The launches that may be made now, in the order of the queue. Neither kind takes what belongs to the other.
///
/// A refused launch takes room until it is repeated or its absence is proven: a provider may have refused what it
/// then carried out.
fn picked<'a>(
    draft: &PlanBuilder<'_>,
    input: &ScaleInput<'_>,
    wants: &'a Wants,
    scaled: &mut ScaleReport,
) -> Picked<'a> {
    let wanted = wants.count();
    let mut picked = Picked::default();
    if wanted == 0 {
        return picked;
    }
    let counts = InstanceCounts::of(draft, input);
    let room = room(draft, input, &counts);
    scaled.limit_reached = room < wanted;
    let mut limits = LaunchLimits::of(draft, input, &counts);
    let mut refused: Vec<&Instance> = repeatable(draft, input).collect();
    let mut free = room.saturating_sub(counts.refused);
    for want in wants.first(wanted) {
        if picked.now.len() + picked.crowded >= usize::try_from(room).unwrap_or(usize::MAX) {
            break;
        }
        let (blocked, noted) = match want {
            Want::Shared => (limits.take_shared(draft), &mut scaled.shared),
            Want::Order(job) => (limits.take_ordered(draft, job), &mut scaled.ordered),
        };
        if let Some(on) = blocked {
            noted.get_or_insert(on);
        } else if let Some(index) = refused.iter().position(|i| want.is_met_by(i)) {
            refused.swap_remove(index);
            picked.now.push(want);
        } else if free > 0 {
            free -= 1;
            picked.now.push(want);
        } else {
            picked.crowded += 1;
        }
        // The rest of the queue would find the same.
        if scaled.shared.is_some() && limits.launching.for_ordered() == 0 {
            break;
        }
    }
    picked
}

/// The refused launches that may be repeated now.
fn repeatable<'a>(
    draft: &'a PlanBuilder<'_>,
    input: &'a ScaleInput<'_>,
) -> impl Iterator<Item = &'a Instance> {
    let all = draft.state().instances.values().map(Arc::as_ref);
    all.filter(|i| upcoming::is_repeatable(i, draft, input))
}

/// Drains refused launches that are not repeated in this pass, for what could be launched in their room. Termination
/// proves that nothing exists.
fn give_way(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>, crowded: usize) {
    let given: Vec<InstanceId> = repeatable(draft, input).take(crowded).map(|i| i.id.clone()).collect();
    for instance in given {
        drain(draft, input.observed, instance, DrainReason::Surplus);
    }
}

/// Number of instances that may be launched before the pool is at its limit.
fn room(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, counts: &InstanceCounts) -> u32 {
    input.policy.max_instances.saturating_add(counts.refused).saturating_sub(counted(draft, input))
}

/// The offering that a wanted instance has to wait for, if it would fit. Also where this pass may not launch: the
/// next one may.
fn no_offering(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, wanted: u32) -> Option<WaitingOn> {
    let Choice::Wait { first, count } = choice(draft, input) else { return None };
    if wanted == 0 || room(draft, input, &InstanceCounts::of(draft, input)) == 0 {
        return None;
    }
    let Unavailable { offering, refusal, until } = first;
    draft.wake_at(until);
    Some(WaitingOn::NoOffering { until, offering, failure: refusal.failure, count })
}

/// The offering for the next launch.
fn choice(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> Choice {
    draft.state().availability.choice(&input.policy.timing, draft.now)
}

/// Launches that would be made for waiting jobs if there were room for them.
pub(super) fn launchable(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, counts: &InstanceCounts) -> u32 {
    if input.observed.launching.is_none() {
        return 0;
    }
    if input.elsewhere.is_some() || matches!(choice(draft, input), Choice::Wait { .. }) {
        return 0;
    }
    let needed = input.shortfall.instances;
    let shared = match backoff::judge(&draft.state().launches, &input.policy.timing, draft.now) {
        LaunchGate::Open => needed,
        LaunchGate::Trial { .. } => needed.min(1_u32.saturating_sub(counts.under_way)),
        LaunchGate::Backoff { .. } | LaunchGate::Paused { .. } => 0,
    };
    let orders = Wants::of(draft, input, 0).count();
    shared.saturating_add(orders.min(LaunchLimits::of(draft, input, counts).launching.for_ordered()))
}

/// Commits the intent first; the effect follows.
fn launch(
    draft: &mut PlanBuilder<'_>,
    input: &ScaleInput<'_>,
    fresh: &Fresh,
    lifetime: Option<Lifetime>,
    want: Want<'_>,
) {
    let offering = match want {
        Want::Order(job) => match order_gate(draft, input, job) {
            OwnGate::Open(offering) => offering,
            OwnGate::Wait { .. } => None,
        },
        Want::Shared => match choice(draft, input) {
            Choice::Take(offering) => Some(offering),
            Choice::Only | Choice::Wait { .. } => None,
        },
    };
    let state = draft.state();
    let refused =
        state.instances.values().find(|i| want.is_met_by(i) && upcoming::is_repeatable(i, draft, input));
    let again = refused.and_then(|i| i.launch.as_ref().map(|l| (i.id.clone(), l.clone())));
    let (instance, generation, number, attempt) = if let Some((id, launch)) = again {
        (id, launch.generation, launch.number, launch.attempt.saturating_add(1))
    } else {
        let number = state.generations.get(&fresh.generation).copied().unwrap_or(0).saturating_add(1);
        let id = InstanceId::launched(&fresh.pool, &fresh.generation, number);
        (id, fresh.generation.clone(), number, 1)
    };
    // If no list tells now, launches still go where they went before.
    let told = input.observed.listing.as_ref().ok().and_then(|listing| listing.location.clone());
    let location = told.or_else(|| draft.state().location.clone());
    let ordered = want.ordered();
    let (capacity, uses_left) = match ordered {
        Some(_) => (1, Some(1)),
        None => (input.policy.capacity_per_instance, input.policy.max_use_count),
    };
    draft.emit(Change::LaunchIntended {
        instance: instance.clone(),
        generation,
        number,
        attempt,
        capacity,
        uses_left,
        offering,
        location,
        lifetime,
        ordered,
    });
    act(draft, input.observed, Effect::Launch { instance, repeated: false });
    draft.wake_at(draft.now.plus(input.policy.timing.pass_interval));
}

/// Drains refused launches that are no longer wanted. They created nothing, but have keys, which termination discards.
///
/// Each takes room. Where jobs have ordered instances, only those stay that are repeated first.
fn drop_refused(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>, wants: &Wants) {
    let unmade = |i: &&Arc<Instance>| i.is_refused() && !input.ungranted.names(&i.id);
    let refused = || draft.state().instances.values().filter(unmade);
    let room = room(draft, input, &InstanceCounts::of(draft, input));
    let first: Vec<Want<'_>> = if wants.orders.is_empty() { Vec::new() } else { wants.first(room).collect() };
    let kept = if wants.orders.is_empty() {
        usize::try_from(wants.shared).unwrap_or(usize::MAX)
    } else {
        first.iter().filter(|want| matches!(want, Want::Shared)).count()
    };
    let of_the_pool = refused().filter(|i| i.ordered.is_none()).skip(kept);
    // A pause after a refusal is no reason to give the launch up.
    let is_vain = |i: &Instance| {
        let wanted = first.iter().any(|want| want.is_met_by(i));
        i.ordered.is_some() && !wanted && wants.is_vain(i, input) && upcoming::is_repeatable(i, draft, input)
    };
    let of_jobs = refused().filter(|i| is_vain(i));
    let surplus: Vec<InstanceId> = of_the_pool.chain(of_jobs).map(|i| i.id.clone()).collect();
    for instance in surplus {
        drain(draft, input.observed, instance, DrainReason::Surplus);
    }
}

/// The next minute may be in another period: schedules the next pass for it if the policy has schedules.
fn watch_periods(draft: &PlanBuilder<'_>, policy: &Policy) {
    if !policy.schedules.is_empty() {
        let into_minute = u64::try_from(draft.now.wall_ms.rem_euclid(60_000)).unwrap_or(0);
        draft.wake_at(draft.now.plus(Duration::from_millis(60_000 - into_minute)));
    }
}

/// Instances of the pool's own kind that the waiting jobs and the idle target need beyond what is ready or on its way.
///
/// No ready instance suits a job that still waits here: the step assign came first.
fn shared(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> u32 {
    let slots = input.policy.fresh_slots();
    let shortfall = &input.shortfall;
    let spare = if input.target == 0 { 0 } else { InstanceCounts::of(draft, input).spare };
    let missing = if refill_yields(input) {
        0
    } else {
        input.target.saturating_sub(spare).saturating_sub(shortfall.spare)
    };
    let tier = if refill_yields(input) { 0 } else { tier::wanted(draft, input) };
    if input.policy.reuse == Reuse::Any {
        return shortfall.jobs.saturating_add(missing).div_ceil(slots).saturating_add(tier);
    }
    // A slot beside a job is not spare: the instance is bound to that job's domain.
    shortfall.instances.saturating_add(missing.div_ceil(slots)).saturating_add(tier)
}

/// True if a job waits for a boot on the runner host that a refill would slow down.
fn refill_yields(input: &ScaleInput<'_>) -> bool {
    input.observed.capabilities.boots_here.is_some()
        && input.shortfall.launches().saturating_add(input.shortfall.served) > 0
}

/// The instances that count against [`max_instances`](crate::policy::Policy::max_instances): all recorded ones, and this
/// owner's unrecorded ones.
pub(super) fn counted(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> u32 {
    draft.state().alive().saturating_add(input.uncounted)
}

// What is to be launched, in the order of the queue: neither kind of instance keeps the other waiting.

/// The instances that are to be launched.
pub(super) struct Wants {
    /// Instances of the pool's own kind.
    pub(super) shared: u32,
    /// Instances that jobs have ordered.
    pub(super) orders: Vec<MissingOrder>,
}

/// One instance that is to be launched.
#[derive(Clone, Copy)]
pub(super) enum Want<'a> {
    /// An instance of the pool's own kind.
    Shared,
    /// An instance made of what this job ordered.
    Order(&'a Reservation),
}

impl Wants {
    pub(super) fn of(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, shared: u32) -> Self {
        let all = &input.shortfall.orders;
        let is_due = |order: &&MissingOrder| is_due(draft, input, &order.job);
        let orders = all.iter().filter(is_due).cloned().collect();
        Self { shared, orders }
    }

    pub(super) fn count(&self) -> u32 {
        self.shared.saturating_add(u32::try_from(self.orders.len()).unwrap_or(u32::MAX))
    }

    /// True unless the job of this refused launch waits for the end of its own pause: then the launch is kept.
    pub(super) fn is_vain(&self, refused: &Instance, input: &ScaleInput<'_>) -> bool {
        let mut waits = input.shortfall.orders.iter().map(|order| &order.job);
        !waits.any(|job| is_of(refused, job)) || self.orders.iter().any(|order| is_of(refused, &order.job))
    }

    /// The first ones in the order of the queue. What no job waits for comes last.
    pub(super) fn first(&self, count: u32) -> impl Iterator<Item = Want<'_>> {
        let mut listed = 0;
        let queued = self.orders.iter().flat_map(move |order| {
            let before = order.before.saturating_sub(listed);
            listed += before;
            let shared = (0..before).map(|_| Want::Shared);
            shared.chain(std::iter::once(Want::Order(&order.job)))
        });
        let queued_shared = self.orders.last().map_or(0, |order| order.before);
        let rest = (queued_shared..self.shared).map(|_| Want::Shared);
        queued.chain(rest).take(usize::try_from(count).unwrap_or(usize::MAX))
    }
}

impl Want<'_> {
    /// True if this instance, whose launch was refused, is what is wanted.
    pub(super) fn is_met_by(self, refused: &Instance) -> bool {
        match self {
            Self::Shared => refused.ordered.is_none(),
            Self::Order(job) => is_of(refused, job),
        }
    }

    pub(super) fn ordered(self) -> Option<Arc<Ordered>> {
        let Self::Order(job) = self else { return None };
        let order = Arc::clone(job.job.order.as_ref()?);
        let attempt = job.attempt.clone();
        let key = job.job.key.clone();
        let domain = job.domain.clone();
        Some(Arc::new(Ordered { attempt, job: key, domain, order }))
    }
}

fn is_of(instance: &Instance, job: &Reservation) -> bool {
    instance.ordered.as_ref().is_some_and(|ordered| ordered.attempt == job.attempt)
}

/// True unless an earlier launch for the job pauses after its refusal, or never became ready and is still being
/// terminated: its faults are not the pool's, so no other pause limits them.
fn is_due(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, job: &Reservation) -> bool {
    let mut own = draft.state().instances.values().filter(|i| is_of(i, job));
    if own.any(|i| i.failed_boot().is_some() || (i.is_refused() && !upcoming::is_repeatable(i, draft, input)))
    {
        return false;
    }
    match order_gate(draft, input, job) {
        OwnGate::Open(_) => true,
        OwnGate::Wait { until, .. } => {
            draft.wake_at(until);
            false
        }
    }
}

/// The gate for the next launch of what the job ordered.
pub(super) fn order_gate(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, job: &Reservation) -> OwnGate {
    backoff::own_gate(&job.own, &draft.state().availability, &input.policy.timing, draft.now)
}
