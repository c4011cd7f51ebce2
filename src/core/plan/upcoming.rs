//! Instances on their way, and the waiting jobs that they will serve.

use std::collections::BTreeMap;

use super::assign;
use super::attempts::UngrantedAttempts;
use crate::core::ids::TrustDomain;
use crate::core::instance::{Instance, Phase};
use crate::core::policy::Policy;
use crate::core::pool::PoolState;
use crate::core::reservation::Reservation;
use crate::core::time::Stamp;

/// Instances on their way, filled with waiting jobs, first come first served.
#[derive(Debug)]
pub(super) struct UpcomingCapacity<'a> {
    upcoming: Vec<UpcomingInstance<'a>>,
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

/// What is missing once everything on its way is ready.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shortfall {
    /// Waiting jobs that no instance on its way will serve, but a new one could.
    pub(super) jobs: u32,
    /// Instances that these jobs need: jobs of different domains never share one.
    pub(super) instances: u32,
    /// Waiting jobs that an instance on its way will serve.
    pub(super) served: u32,
    /// Slots on their way that any domain may use.
    pub(super) spare: u32,
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

    /// Those that are resuming.
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
        Self { upcoming: instances.filter_map(|i| upcoming(i, policy)).collect(), policy, now }
    }

    /// Adds one that will be resumed.
    pub(super) fn add(&mut self, instance: &'a Instance) {
        self.upcoming.push(UpcomingInstance::fresh(instance));
    }

    /// The instance that will serve this job; it keeps a slot there.
    pub(super) fn serve(&mut self, job: &'a Reservation) -> Option<&'a Instance> {
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
    pub(super) fn shortfall(mut self, state: &'a PoolState) -> Shortfall {
        let mut shortfall = Shortfall::default();
        let mut unserved: BTreeMap<&str, u32> = BTreeMap::new();
        for job in state.waiting.values() {
            if self.serve(job).is_some() {
                shortfall.served += 1;
            } else if self.policy.has_time_for(&job.job) {
                shortfall.jobs += 1;
                *unserved.entry(job.domain.as_str()).or_default() += 1;
            }
        }
        let slots = self.policy.fresh_slots();
        shortfall.instances = unserved.values().map(|jobs| jobs.div_ceil(slots)).sum();
        let open = |c: &&UpcomingInstance<'_>| c.domain.is_none_or(|d| self.policy.reuse.is_open(d));
        shortfall.spare = self.upcoming.iter().filter(open).map(|c| c.slots).fold(0, u32::saturating_add);
        shortfall
    }
}

impl<'a> UpcomingInstance<'a> {
    /// With the uses that it has left.
    fn fresh(instance: &'a Instance) -> Self {
        let slots = instance.free_slots().min(instance.uses_left.unwrap_or(u32::MAX));
        Self { instance, slots, domain: instance.domain.as_ref() }
    }
}

fn upcoming<'a>(instance: &'a Instance, policy: &Policy) -> Option<UpcomingInstance<'a>> {
    let (domain, uses) = match instance.phase {
        Phase::Launching | Phase::Checking if !instance.is_refused() => {
            return Some(UpcomingInstance::fresh(instance));
        }
        // It may respond again, or begin stages after all.
        Phase::Ready if instance.unreachable.is_some() || instance.awaits_stage_check() => {
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
