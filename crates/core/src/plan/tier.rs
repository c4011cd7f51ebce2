//! The tier *stopped*: instances that were launched and checked, and are suspended until a job needs one.

use super::attempts::UngrantedAttempts;
use super::backoff::{self, LaunchGate};
use super::listing::is_elsewhere;
use super::observed::Observed;
use super::reconcile::{act, drain};
use super::upcoming::{self, InstanceCounts, UpcomingCapacity};
use super::{Effect, PlanBuilder, ScaleInput, assign, scale};
use crate::event::Change;
use crate::ids::InstanceId;
use crate::instance::{DrainReason, Instance};
use crate::inventory::Suspends;
use crate::policy::Policy;
use crate::report::{Note, Report};

/// Adds the notes for operators: the provider cannot suspend, or suspensions fail.
pub(super) fn notes(draft: &PlanBuilder<'_>, observed: &Observed, policy: &Policy, report: &mut Report) {
    if policy.idle_stopped == 0 {
        return;
    }
    if observed.capabilities.suspends == Suspends::No {
        report.notes.push(Note::CannotSuspend);
    }
    match backoff::judge(&draft.state().suspensions, &policy.timing, draft.now) {
        LaunchGate::Open => {}
        LaunchGate::Trial { until, failure, .. }
        | LaunchGate::Backoff { until, failure }
        | LaunchGate::Paused { until, failure, .. } => {
            let failures = draft.state().suspensions.failures;
            report.notes.push(Note::SuspensionsFail { failures, failure, until });
        }
    }
}

/// Resumes an instance for each waiting job that no ready instance serves, whatever boots at present.
///
/// A suspended instance suits jobs of each trust domain, or has served those of the one that suits all.
pub(super) fn resume(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    ungranted: &UngrantedAttempts,
) {
    let state = draft.state();
    if state.drained.is_some() || state.waiting.is_empty() {
        return;
    }
    let now = draft.now;
    let mut stopped = resumable(draft, observed, ungranted);
    let mut resuming = UpcomingCapacity::resuming(state, policy, ungranted, now);
    let mut going = Vec::new();
    for job in state.waiting.values() {
        if resuming.serve(job).is_some() {
            continue;
        }
        let Some(at) = stopped.iter().position(|i| assign::suits(i, job, policy, now)) else { continue };
        let instance = stopped.remove(at);
        resuming.add(instance);
        resuming.serve(job);
        going.push(instance.id.clone());
    }
    for id in going {
        begin_resume(draft, observed, policy, id);
    }
}

/// Resumes stopped instances as idle ones in a full pool, which has no room for launches.
pub(super) fn resume_idle(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>) {
    let ScaleInput { observed, policy, .. } = *input;
    if draft.state().drained.is_some() || scale::counted(draft, input) < policy.max_instances {
        return;
    }
    let spare = InstanceCounts::of(draft, input).spare.saturating_add(input.shortfall.spare);
    let missing = input.target.saturating_sub(spare).div_ceil(policy.fresh_slots());
    let stopped = resumable(draft, observed, input.ungranted).into_iter().map(|i| i.id.clone());
    let going: Vec<InstanceId> = stopped.take(usize::try_from(missing).unwrap_or(usize::MAX)).collect();
    for id in going {
        begin_resume(draft, observed, policy, id);
    }
}

/// The oldest first: its lifetime ends first.
fn resumable<'a>(
    draft: &'a PlanBuilder<'_>,
    observed: &Observed,
    ungranted: &UngrantedAttempts,
) -> Vec<&'a Instance> {
    if observed.capabilities.suspends != Suspends::Yes {
        return Vec::new();
    }
    let is_resumable = |i: &&Instance| {
        i.phase.is_stopped()
            && !ungranted.names(&i.id)
            && !is_elsewhere(i, observed)
            && !draft.state().may_have_forgotten(i.since, draft.now)
    };
    let mut stopped: Vec<&Instance> =
        draft.state().instances.values().map(AsRef::as_ref).filter(is_resumable).collect();
    let age = |i: &Instance| draft.now.since(i.created);
    stopped.sort_by(|a, b| age(b).cmp(&age(a)).then_with(|| a.id.cmp(&b.id)));
    stopped
}

