//! Fourth step: which idle instances are terminated or cleaned.

use super::builder::PlanBuilder;
use super::counts::{self, InstanceCounts};
use super::reconcile::{act, clean, drain};
use super::{Effect, ScaleInput, assign, scale};
use crate::core::ids::InstanceId;
use crate::core::instance::{DrainReason, Instance, Phase};

pub(super) fn step(draft: &mut PlanBuilder<'_>, aim: &ScaleInput<'_>) {
    assign::settle_all(draft);
    for (id, why) in doomed(draft, aim) {
        drain(draft, aim.observed, id, why);
    }
    if draft.state().drained.is_none() {
        surplus(draft, aim);
        make_room(draft, aim);
    }
    if draft.has_changed() {
        act_on_settled(draft, aim);
    }
}

/// May go now: idle, and no open attempt names it.
fn is_disposable(instance: &Instance, aim: &ScaleInput<'_>) -> bool {
    instance.is_idle() && !instance.is_static() && !aim.strays.name(&instance.id)
}

/// Idle instances that go whatever the policy wants.
fn doomed(draft: &PlanBuilder<'_>, aim: &ScaleInput<'_>) -> Vec<(InstanceId, DrainReason)> {
    let ordered = draft.state().drained.is_some();
    let mut doomed = Vec::new();
    if !ordered && aim.policy.max_lifetime.is_none() {
        return doomed;
    }
    for instance in draft.state().instances.values() {
        let disposable = is_disposable(instance, aim);
        let unmade = instance.is_refused() && !aim.strays.name(&instance.id);
        if ordered && (disposable || unmade) {
            doomed.push((instance.id.clone(), DrainReason::ByOperator));
        } else if let Some(limit) = aim.policy.max_lifetime.filter(|_| disposable) {
            if draft.now.since(instance.created) >= limit.0 {
                doomed.push((instance.id.clone(), DrainReason::Expired));
            } else {
                draft.wake_at(instance.created.plus(limit.0));
            }
        }
    }
    doomed
}

/// Idle beyond the target and beyond its patience: the longest idle goes first.
fn surplus(draft: &mut PlanBuilder<'_>, aim: &ScaleInput<'_>) {
    let idle = longest_idle(draft, aim);
    if idle.is_empty() {
        return;
    }
    let mut spare = InstanceCounts::of(draft, aim).spare;
    let mut going = Vec::new();
    for instance in idle {
        // Bound to a domain it serves nobody else: it is no spare capacity, and stays only for its patience.
        let usable = if counts::is_spare(instance, aim.policy) { instance.usable() } else { 0 };
        if usable > 0 && spare.saturating_sub(usable) < aim.target {
            continue;
        }
        // A launch that turned surplus before any job came has had no time to be useful.
        let at_least =
            if instance.uses == 0 { aim.policy.timing.surplus_min_time } else { std::time::Duration::ZERO };
        let patience = aim.idle.idle_time.max(at_least);
        let since = instance.idle_since();
        if draft.now.since(since) < patience {
            draft.wake_at(since.plus(patience));
            continue;
        }
        spare = spare.saturating_sub(usable);
        going.push(instance.id.clone());
    }
    for id in going {
        drain(draft, aim.observed, id, DrainReason::Surplus);
    }
}

/// Instances that may go, the least recently used first.
fn longest_idle<'a>(draft: &'a PlanBuilder<'_>, aim: &ScaleInput<'_>) -> Vec<&'a Instance> {
    let now = draft.now;
    let instances = draft.state().instances.values().map(AsRef::as_ref);
    let mut idle: Vec<&Instance> = instances.filter(|i| is_disposable(i, aim)).collect();
    idle.sort_by(|a, b| {
        let idle_for = |i: &Instance| now.since(i.idle_since());
        idle_for(b).cmp(&idle_for(a)).then_with(|| a.id.cmp(&b.id))
    });
    idle
}

/// Jobs wait, the pool is full, and idle instances do not suit them: the least recently used ones go.
fn make_room(draft: &mut PlanBuilder<'_>, aim: &ScaleInput<'_>) {
    if aim.lack.instances == 0 {
        return;
    }
    let census = InstanceCounts::of(draft, aim);
    if !aim.observed.capabilities.launches {
        return unbind_hosts(draft, aim);
    }
    let launchable = scale::launchable(draft, aim, census.under_way).min(aim.policy.max_instances);
    if launchable == 0 {
        return;
    }
    let taken = launchable.saturating_add(scale::counted(draft, aim));
    let room = aim.policy.max_instances.saturating_add(census.refused).saturating_add(census.leaving);
    let short = usize::try_from(taken.saturating_sub(room)).unwrap_or(usize::MAX);
    let going: Vec<InstanceId> =
        longest_idle(draft, aim).into_iter().take(short).map(|i| i.id.clone()).collect();
    for id in going {
        drain(draft, aim.observed, id, DrainReason::MadeRoom);
    }
}

/// Static hosts cannot be replaced: with `clean_unbinds`, cleaning makes one available to all trust domains again.
fn unbind_hosts(draft: &mut PlanBuilder<'_>, aim: &ScaleInput<'_>) {
    if !aim.policy.clean_unbinds {
        return;
    }
    let instances = draft.state().instances.values().map(AsRef::as_ref);
    let bound = |i: &&Instance| i.is_static() && i.is_idle() && i.domain.is_some() && !aim.strays.name(&i.id);
    let mut idle: Vec<&Instance> = instances.filter(bound).collect();
    let idle_for = |i: &Instance| draft.now.since(i.idle_since());
    idle.sort_by(|a, b| idle_for(b).cmp(&idle_for(a)).then_with(|| a.id.cmp(&b.id)));
    let count = usize::try_from(aim.lack.instances).unwrap_or(usize::MAX);
    let going: Vec<InstanceId> = idle.into_iter().take(count).map(|i| i.id.clone()).collect();
    for id in going {
        clean(draft, aim.observed, id);
    }
}

/// Terminates or cleans the instances that this pass has released.
fn act_on_settled(draft: &mut PlanBuilder<'_>, aim: &ScaleInput<'_>) {
    let now = draft.now;
    let effect = |instance: &Instance| {
        let id = instance.id.clone();
        if counts::is_leaving(instance, aim) {
            return Some(Effect::Terminate { instance: id });
        }
        let cleans = instance.phase == Phase::Cleaning && !aim.strays.name(&id);
        cleans.then_some(Effect::Clean { instance: id })
    };
    let fresh = draft.state().instances.values().filter(|i| i.since == now);
    let effects: Vec<Effect> = fresh.filter_map(|i| effect(i)).collect();
    for effect in effects {
        if !draft.has(&effect) {
            act(draft, aim.observed, effect);
        }
    }
}
