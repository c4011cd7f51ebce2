//! Last step: what each waiting job waits for.

use super::census;
use super::draft::Draft;
use super::scale::Wish;
use crate::core::ids::TrustDomain;
use crate::core::instance::{Instance, Phase};
use crate::core::policy::Policy;
use crate::core::report::{Report, WaitingOn};
use crate::core::reservation::Reservation;

/// An instance on its way, and the jobs it will have room for.
struct Coming<'a> {
    instance: &'a Instance,
    slots: u32,
    domain: Option<&'a TrustDomain>,
}

pub(super) fn step(draft: &Draft<'_>, policy: &Policy, wish: &Wish, report: &mut Report) {
    if draft.state().waiting.is_empty() {
        return;
    }
    let mut coming: Vec<Coming<'_>> =
        draft.state().instances.values().filter_map(|i| on_its_way(i, policy)).collect();
    let mut ahead = 0;
    for reservation in draft.state().waiting.values() {
        let on = reason(draft, policy, wish, reservation, &mut coming, ahead);
        if !matches!(on, WaitingOn::Boot { .. } | WaitingOn::Cleaning { .. }) {
            ahead += 1;
        }
        report.waiting.push((reservation.attempt.clone(), on));
    }
}

fn on_its_way<'a>(instance: &'a Instance, policy: &Policy) -> Option<Coming<'a>> {
    let domain = match instance.phase {
        Phase::Launching | Phase::Checking if !instance.is_refused() => instance.domain.as_ref(),
        Phase::Cleaning => instance.domain.as_ref().filter(|_| !policy.clean_unbinds),
        Phase::Launching
        | Phase::Checking
        | Phase::Ready
        | Phase::SetAside { .. }
        | Phase::Draining { .. } => return None,
    };
    let slots = instance.capacity.min(instance.uses_left.unwrap_or(u32::MAX)).max(1);
    Some(Coming { instance, slots, domain })
}

fn reason<'a>(
    draft: &Draft<'_>,
    policy: &Policy,
    wish: &Wish,
    job: &'a Reservation,
    coming: &mut [Coming<'a>],
    ahead: u32,
) -> WaitingOn {
    if let Some(drained @ WaitingOn::Drained { .. }) = &wish.blocked {
        return drained.clone();
    }
    let suits = |c: &&mut Coming<'a>| c.slots > 0 && c.domain.is_none_or(|d| *d == job.domain);
    if let Some(next) = coming.iter_mut().find(suits) {
        next.slots -= 1;
        next.domain = Some(&job.domain);
        let instance = next.instance.id.clone();
        return match next.instance.phase {
            Phase::Cleaning => WaitingOn::Cleaning { instance },
            Phase::Launching
            | Phase::Checking
            | Phase::Ready
            | Phase::SetAside { .. }
            | Phase::Draining { .. } => WaitingOn::Boot { instance },
        };
    }
    if let Some(limit) = policy.max_lifetime.filter(|_| !policy.has_time_for(&job.job)) {
        return WaitingOn::TooLong { timeout: job.job.timeout, max_lifetime: limit.0 };
    }
    wish.blocked.clone().unwrap_or_else(|| full(draft, policy, wish, ahead))
}

fn full(draft: &Draft<'_>, policy: &Policy, wish: &Wish, ahead: u32) -> WaitingOn {
    if !wish.limit_reached {
        return WaitingOn::Keeper;
    }
    let leaving = |i: &&Instance| matches!(i.phase, Phase::Draining { .. }) && census::is_left(i);
    match draft.state().instances.values().map(AsRef::as_ref).find(leaving) {
        Some(instance) => WaitingOn::Room { instance: instance.id.clone() },
        None => WaitingOn::Limit { in_use: busy(draft), max_instances: policy.max_instances, ahead },
    }
}

fn busy(draft: &Draft<'_>) -> u32 {
    let busy = draft.state().instances.values().filter(|i| !i.is_idle());
    u32::try_from(busy.count()).unwrap_or(u32::MAX)
}

/// Everybody waits for the same thing.
pub(super) fn all_waiting(draft: &Draft<'_>, report: &mut Report, problem: &str) {
    for reservation in draft.state().waiting.values() {
        let on = WaitingOn::Moved { problem: problem.to_owned() };
        report.waiting.push((reservation.attempt.clone(), on));
    }
}
