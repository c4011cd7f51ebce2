//! Step *retire*: which idle instances are terminated or cleaned.

use std::collections::BTreeMap;
use std::time::Duration;

use super::attempts::UngrantedAttempts;
use super::observed::Observed;
use super::reconcile::{act, clean, drain};
use super::upcoming::{self, InstanceCounts};
use super::{Effect, PlanBuilder, ScaleInput, assign, checks, scale, tier};
use crate::ids::InstanceId;
use crate::instance::{DrainReason, Instance, Phase};
use crate::inventory::{Notice, Suspends};
use crate::report::{Note, Report};

pub(super) fn step(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>) {
    assign::settle_all(draft);
    for (id, why) in to_drain(draft, input) {
        drain(draft, input.observed, id, why);
    }
    if draft.state().drained.is_none() {
        let idle: Vec<InstanceId> = longest_idle(draft, input).into_iter().map(|i| i.id.clone()).collect();
        tier::fill(draft, input, &idle);
        tier::retire(draft, input);
        surplus(draft, input);
        make_room(draft, input);
    }
    if draft.has_changed() {
        act_on_settled(draft, input);
    }
}

/// True if an instance can be terminated now: it is idle, and no open attempt names it.
fn is_disposable(instance: &Instance, input: &ScaleInput<'_>) -> bool {
    instance.is_idle() && !instance.is_static() && !input.ungranted.names(&instance.id)
}

/// Idle and stopped instances that are terminated whatever the idle policy: a drained pool keeps none, and neither their age
/// limit nor a suspicion depends on spare capacity.
fn to_drain(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> Vec<(InstanceId, DrainReason)> {
    let drained = draft.state().drained.is_some();
    let mut to_drain = Vec::new();
    for instance in draft.state().instances.values() {
        let named = input.ungranted.names(&instance.id);
        let disposable = is_disposable(instance, input) || (instance.phase.is_stopped() && !named);
        let unmade = instance.is_refused() && !named;
        let suspended = matches!(instance.phase, Phase::Suspended { .. }) && !named;
        let fails_early = checks::replaced(instance).filter(|_| disposable);
        if drained && (disposable || unmade || suspended) {
            to_drain.push((instance.id.clone(), DrainReason::ByOperator));
        } else if let Some(reason) = fails_early {
            to_drain.push((instance.id.clone(), reason));
        } else if let Some(limit) = instance.lifetime(input.policy).filter(|_| disposable) {
            if draft.now.since(instance.created) >= limit {
                to_drain.push((instance.id.clone(), DrainReason::Expired));
            } else {
                draft.wake_at(instance.created.plus(limit));
            }
        }
    }
    to_drain
}

/// Drains instances idle above the target and beyond their idle time, the longest idle first.
fn surplus(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>) {
    let idle = longest_idle(draft, input);
    if idle.is_empty() {
        return;
    }
    let mut spare = InstanceCounts::of(draft, input).spare;
    let mut going = Vec::new();
    for instance in idle {
        // A bound instance serves one domain only: it is not spare capacity, and stays only for its idle time.
        let usable = if upcoming::is_spare(instance, input.policy) { instance.usable() } else { 0 };
        if usable > 0 && spare.saturating_sub(usable) < input.target {
            continue;
        }
        // A launch that became surplus before a job came has not yet had time to be useful.
        let at_least =
            if instance.uses == 0 { input.policy.timing.surplus_min_time } else { std::time::Duration::ZERO };
        let idle_limit = input.idle.idle_time.max(at_least);
        let since = instance.idle_since();
        if draft.now.since(since) < idle_limit {
            draft.wake_at(since.plus(idle_limit));
            continue;
        }
        spare = spare.saturating_sub(usable);
        going.push(instance.id.clone());
    }
    for id in going {
        drain(draft, input.observed, id, DrainReason::Surplus);
    }
}

/// Instances that can be terminated, the least recently used first. One that a job ordered ends with that job.
fn longest_idle<'a>(draft: &'a PlanBuilder<'_>, input: &ScaleInput<'_>) -> Vec<&'a Instance> {
    let now = draft.now;
    let instances = draft.state().instances.values().map(AsRef::as_ref);
    let mut idle: Vec<&Instance> = instances
        .filter(|i| is_disposable(i, input) && i.unreachable.is_none() && !i.must_be_checked())
        .filter(|i| i.ordered.is_none())
        .collect();
    idle.sort_by(|a, b| {
        let idle_for = |i: &Instance| now.since(i.idle_since());
        idle_for(b).cmp(&idle_for(a)).then_with(|| a.id.cmp(&b.id))
    });
    idle
}

