//! The limits of launches, besides room: the back-off of the pool's own,
//! [`max_launching`](crate::policy::Policy::max_launching), and
//! [`launches_per_minute`](crate::policy::Policy::launches_per_minute).

use std::collections::BTreeMap;
use std::time::Duration;

use super::backoff::{self, LaunchGate};
use super::upcoming::InstanceCounts;
use super::{PlanBuilder, ScaleInput};
use crate::ids::TrustDomain;
use crate::instance::{Instance, Phase};
use crate::job::Reservation;
use crate::policy::Reuse;
use crate::report::WaitingOn;
use crate::time::Stamp;

const MINUTE: Duration = Duration::from_mins(1);

/// The limits, and what a pass has taken of them.
pub(super) struct LaunchLimits {
    /// The gate of the pool's own launches.
    gate: LaunchGate,
    /// Number of the pool's own launches in progress.
    under_way: u32,
    /// `max_launching`.
    pub(super) launching: Share,
    at_most: u32,
    /// `launches_per_minute`.
    rate: Share,
    /// Time at which the next launch leaves the last minute.
    rate_until: Stamp,
    /// The launches in progress that jobs ordered, by trust domain; `None`: all jobs are in one.
    domains: Option<BTreeMap<TrustDomain, u32>>,
}

impl LaunchLimits {
    pub(super) fn of(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, counts: &InstanceCounts) -> Self {
        let policy = input.policy;
        let health = &draft.state().launches;
        let at_most = policy.max_launching.min(input.observed.capabilities.boots_here.unwrap_or(u32::MAX));
        let recent = |all: &[Stamp]| {
            let seen = all.iter().map(|then| then.seen_from(draft.now));
            seen.filter(|then| draft.now.since(*then) < MINUTE).collect::<Vec<Stamp>>()
        };
        let shared = recent(&health.recent);
        let ordered = recent(&health.recent_ordered);
        let oldest = shared.iter().chain(&ordered).copied().max_by_key(|then| draft.now.since(*then));
        let count = |all: &[Stamp]| u32::try_from(all.len()).unwrap_or(u32::MAX);
        Self {
            gate: backoff::judge(health, &policy.timing, draft.now),
            under_way: counts.under_way,
            launching: Share::new(at_most, counts.under_way, counts.ordered),
            at_most,
            rate: Share::new(policy.launches_per_minute, count(&shared), count(&ordered)),
            rate_until: oldest.unwrap_or(draft.now).plus(MINUTE),
            domains: (policy.reuse != Reuse::Any).then(|| domains(draft)),
        }
    }

    /// Takes a launch of the pool's own kind, or returns why not.
    pub(super) fn take_shared(&mut self, draft: &PlanBuilder<'_>) -> Option<WaitingOn> {
        match self.gate.clone() {
            LaunchGate::Open => {}
            LaunchGate::Trial { .. } if self.under_way == 0 => {}
            LaunchGate::Trial { until, failures, failure } => {
                return Some(WaitingOn::Paused { until, failures, failure });
            }
            LaunchGate::Backoff { until, failure } => {
                draft.wake_at(until);
                return Some(WaitingOn::Backoff { until, failure });
            }
            LaunchGate::Paused { until, failures, failure } => {
                draft.wake_at(until);
                return Some(WaitingOn::Paused { until, failures, failure });
            }
        }
        if self.launching.for_shared() == 0 {
            let under_way = self.launching.used();
            return Some(WaitingOn::Launching { under_way, at_most: self.at_most });
        }
        if self.rate.for_shared() == 0 {
            return Some(self.rate_is_reached(draft));
        }
        self.launching.add_shared();
        self.rate.add_shared();
        self.under_way = self.under_way.saturating_add(1);
        None
    }

    /// Takes a launch that a job ordered, or returns why not.
    pub(super) fn take_ordered(&mut self, draft: &PlanBuilder<'_>, job: &Reservation) -> Option<WaitingOn> {
        let of_domain = self.domains.as_ref().map(|all| all.get(&job.domain).copied().unwrap_or(0));
        let left = self.launching.for_ordered();
        if left == 0 || of_domain.is_some_and(|count| !is_fair(left, count)) {
            let under_way = self.launching.ordered();
            let at_most = Share::most_ordered(self.at_most);
            return Some(WaitingOn::OrderedLaunches { under_way, at_most });
        }
        if self.rate.for_ordered() == 0 {
            return Some(self.rate_is_reached(draft));
        }
        self.launching.add_ordered();
        self.rate.add_ordered();
        if let Some(domains) = &mut self.domains {
            *domains.entry(job.domain.clone()).or_default() += 1;
        }
        None
    }

