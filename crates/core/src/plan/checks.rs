//! Instances that began no stage or no container of their last jobs: out of use, or checked by the keeper, or used on.

use std::collections::BTreeSet;

use super::observed::Observed;
use super::reconcile::{Reconciled, act};
use super::{Effect, PlanBuilder, assign, request};
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId};
use crate::instance::{DrainReason, Instance, Phase};
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::time::Stamp;
use crate::unbegun::{CheckKind, Consequence, EarlyFailures, Unbegun};

/// An instance answered and did not begin a stage of the attempt's, or its containers. If that takes it out of use, it does
/// so here: no third job comes between.
pub fn not_begun(
    state: &PoolState,
    attempt: &AttemptName,
    (kind, why): (CheckKind, &str),
    now: Stamp,
) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    let Some(grant) = state.granted.get(attempt) else { return Vec::new() };
    let id = grant.instance.clone();
    let domain = &grant.reservation.domain;
    let serves = state.instance(&id).filter(|i| matches!(i.phase, Phase::Ready | Phase::Checking));
    let row = serves.and_then(|i| Unbegun::with(i.unbegun.as_ref(), attempt, domain, (kind, why)));
    let Some(row) = row else { return Vec::new() };
    draft.emit(Change::StageNotBegun { attempt: attempt.clone(), reason: why.to_owned(), kind });
    match row.consequence(kind) {
        Consequence::Nothing | Consequence::Check => {}
        Consequence::OutOfUse => {
            let job = &grant.reservation.job;
            let why = format!("{why} (after job {} of `{}`)", job.key, job.project);
            request::put_out_of_service(&mut draft, &id, reason(kind, &why));
        }
    }
    draft.into_events()
}

/// The reason why an instance leaves service: by two trust domains, or by the keeper's check.
fn reason(kind: CheckKind, why: &str) -> DrainReason {
    let message = why.to_owned();
    match kind {
        CheckKind::Stages => DrainReason::BeginsNoStage { message },
        CheckKind::Engine | CheckKind::Network => DrainReason::FailedCheck { message },
    }
}

/// A stage has begun on an instance, or the keeper's check of this kind has passed: what its jobs before met is over, and
/// waiting jobs may get it immediately.
pub fn begun(state: &PoolState, instance: &InstanceId, kind: CheckKind, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    let row = state.instance(instance).and_then(|known| known.unbegun.as_ref());
    if !row.is_some_and(|row| row.has(kind)) {
        return Vec::new();
    }
    draft.emit(Change::StageBegun { instance: instance.clone(), kind });
    if let Some(policy) = state.policy.clone() {
        assign::step(&mut draft, &policy, &BTreeSet::new());
    }
    draft.into_events()
}

/// The keeper's check did not pass, either. While a job may be the cause, the check is repeated later.
pub fn check_failed(
    state: &PoolState,
    instance: &InstanceId,
    (kind, why): (CheckKind, &str),
    now: Stamp,
) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    let proves = |known: &Instance| {
        let awaits = known.unbegun.as_ref().is_some_and(|row| row.consequence(kind) == Consequence::Check);
        awaits && (known.holders.is_empty() || !kind.is_disturbed_by_jobs())
    };
    if state.instance(instance).is_some_and(proves) {
        request::put_out_of_service(&mut draft, instance, reason(kind, why));
    }
    draft.into_events()
}

/// Checks the instances that get no job until then.
pub(super) fn check(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    reconciled: &Reconciled,
) {
    let instances = draft.state().instances.values();
    let due = instances.filter(|i| i.phase == Phase::Ready && i.unreachable.is_none());
    let due = due.filter(|i| !reconciled.held_back.contains(&i.id));
    let due: Vec<(InstanceId, CheckKind)> =
        due.filter_map(|i| Some((i.id.clone(), i.awaits_check()?))).collect();
    if !due.is_empty() {
        draft.wake_at(draft.now.plus(policy.timing.pass_interval));
    }
    for (instance, kind) in due {
        act(draft, observed, Effect::Check { instance, kind });
    }
}

// The check between two jobs: an instance that a job has left gets the next one only if the keeper finds it fit.

/// The instances to check now, as far as the record tells: those with a free slot.
pub fn due_rechecks(state: &PoolState, now: Stamp) -> impl Iterator<Item = &Instance> {
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
pub(super) fn recheck(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    reconciled: &Reconciled,
) {
    let free = due_rechecks(draft.state(), draft.now).filter(|i| !reconciled.held_back.contains(&i.id));
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
pub fn recheck_passed(state: &PoolState, instance: &InstanceId, left: Stamp, now: Stamp) -> Vec<Event> {
    let is_due = |i: &Instance| i.phase == Phase::Ready && i.awaits_recheck() && i.released == Some(left);
    if !state.instance(instance).is_some_and(is_due) {
        return Vec::new();
    }
    let mut draft = PlanBuilder::new(state, now);
    draft.emit(Change::Rechecked { instance: instance.clone() });
    after_check(&mut draft, instance);
    assign::give_out(draft)
}

/// The check found the instance unfit. Its present jobs continue.
pub fn recheck_failed(state: &PoolState, instance: &InstanceId, message: &str, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    if state.instance(instance).is_some_and(|i| i.phase == Phase::Ready && i.awaits_recheck()) {
        let reason = DrainReason::Unfit { message: message.to_owned() };
        request::put_out_of_service(&mut draft, instance, reason);
    }
    draft.into_events()
}

// Instances on which jobs failed_early before their own scripts began: used last, then replaced.

/// The attempt's job failed_early within seconds in a stage that comes before its own script.
pub fn failed_early(state: &PoolState, attempt: &AttemptName, reason: &str, now: Stamp) -> Vec<Event> {
    let Some(grant) = state.granted.get(attempt) else { return Vec::new() };
    let serves = |i: &&Instance| i.phase == Phase::Ready && (i.is_static() || !i.is_used_up());
    let Some(known) = state.instance(&grant.instance).filter(serves) else { return Vec::new() };
    let project = grant.reservation.job.project_url();
    if EarlyFailures::with(known.early.as_ref(), attempt, &project, reason).is_none() {
        return Vec::new();
    }
    let mut draft = PlanBuilder::new(state, now);
    draft.emit(Change::FailedEarly { attempt: attempt.clone(), reason: reason.to_owned() });
    draft.into_events()
}

/// The reason why a launched instance is replaced although the keeper finds it fit. A static host cannot be replaced: it is
/// used last.
pub(super) fn replaced(instance: &Instance) -> Option<DrainReason> {
    let row = instance.early.as_ref().filter(|row| row.is_proven())?;
    let is_ripe = instance.phase == Phase::Ready && !instance.is_static() && !instance.must_be_checked();
    is_ripe.then(|| DrainReason::FailsEarly { message: row.reason.clone() })
}

/// The keeper has just found the instance fit.
pub(super) fn after_check(draft: &mut PlanBuilder<'_>, id: &InstanceId) {
    if let Some(reason) = draft.state().instance(id).and_then(replaced) {
        request::put_out_of_service(draft, id, reason);
    }
}
