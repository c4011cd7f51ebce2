//! Assigns waiting requests to free slots, first come first served.
//!
//! Fullest instance first, then the most recently used, then by id, so that surplus instances age out. Pure over the
//! state alone, because `prepare` and `cleanup` run it inside their transactions too.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::builder::PlanBuilder;
use crate::core::event::Change;
use crate::core::ids::InstanceId;
use crate::core::instance::{DrainReason, Instance, Phase};
use crate::core::policy::Policy;
use crate::core::pool::PoolState;
use crate::core::reservation::{Reservation, Ticket};
use crate::core::time::Stamp;

pub(super) fn step(draft: &mut PlanBuilder<'_>, policy: &Policy, held_back: &BTreeSet<InstanceId>) {
    if draft.state().drained.is_some() || draft.state().waiting.is_empty() {
        return;
    }
    let now = draft.now;
    let mut offerings: Vec<Arc<Instance>> = draft
        .state()
        .instances
        .values()
        .filter(|i| is_offered(i, draft.state(), now) && !held_back.contains(&i.id))
        .cloned()
        .collect();
    if offerings.is_empty() {
        return;
    }
    let mut turn = Ticket(0);
    while let Some(reservation) = draft.state().waiting.range(turn..).next().map(|(_, r)| Arc::clone(r)) {
        turn = Ticket(reservation.ticket.0 + 1);
        let best = offerings
            .iter()
            .enumerate()
            .filter(|(_, i)| suits(i, &reservation, policy, now))
            .min_by(|(_, a), (_, b)| by_preference(a, b, now))
            .map(|(index, _)| index);
        let Some(index) = best else { continue };
        let instance = offerings[index].id.clone();
        draft.emit(Change::Granted { attempt: reservation.attempt.clone(), instance: instance.clone() });
        match draft.state().instances.get(&instance) {
            Some(taken) if taken.usable() > 0 => offerings[index] = Arc::clone(taken),
            _ => drop(offerings.swap_remove(index)),
        }
        if offerings.is_empty() {
            return;
        }
    }
}

/// Ready, with room. An instance that was recorded as idle before a reboot may have been granted.
pub(super) fn is_offered(instance: &Instance, state: &PoolState, now: Stamp) -> bool {
    instance.usable() > 0 && instance.ready.is_some_and(|ready| !state.may_have_forgotten(ready, now))
}

/// True if this job may run there: its trust domain fits, and the instance lives long enough.
///
/// The lifetime counts from ready, so that an instance booted for a job whose timeout is just as long serves it.
pub(super) fn suits(instance: &Instance, job: &Reservation, policy: &Policy, now: Stamp) -> bool {
    let lived = now.since(instance.ready.unwrap_or(instance.created));
    let has_time = policy
        .max_lifetime
        .is_none_or(|limit| instance.is_static() || lived.saturating_add(job.job.timeout) <= limit.0);
    instance.admits(&job.domain) && has_time
}

fn by_preference(a: &Instance, b: &Instance, now: Stamp) -> std::cmp::Ordering {
    let idle_for = |i: &Instance| now.since(i.idle_since());
    let fullest = a.free_slots().cmp(&b.free_slots());
    fullest.then_with(|| idle_for(a).cmp(&idle_for(b))).then_with(|| a.id.cmp(&b.id))
}

/// What follows for instances without jobs: drain if used up, or clean.
pub(super) fn settle_all(draft: &mut PlanBuilder<'_>) {
    let changes: Vec<Change> = draft.state().instances.values().filter_map(|i| settled(i)).collect();
    for change in changes {
        draft.emit(change);
    }
}

/// The same for one instance.
pub(super) fn settle(draft: &mut PlanBuilder<'_>, id: &InstanceId) {
    if let Some(change) = draft.state().instance(id).and_then(settled) {
        draft.emit(change);
    }
}

fn settled(instance: &Instance) -> Option<Change> {
    if !instance.holders.is_empty() {
        return None;
    }
    let id = || instance.id.clone();
    if instance.is_static() {
        // Includes a host that became unreachable while it had jobs: it still has to be cleaned.
        let unclean = instance.has_served() && matches!(instance.phase, Phase::Ready | Phase::Checking);
        return unclean.then(|| Change::CleaningBegun { instance: id() });
    }
    if instance.phase != Phase::Ready {
        return None;
    }
    instance.is_used_up().then(|| Change::DrainingBegun { instance: id(), reason: DrainReason::UsedUp })
}
