//! The check between two jobs: an instance that a job has left gets the next one only if the keeper finds it fit.

use super::Effect;
use super::builder::PlanBuilder;
use super::observed::Observed;
use super::reconcile::{Reconciled, act};
use super::{assign, early, request};
use crate::event::{Change, Event};
use crate::ids::InstanceId;
use crate::instance::{DrainReason, Instance, Phase};
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::time::Stamp;

/// The instances to check now, as far as the record tells: those with a free slot.
pub fn due(state: &PoolState, now: Stamp) -> impl Iterator<Item = &Instance> {
    let is_of_this_boot = move |i: &Instance| i.ready.is_some_and(|at| !state.may_have_forgotten(at, now));
    let instances = state.instances.values().map(AsRef::as_ref).filter(|_| state.drained.is_none());
    instances.filter(move |i| {
        i.phase == Phase::Ready
            && i.unreachable.is_none()
            && i.awaits_recheck()
            && i.awaits_check().is_none()
            && i.free_slots() > 0
            && is_of_this_boot(i)
    })
}

/// Checks the instances that a job has left.
pub(super) fn step(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    reconciled: &Reconciled,
) {
    let free = due(draft.state(), draft.now).filter(|i| !reconciled.held_back.contains(&i.id));
    let due: Vec<InstanceId> = free.map(|i| i.id.clone()).collect();
    if !due.is_empty() {
        draft.wake_at(draft.now.plus(policy.timing.pass_interval));
    }
    for instance in due {
        act(draft, observed, Effect::Recheck { instance });
    }
}

/// A check that began after the job that left at `left` found the instance fit: the first waiting jobs get it. If another
/// job has left since, the instance is checked once more.
pub fn passed(state: &PoolState, instance: &InstanceId, left: Stamp, now: Stamp) -> Vec<Event> {
    let is_due = |i: &Instance| i.phase == Phase::Ready && i.awaits_recheck() && i.released == Some(left);
    if !state.instance(instance).is_some_and(is_due) {
        return Vec::new();
    }
    let mut draft = PlanBuilder::new(state, now);
    draft.emit(Change::Rechecked { instance: instance.clone() });
    early::after_check(&mut draft, instance);
    assign::give_out(draft)
}

/// The check found the instance unfit. Its present jobs continue.
pub fn failed(state: &PoolState, instance: &InstanceId, message: &str, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    if state.instance(instance).is_some_and(|i| i.phase == Phase::Ready && i.awaits_recheck()) {
        let reason = DrainReason::Unfit { message: message.to_owned() };
        request::put_out_of_service(&mut draft, instance, reason);
    }
    draft.into_events()
}