fn begin_resume(draft: &mut PlanBuilder<'_>, observed: &Observed, policy: &Policy, instance: InstanceId) {
    draft.emit(Change::ResumeIntended { instance: instance.clone() });
    draft.wake_at(draft.now.plus(policy.timing.pass_interval));
    act(draft, observed, Effect::Resume { instance });
}

/// Suspends idle instances above the target, the longest idle first, until the tier is full. Drains what is above.
pub(super) fn fill(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>, idle: &[InstanceId]) {
    let mut lacking = lacking(draft, input);
    if lacking == 0 || input.shortfall.launches() > 0 {
        return;
    }
    let mut spare = InstanceCounts::of(draft, input).spare;
    for id in idle {
        let Some(instance) = draft.state().instance(id) else { continue };
        let usable = instance.usable();
        let pulls = input.observed.pulls.as_ref().is_some_and(|pulls| pulls.under_way.contains_key(id));
        if !upcoming::is_spare(instance, input.policy)
            || !assign::is_offered(instance, draft.state(), draft.now)
            || input.held_back.contains(id)
            || is_elsewhere(instance, input.observed)
            || pulls
            || spare.saturating_sub(usable) < input.target
        {
            continue;
        }
        spare = spare.saturating_sub(usable);
        lacking -= 1;
        draft.emit(Change::SuspendIntended { instance: id.clone() });
        draft.wake_at(draft.now.plus(input.policy.timing.pass_interval));
        act(draft, input.observed, Effect::Suspend { instance: id.clone() });
        if lacking == 0 {
            return;
        }
    }
}

/// Drains stopped instances above [`idle_stopped`](crate::policy::Policy::idle_stopped); all if the provider cannot resume them.
pub(super) fn retire(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>) {
    let most = match input.observed.capabilities.suspends {
        Suspends::Yes => input.policy.idle_stopped,
        Suspends::No => 0,
        Suspends::Unknown => return,
    };
    let surplus = usize::try_from(size(draft).saturating_sub(most)).unwrap_or(usize::MAX);
    let going: Vec<InstanceId> = stopped(draft, input).take(surplus).map(|i| i.id.clone()).collect();
    for id in going {
        drain(draft, input.observed, id, DrainReason::Surplus);
    }
}

/// The stopped instances that can be terminated now.
pub(super) fn stopped<'a>(
    draft: &'a PlanBuilder<'_>,
    input: &'a ScaleInput<'_>,
) -> impl Iterator<Item = &'a Instance> {
    let instances = draft.state().instances.values().map(AsRef::as_ref);
    instances.filter(|i: &&Instance| i.phase.is_stopped() && !input.ungranted.names(&i.id))
}

/// Number of instances that have to be launched for the tier: what is spare above the target is suspended.
pub(super) fn wanted(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> u32 {
    let lacking = lacking(draft, input);
    if lacking == 0 {
        return 0;
    }
    let spare = InstanceCounts::of(draft, input).spare.saturating_add(input.shortfall.spare);
    let above = spare.saturating_sub(input.target) / input.policy.fresh_slots();
    lacking.saturating_sub(above)
}

/// Number of instances that the tier lacks; none while suspensions fail.
fn lacking(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> u32 {
    if input.policy.idle_stopped == 0
        || input.observed.capabilities.suspends != Suspends::Yes
        || draft.state().drained.is_some()
    {
        return 0;
    }
    let lacking = input.policy.idle_stopped.saturating_sub(size(draft));
    match backoff::judge(&draft.state().suspensions, &input.policy.timing, draft.now) {
        LaunchGate::Open => lacking,
        LaunchGate::Trial { .. } => {
            let suspending =
                draft.state().instances.values().any(|i| i.phase.is_of_tier() && !i.phase.is_stopped());
            if suspending { 0 } else { lacking.min(1) }
        }
        LaunchGate::Backoff { until, .. } | LaunchGate::Paused { until, .. } => {
            draft.wake_at(until);
            0
        }
    }
}

/// Instances that are stopped, or will be.
fn size(draft: &PlanBuilder<'_>) -> u32 {
    let of_tier = draft.state().instances.values().filter(|i| i.phase.is_of_tier());
    u32::try_from(of_tier.count()).unwrap_or(u32::MAX)
}
