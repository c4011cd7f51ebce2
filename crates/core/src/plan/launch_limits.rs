//! What limits launches, besides room: the back-off of the pool's own, `max_launching`, and `launches_per_minute`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ScaleInput;
use super::backoff::{self, LaunchGate};
use super::builder::PlanBuilder;
use super::counts::InstanceCounts;
use super::share::{self, Share};
use crate::ids::TrustDomain;
use crate::instance::{Instance, Phase};
use crate::policy::Reuse;
use crate::report::WaitingOn;
use crate::reservation::Reservation;
use crate::time::Stamp;

const MINUTE: Duration = Duration::from_mins(1);

/// The limits, and what a pass has taken of them.
pub(super) struct LaunchLimits {
    /// Of the pool's own launches.
    gate: LaunchGate,
    /// Of the pool's own launches, those in progress.
    under_way: u32,
    /// `max_launching`.
    pub(super) launching: Share,
    at_most: u32,
    /// `launches_per_minute`.
    rate: Share,
    /// When the next launch leaves the last minute.
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
        let (shared, ordered) = (recent(&health.recent), recent(&health.recent_ordered));
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
        if left == 0 || of_domain.is_some_and(|count| !share::is_fair(left, count)) {
            let (under_way, at_most) = (self.launching.ordered(), Share::most_ordered(self.at_most));
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