/// Jobs wait, the pool is full, and no idle or stopped instance suits them: drains stopped ones, then the least recently
/// used ones.
fn make_room(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>) {
    if input.shortfall.launches() == 0 {
        return;
    }
    let counts = InstanceCounts::of(draft, input);
    if !input.observed.capabilities.launches {
        return unbind_hosts(draft, input);
    }
    let launchable = scale::launchable(draft, input, &counts).min(input.policy.max_instances);
    if launchable == 0 {
        return;
    }
    let taken = launchable.saturating_add(scale::counted(draft, input));
    let room = input.policy.max_instances.saturating_add(counts.refused).saturating_add(counts.leaving);
    let short = usize::try_from(taken.saturating_sub(room)).unwrap_or(usize::MAX);
    // As long as the provider may yet say that it resumes them, jobs wait for that.
    let stopped =
        tier::stopped(draft, input).filter(|_| input.observed.capabilities.suspends != Suspends::Unknown);
    let going = stopped.chain(longest_idle(draft, input)).take(short);
    let going: Vec<InstanceId> = going.map(|i| i.id.clone()).collect();
    for id in going {
        drain(draft, input.observed, id, DrainReason::MadeRoom);
    }
}

/// Static hosts cannot be replaced: with [`clean_unbinds`](crate::policy::Policy::clean_unbinds), cleaning makes one
/// available to all trust domains again.
fn unbind_hosts(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>) {
    if !input.policy.clean_unbinds {
        return;
    }
    let instances = draft.state().instances.values().map(AsRef::as_ref);
    let bound =
        |i: &&Instance| i.is_static() && i.is_idle() && i.domain.is_some() && !input.ungranted.names(&i.id);
    let mut idle: Vec<&Instance> = instances.filter(bound).collect();
    let idle_for = |i: &Instance| draft.now.since(i.idle_since());
    idle.sort_by(|a, b| idle_for(b).cmp(&idle_for(a)).then_with(|| a.id.cmp(&b.id)));
    let count = usize::try_from(input.shortfall.instances).unwrap_or(usize::MAX);
    let going: Vec<InstanceId> = idle.into_iter().take(count).map(|i| i.id.clone()).collect();
    for id in going {
        clean(draft, input.observed, id);
    }
}

/// Terminates or cleans the instances that this pass has released. The step *reconcile* has done so only for those that
/// were released before it.
fn act_on_settled(draft: &mut PlanBuilder<'_>, input: &ScaleInput<'_>) {
    let effect = |instance: &Instance| {
        let id = instance.id.clone();
        if upcoming::is_leaving(instance, input) {
            return Some(Effect::Terminate { instance: id });
        }
        let cleans = instance.phase == Phase::Cleaning && !input.ungranted.names(&id);
        cleans.then_some(Effect::Clean { instance: id })
    };
    let effects: Vec<Effect> =
        draft.retired().into_iter().filter_map(|id| draft.state().instance(id)).filter_map(effect).collect();
    for effect in effects {
        // An instance that is being forgotten is terminated with it.
        let forget = effect.instance().map(|id| Effect::Forget { instance: id.clone() });
        if !draft.has(&effect) && !forget.is_some_and(|forget| draft.has(&forget)) {
            act(draft, input.observed, effect);
        }
    }
}

// Instances whose end the provider has announced.
//
// Comes before jobs are assigned. An instance without a job is replaced; a running job is told, and goes on.

/// The time before the announced moment at which an instance is replaced. New instances may have an equal notice, so an
/// earlier replacement could repeat itself for days.
const LEAD: Duration = Duration::from_hours(1);

pub(super) fn announced(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    ungranted: &UngrantedAttempts,
    report: &mut Report,
) {
    watch(draft, observed);
    for (id, notice) in notices(observed) {
        let Some(known) = draft.state().instance(id) else { continue };
        let due = notice.at.map(|at| at.minus(LEAD));
        if let Some(due) = due.filter(|due| !draft.now.reached(*due)) {
            draft.wake_at(due);
            continue;
        }
        let is_used = !known.holders.is_empty() || ungranted.names(id);
        let instance = id.clone();
        let notice = notice.text.clone();
        if is_used {
            report.notes.push(Note::Announced { instance, notice });
        } else if (known.is_idle() || known.phase.is_stopped()) && !known.is_static() {
            drain(draft, observed, instance, DrainReason::Announced { notice });
        }
    }
}

/// The notices of the list, and those that only the instances' metadata services have.
fn notices(observed: &Observed) -> impl Iterator<Item = (&InstanceId, &Notice)> {
    let list = observed.listing.iter().flat_map(|listing| &listing.instances);
    let listed: BTreeMap<&InstanceId, &Notice> =
        list.filter_map(|listed| Some((&listed.id, listed.notice.as_ref()?))).collect();
    let is_new = {
        let listed = listed.clone();
        move |(id, notice): &(&InstanceId, &Notice)| {
            listed.get(id).is_none_or(|known| known.text != notice.text)
        }
    };
    listed.into_iter().chain(observed.announced.iter().filter(is_new))
}

/// A provider that announces ends is listed from time to time, as long as there is something to announce.
fn watch(draft: &PlanBuilder<'_>, observed: &Observed) {
    let interval = observed.capabilities.notice_interval;
    let exists =
        |instance: &Instance| !instance.is_refused() && !matches!(instance.phase, Phase::Draining { .. });
    let mut instances = draft.state().instances.values();
    if let Some(interval) = interval.filter(|_| instances.any(|instance| exists(instance))) {
        draft.wake_at(draft.now.plus(interval));
    }
}
