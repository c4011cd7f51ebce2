//! Instances on their way, and the waiting jobs that they will serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::attempts::UngrantedAttempts;
use super::{PlanBuilder, ScaleInput, assign};
use crate::ids::{AttemptName, TrustDomain};
use crate::instance::{Instance, Phase};
use crate::job::Reservation;
use crate::policy::{Policy, Reuse};
use crate::pool::PoolState;
use crate::time::Stamp;

/// Instances on their way, filled with waiting jobs, first come first served.
#[derive(Debug)]
pub(super) struct UpcomingCapacity<'a> {
    upcoming: Vec<UpcomingInstance<'a>>,
    /// The ones that jobs have ordered, also those that are ready.
    ordered: BTreeMap<&'a AttemptName, &'a Instance>,
    policy: &'a Policy,
    now: Stamp,
}

/// An instance on its way, its free slots, and the domain that they are for.
#[derive(Debug)]
struct UpcomingInstance<'a> {
    instance: &'a Instance,
    slots: u32,
    domain: Option<&'a TrustDomain>,
}

/// The capacity that is missing once everything on its way is ready.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Shortfall {
    /// Waiting jobs without an order that no instance on its way will serve, but a new one could.
    pub(super) jobs: u32,
    /// Instances that these jobs need: jobs of different domains never share one.
    pub(super) instances: u32,
    /// Waiting jobs that an instance on its way will serve.
    pub(super) served: u32,
    /// Slots on their way that any domain may use.
    pub(super) spare: u32,
    /// Waiting jobs that have ordered an instance, in the order of the queue: each needs one of its own.
    pub(super) orders: Vec<MissingOrder>,
}

/// A waiting job that needs an instance of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissingOrder {
    pub(super) job: Arc<Reservation>,
    /// Instances of the pool's own kind that the jobs before it in the queue need.
    pub(super) before: u32,
}

impl Shortfall {
    /// Instances that the waiting jobs need.
    pub(super) fn launches(&self) -> u32 {
        self.instances.saturating_add(u32::try_from(self.orders.len()).unwrap_or(u32::MAX))
    }
}

impl<'a> UpcomingCapacity<'a> {
    pub(super) fn new(
        state: &'a PoolState,
        policy: &'a Policy,
        ungranted: &UngrantedAttempts,
        now: Stamp,
    ) -> Self {
        Self::of(state, policy, ungranted, now, |_| true)
    }

    /// The upcoming instances that are resuming.
    pub(super) fn resuming(
        state: &'a PoolState,
        policy: &'a Policy,
        ungranted: &UngrantedAttempts,
        now: Stamp,
    ) -> Self {
        Self::of(state, policy, ungranted, now, |i| i.phase.is_resuming())
    }

    fn of(
        state: &'a PoolState,
        policy: &'a Policy,
        ungranted: &UngrantedAttempts,
        now: Stamp,
        which: impl Fn(&Instance) -> bool,
    ) -> Self {
        let instances = state.instances.values().filter(|i| !ungranted.names(&i.id) && which(i));
        let upcoming =
            instances.filter(|i| i.ordered.is_none()).filter_map(|i| upcoming(i, policy)).collect();
        Self { upcoming, ordered: ordered(state), policy, now }
    }

    /// Adds one that will be resumed.
    pub(super) fn add(&mut self, instance: &'a Instance) {
        self.upcoming.push(UpcomingInstance::fresh(instance));
    }

    /// The instance that will serve this job; it keeps a slot there.
    pub(super) fn serve(&mut self, job: &'a Reservation) -> Option<&'a Instance> {
        if job.job.order.is_some() {
            return self.ordered.get(&job.attempt).copied();
        }
        let lasts = |i: &Instance| {
            // One that is resumed has lived before.
            if matches!(i.phase, Phase::Suspended { .. }) {
                return assign::suits(i, job, self.policy, self.now);
            }
            i.lifetime(self.policy).is_none_or(|limit| job.job.timeout <= limit)
        };
        let suits = |c: &&mut UpcomingInstance<'a>| {
            let admits = c.domain.is_none_or(|d| *d == job.domain);
            c.slots > 0 && admits && lasts(c.instance)
        };
        let next = self.upcoming.iter_mut().find(suits)?;
        next.slots -= 1;
        next.domain = Some(&job.domain);
        Some(next.instance)
    }

    /// Serves every waiting job that it can, and returns the shortfall.
    ///
    /// Jobs are served in the order of the queue, as the grants will be: otherwise a launch could be left out for a job that then
    /// finds its slot taken.
    pub(super) fn shortfall(mut self, state: &'a PoolState) -> Shortfall {
        let mut shortfall = Shortfall::default();
        let mut unserved: BTreeMap<&str, u32> = BTreeMap::new();
        let slots = self.policy.fresh_slots();
        for job in state.waiting.values() {
            if job.refused.is_some() {
                continue;
            }
            if self.serve(job).is_some() {
                shortfall.served += 1;
            } else if !self.policy.has_time_for(&job.job) {
                // No instance lives long enough.
            } else if job.job.order.is_some() {
                let shared = self.policy.reuse == Reuse::Any;
                let before = if shared { shortfall.jobs.div_ceil(slots) } else { shortfall.instances };
                shortfall.orders.push(MissingOrder { job: Arc::clone(job), before });
            } else {
                shortfall.jobs += 1;
                let of_domain = unserved.entry(job.domain.as_str()).or_default();
                shortfall.instances += u32::from(of_domain.is_multiple_of(slots));
                *of_domain += 1;
            }
        }
        let open = |c: &&UpcomingInstance<'_>| c.domain.is_none_or(|d| self.policy.reuse.is_open(d));
        shortfall.spare = self.upcoming.iter().filter(open).map(|c| c.slots).fold(0, u32::saturating_add);
        shortfall
    }
}

