//! Instances on which jobs failed before their own scripts began: used last, then replaced.

use super::builder::PlanBuilder;
use super::request;
use crate::early::EarlyFailures;
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId};
use crate::instance::{DrainReason, Instance, Phase};
use crate::pool::PoolState;
use crate::time::Stamp;

/// The attempt's job failed within seconds in a stage that comes before its own script.
pub fn failed(state: &PoolState, attempt: &AttemptName, reason: &str, now: Stamp) -> Vec<Event> {
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

/// Why a launched instance is replaced although the keeper finds it fit. A static host cannot be replaced: it is used last.
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
