//! Instances that began no stage of their last jobs: out of use, or checked by the keeper, or used on.

use std::collections::BTreeSet;

use super::Effect;
use super::builder::PlanBuilder;
use super::observed::Observed;
use super::reconcile::{Reconciled, act};
use super::{assign, request};
use crate::core::event::{Change, Event};
use crate::core::ids::{AttemptName, InstanceId};
use crate::core::instance::{DrainReason, Instance, Phase};
use crate::core::policy::Policy;
use crate::core::pool::PoolState;
use crate::core::time::Stamp;
use crate::core::unbegun::{Consequence, Unbegun};

/// An instance answered and did not begin a stage of the attempt's. If that takes it out of use, it does so here: no
/// third job comes between.
pub fn not_begun(state: &PoolState, attempt: &AttemptName, why: &str, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    let Some(grant) = state.granted.get(attempt) else { return Vec::new() };
    let (id, domain) = (grant.instance.clone(), &grant.reservation.domain);
    let serves = state.instance(&id).filter(|i| matches!(i.phase, Phase::Ready | Phase::Checking));
    let row = serves.and_then(|i| Unbegun::with(i.unbegun.as_ref(), attempt, domain, why));
    let Some(row) = row else { return Vec::new() };
    draft.emit(Change::StageNotBegun { attempt: attempt.clone(), reason: why.to_owned() });
    match row.consequence() {
        Consequence::Nothing | Consequence::Check => {}
        Consequence::OutOfUse => {
            request::put_out_of_service(
                &mut draft,
                &id,
                DrainReason::BeginsNoStage { message: why.to_owned() },
            );
        }
    }
    draft.into_events()
}

/// A stage has begun on an instance: what its jobs before met is over, and waiting jobs may get it immediately.
pub fn begun(state: &PoolState, instance: &InstanceId, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    if state.instance(instance).is_none_or(|known| known.unbegun.is_none()) {
        return Vec::new();
    }
    draft.emit(Change::StageBegun { instance: instance.clone() });
    if let Some(policy) = state.policy.clone() {
        assign::step(&mut draft, &policy, &BTreeSet::new());
    }
    draft.into_events()
}

/// The keeper's own stage did not begin, either.
pub fn check_failed(state: &PoolState, instance: &InstanceId, why: &str, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    if state.instance(instance).is_some_and(Instance::awaits_stage_check) {
        request::put_out_of_service(
            &mut draft,
            instance,
            DrainReason::BeginsNoStage { message: why.to_owned() },
        );
    }
    draft.into_events()
}

/// Checks the instances that get no job until a stage has begun there.
pub(super) fn check(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    reconciled: &Reconciled,
) {
    let instances = draft.state().instances.values();
    let due =
        instances.filter(|i| i.phase == Phase::Ready && i.unreachable.is_none() && i.awaits_stage_check());
    let due: Vec<InstanceId> =
        due.filter(|i| !reconciled.held_back.contains(&i.id)).map(|i| i.id.clone()).collect();
    if !due.is_empty() {
        draft.wake_at(draft.now.plus(policy.timing.pass_interval));
    }
    for instance in due {
        act(draft, observed, Effect::CheckStages { instance });
    }
}
