//! Last step: what each waiting job waits for.

use super::Aim;
use super::census;
use super::draft::Draft;
use super::outlook::Outlook;
use super::scale::Wish;
use crate::core::instance::Phase;
use crate::core::report::{Report, WaitingOn};
use crate::core::reservation::Reservation;

pub(super) fn step(draft: &Draft<'_>, aim: &Aim<'_>, wish: &Wish, report: &mut Report) {
    if draft.state().waiting.is_empty() {
        return;
    }
    let mut outlook = Outlook::new(draft.state(), aim);
    let mut ahead = 0;
    for reservation in draft.state().waiting.values() {
        let on = reason(draft, aim, wish, reservation, &mut outlook, ahead);
        if !matches!(on, WaitingOn::Boot { .. } | WaitingOn::Cleaning { .. }) {
            ahead += 1;
        }
        report.waiting.push((reservation.attempt.clone(), on));
    }
}

fn reason<'a>(
    draft: &Draft<'_>,
    aim: &Aim<'_>,
    wish: &Wish,
    job: &'a Reservation,
    outlook: &mut Outlook<'a>,
    ahead: u32,
) -> WaitingOn {
    if let Some(drained @ WaitingOn::Drained { .. }) = &wish.blocked {
        return drained.clone();
    }
    if let Some(next) = outlook.serve(job) {
        let instance = next.id.clone();
        let cleans = next.phase == Phase::Cleaning;
        return if cleans { WaitingOn::Cleaning { instance } } else { WaitingOn::Boot { instance } };
    }
    let policy = aim.policy;
    if let Some(limit) = policy.max_lifetime.filter(|_| !policy.has_time_for(&job.job)) {
        return WaitingOn::TooLong { timeout: job.job.timeout, max_lifetime: limit.0 };
    }
    wish.blocked.clone().unwrap_or_else(|| full(draft, aim, wish, ahead))
}

fn full(draft: &Draft<'_>, aim: &Aim<'_>, wish: &Wish, ahead: u32) -> WaitingOn {
    if !wish.limit_reached {
        return WaitingOn::Keeper;
    }
    let mut instances = draft.state().instances.values();
    match instances.find(|i| census::is_leaving(i, aim)) {
        Some(instance) => WaitingOn::Room { instance: instance.id.clone() },
        None => WaitingOn::Limit { in_use: busy(draft), max_instances: aim.policy.max_instances, ahead },
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
