//! Instances that began no stage or no container of their last jobs: out of use, or checked by the keeper, or used on.

use std::collections::BTreeSet;

use super::Effect;
use super::builder::PlanBuilder;
use super::observed::Observed;
use super::reconcile::{Reconciled, act};
use super::{assign, request};
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId};
use crate::instance::{DrainReason, Instance, Phase};
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::time::Stamp;
use crate::unbegun::{CheckKind, Consequence, Unbegun};

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
    let (id, domain) = (grant.instance.clone(), &grant.reservation.domain);
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

/// Why an instance leaves service: by two trust domains, or by the keeper's check.
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