    fn rate_is_reached(&self, draft: &PlanBuilder<'_>) -> WaitingOn {
        draft.wake_at(self.rate_until);
        WaitingOn::Rate { until: self.rate_until }
    }
}

fn domains(draft: &PlanBuilder<'_>) -> BTreeMap<TrustDomain, u32> {
    let mut domains = BTreeMap::new();
    let boots = |i: &Instance| matches!(i.phase, Phase::Launching | Phase::Checking) && !i.is_refused();
    for instance in draft.state().instances.values().filter(|i| boots(i)) {
        if let Some(ordered) = &instance.ordered {
            *domains.entry(ordered.domain.clone()).or_default() += 1;
        }
    }
    domains
}

// What is left of a limit on launches, for each kind: those of the pool, and those that jobs ordered.
//
// How long the image of a job takes, and whether it ever comes, is up to that job. So the launches that jobs ordered
// get at most half of each limit: the other half is always free for the pool's own.

/// A limit, and the launches that count against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    limit: u32,
    shared: u32,
    ordered: u32,
}

impl Share {
    pub(super) fn new(limit: u32, shared: u32, ordered: u32) -> Self {
        Self { limit, shared, ordered }
    }

    /// The launches that jobs ordered get this much: half, and at least one.
    pub(super) fn most_ordered(limit: u32) -> u32 {
        (limit / 2).max(1).min(limit)
    }

    /// Further launches of the pool's own kind. Of those that jobs ordered, no more than half of the limit counts: with a limit
    /// of 1, both kinds have one launch.
    pub(super) fn for_shared(&self) -> u32 {
        self.limit.saturating_sub(self.shared).saturating_sub(self.ordered.min(self.limit / 2))
    }

    /// Further launches that jobs ordered.
    pub(super) fn for_ordered(&self) -> u32 {
        let own = Self::most_ordered(self.limit).saturating_sub(self.ordered);
        own.min(self.limit.saturating_sub(self.shared).saturating_sub(self.ordered))
    }

    pub(super) fn add_shared(&mut self) {
        self.shared = self.shared.saturating_add(1);
    }

    pub(super) fn add_ordered(&mut self) {
        self.ordered = self.ordered.saturating_add(1);
    }

    /// Launches that jobs ordered.
    pub(super) fn ordered(&self) -> u32 {
        self.ordered
    }

    /// Launches of both kinds.
    pub(super) fn used(&self) -> u32 {
        self.shared.saturating_add(self.ordered)
    }
}

/// True if a trust domain may have one more of the launches that jobs ordered, of which `left` are left. The last one is
/// for a domain that has none.
pub(super) fn is_fair(left: u32, of_domain: u32) -> bool {
    left > 1 || (left == 1 && of_domain == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_jobs_ordered_the_pool_has_room_and_a_limit_holds() {
        for limit in 0..12 {
            for ordered in 0..12 {
                let most = Share::most_ordered(limit);
                let mut share = Share::new(limit, 0, ordered.min(most));
                assert!(limit == 0 || share.for_shared() > 0, "{limit} {ordered}");
                while share.for_shared() > 0 {
                    share.add_shared();
                }
                assert!(share.used() <= limit.max(2), "{share:?}");
                assert!(share.for_ordered() == 0 || share.used() < limit, "{share:?}");
                while share.for_ordered() > 0 {
                    share.add_ordered();
                }
                assert!(share.used() <= limit.max(2), "{share:?}");
            }
        }
    }

    #[test]
    fn orders_get_half_of_what_is_free() {
        for (limit, shared, ordered, for_shared, for_ordered) in [
            (10, 0, 0, 10, 5),
            (10, 0, 5, 5, 0),
            (10, 8, 0, 2, 2),
            (10, 10, 0, 0, 0),
            (10, 5, 5, 0, 0),
            (3, 0, 1, 2, 0),
            (2, 1, 0, 1, 1),
            (1, 0, 0, 1, 1),
            (1, 0, 1, 1, 0),
            (1, 1, 0, 0, 0),
            // The limit was lowered meanwhile.
            (2, 0, 5, 1, 0),
            (0, 0, 0, 0, 0),
        ] {
            let share = Share::new(limit, shared, ordered);
            assert_eq!((share.for_shared(), share.for_ordered()), (for_shared, for_ordered), "{share:?}");
        }
    }

    #[test]
    fn the_last_one_is_for_a_domain_that_has_none() {
        assert!(is_fair(2, 7) && is_fair(1, 0) && !is_fair(1, 1) && !is_fair(0, 0));
    }
}
