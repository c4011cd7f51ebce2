//! Last step: what each waiting job waits for.

use super::draft::Draft;
use super::scale::{Wish, is_leaving};
use crate::core::instance::{Instance, Phase};
use crate::core::policy::Policy;
use crate::core::report::{Report, WaitingOn};

pub(super) fn step(draft: &Draft<'_>, policy: &Policy, wish: &Wish, report: &mut Report) {
    if draft.state().waiting.is_empty() {
        return;
    }
    let mut coming = draft
        .state()
        .instances
        .values()
        .filter(|i| {
            matches!(i.phase, Phase::Launching | Phase::Checking | Phase::Cleaning) && !i.is_refused()
        })
        .flat_map(|i| std::iter::repeat_n(i, usize::try_from(policy.fresh_slots()).unwrap_or(1)));
    let mut ahead = 0;
    for reservation in draft.state().waiting.values() {
        let on = match (&wish.blocked, coming.next()) {
            (Some(drained @ WaitingOn::Drained { .. }), _) => drained.clone(),
            (_, Some(instance)) if instance.phase == Phase::Cleaning => {
                WaitingOn::Cleaning { instance: instance.id.clone() }
            }
            (_, Some(instance)) => WaitingOn::Boot { instance: instance.id.clone() },
            (Some(blocked), None) => {
                let on = blocked.clone();
                ahead += 1;
                on
            }
            (None, None) => {
                let on = full(draft, policy, wish, ahead);
                ahead += 1;
                on
            }
        };
        report.waiting.push((reservation.attempt.clone(), on));
    }
}

fn full(draft: &Draft<'_>, policy: &Policy, wish: &Wish, ahead: u32) -> WaitingOn {
    let leaving = draft.state().instances.values().find(|i| is_leaving(i) && i.holders.is_empty());
    match leaving {
        Some(instance) => WaitingOn::Room { instance: instance.id.clone() },
        None if wish.limit_reached => {
            WaitingOn::Limit { in_use: busy(draft), max_instances: policy.max_instances, ahead }
        }
        None => WaitingOn::Keeper,
    }
}

fn busy(draft: &Draft<'_>) -> u32 {
    let with_jobs = |i: &&std::sync::Arc<Instance>| !Instance::is_idle(i);
    u32::try_from(draft.state().instances.values().filter(with_jobs).count()).unwrap_or(u32::MAX)
}

/// Everybody waits for the same thing.
pub(super) fn all_waiting(draft: &Draft<'_>, report: &mut Report, problem: &str) {
    for reservation in draft.state().waiting.values() {
        let on = WaitingOn::Moved { problem: problem.to_owned() };
        report.waiting.push((reservation.attempt.clone(), on));
    }
}