/// The instances that jobs have ordered, by their attempts. A refused launch is none, and one that ends serves no job.
fn ordered(state: &PoolState) -> BTreeMap<&AttemptName, &Instance> {
    let instances = state.instances.values().map(AsRef::as_ref);
    let kept = instances.filter(|i| !i.is_refused() && !matches!(i.phase, Phase::Draining { .. }));
    kept.filter_map(|i| Some((&i.ordered.as_ref()?.attempt, i))).collect()
}

impl<'a> UpcomingInstance<'a> {
    /// An upcoming instance with the uses that it has left.
    fn fresh(instance: &'a Instance) -> Self {
        let slots = instance.free_slots().min(instance.uses_left.unwrap_or(u32::MAX));
        Self { instance, slots, domain: instance.domain.as_ref() }
    }
}

/// The instance as capacity on its way; `None` if it brings none. A ready one without obstacles is not on its way: the step
/// *assign* has offered it already, so what still waits does not suit it.
fn upcoming<'a>(instance: &'a Instance, policy: &Policy) -> Option<UpcomingInstance<'a>> {
    let (domain, uses) = match instance.phase {
        Phase::Launching | Phase::Checking if !instance.is_refused() => {
            return Some(UpcomingInstance::fresh(instance));
        }
        // It may respond again, begin stages after all, or be fit for the next job.
        Phase::Ready if instance.unreachable.is_some() || instance.must_be_checked() => {
            return Some(UpcomingInstance::fresh(instance));
        }
        Phase::Suspended { .. } if instance.phase.is_resuming() => {
            return Some(UpcomingInstance::fresh(instance));
        }
        // Cleaning restores its uses, and may unbind it.
        Phase::Cleaning => (instance.domain.as_ref().filter(|_| !policy.clean_unbinds), policy.max_use_count),
        Phase::Launching
        | Phase::Checking
        | Phase::Ready
        | Phase::Suspended { .. }
        | Phase::OutOfService { .. }
        | Phase::Draining { .. } => return None,
    };
    Some(UpcomingInstance { instance, slots: instance.free_slots().min(uses.unwrap_or(u32::MAX)), domain })
}

// One count over all instances.

/// Numbers of instances and slots by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct InstanceCounts {
    /// Idle slots that any domain may use.
    pub(super) spare: u32,
    /// Launches of the pool's own kind that may still become ready.
    pub(super) under_way: u32,
    /// Launches that jobs ordered.
    pub(super) ordered: u32,
    /// Refused launches that may be repeated now.
    pub(super) refused: u32,
    /// Draining, without jobs.
    pub(super) leaving: u32,
}

impl InstanceCounts {
    pub(super) fn of(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> Self {
        let mut counts = Self::default();
        for instance in draft.state().instances.values() {
            match instance.phase {
                Phase::Launching if instance.is_refused() => {
                    counts.refused += u32::from(is_repeatable(instance, draft, input));
                }
                Phase::Launching | Phase::Checking if instance.ordered.is_some() => counts.ordered += 1,
                Phase::Launching | Phase::Checking => counts.under_way += 1,
                Phase::Ready => {
                    if is_spare(instance, input.policy)
                        && assign::is_offered(instance, draft.state(), draft.now)
                    {
                        counts.spare = counts.spare.saturating_add(instance.usable());
                    }
                }
                Phase::Draining { .. } => counts.leaving += u32::from(is_leaving(instance, input)),
                Phase::Suspended { .. } | Phase::Cleaning | Phase::OutOfService { .. } => {}
            }
        }
        counts
    }
}

/// True if its launch was refused and may be repeated now.
pub(super) fn is_repeatable(instance: &Instance, draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> bool {
    instance.is_refused()
        && !input.ungranted.names(&instance.id)
        && input.observed.is_free(&instance.id, draft.now)
}

/// True if all domains may use its free slots. A bound instance is capacity for its own domain only, one that a job
/// ordered for that job.
pub(super) fn is_spare(instance: &Instance, policy: &Policy) -> bool {
    instance.ordered.is_none()
        && instance.domain.as_ref().is_none_or(|bound_to| policy.reuse.is_open(bound_to))
}

/// True if an instance is draining, and no longer in use.
pub(super) fn is_leaving(instance: &Instance, input: &ScaleInput<'_>) -> bool {
    matches!(instance.phase, Phase::Draining { .. })
        && is_left(instance)
        && !input.ungranted.names(&instance.id)
}

/// True if no job is on it; closing attempts do not count.
pub(super) fn is_left(instance: &Instance) -> bool {
    instance.holders.values().all(|h| h.closing.is_some())
}
