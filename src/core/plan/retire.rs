//! Fourth step: which idle instances go?

use super::draft::Draft;
use super::observed::Observed;
use super::reconcile::act;
use super::{Effect, assign, scale};
use crate::core::event::Change;
use crate::core::ids::InstanceId;
use crate::core::instance::{DrainWhy, Instance};
use crate::core::policy::Policy;
use crate::core::time::Stamp;
use std::time::Duration;

pub(super) fn step(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy) {
    assign::settle_all(draft);
    for (id, why) in doomed(draft, policy) {
        drain(draft, observed, id, why);
    }
    if draft.state().drained.is_none() {
        surplus(draft, observed, policy);
        make_room(draft, observed, policy);
    }
    terminate_settled(draft, observed);
}

/// Idle instances that go whatever the policy wants.
fn doomed(draft: &mut Draft<'_>, policy: &Policy) -> Vec<(InstanceId, DrainWhy)> {
    let ordered = draft.state().drained.is_some();
    let mut doomed = Vec::new();
    let mut next = Vec::new();
    for instance in draft.state().instances.values().filter(|i| !i.is_fixed()) {
        let refused = instance.is_refused() && ordered;
        if refused || (instance.is_idle() && ordered) {
            doomed.push((instance.id.clone(), DrainWhy::Ordered));
        } else if let Some(limit) = policy.max_lifetime.filter(|_| instance.is_idle()) {
            let due = instance.created.plus(limit.0);
            if draft.now.since(instance.created) >= limit.0 {
                doomed.push((instance.id.clone(), DrainWhy::Aged));
            } else {
                next.push(due);
            }
        }
    }
    for due in next {
        draft.wake_at(due);
    }
    doomed
}

/// Idle beyond the target and beyond its patience: the longest idle goes first.
fn surplus(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy) {
    let (idle_policy, _) = policy.in_force(draft.now);
    let target = idle_policy.target(draft.state().in_use());
    let mut spare = spare_slots(draft, policy);
    let mut idle: Vec<(Stamp, InstanceId, u32, Duration, bool)> = Vec::new();
    for i in draft.state().instances.values().filter(|i| i.is_idle() && !i.is_fixed()) {
        let patience = if i.uses == 0 {
            idle_policy.idle_time.max(policy.timing.surplus_kept)
        } else {
            idle_policy.idle_time
        };
        idle.push((i.idle_since(), i.id.clone(), i.usable(), patience, counts_as_spare(i)));
    }
    idle.sort_by(|a, b| (a.0.wall_ms, a.0.uptime_ms, &a.1).cmp(&(b.0.wall_ms, b.0.uptime_ms, &b.1)));
    for (since, id, usable, patience, spares) in idle {
        // Bound to a domain it serves nobody else: it is no spare capacity, and stays only for its patience.
        if spares && spare.saturating_sub(usable) < target {
            continue;
        }
        if draft.now.since(since) < patience {
            draft.wake_at(since.plus(patience));
            continue;
        }
        if spares {
            spare = spare.saturating_sub(usable);
        }
        drain(draft, observed, id, DrainWhy::Surplus);
    }
}

/// Jobs wait, the pool is full, and idle instances do not suit them: the least recently used ones go.
fn make_room(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy) {
    if !observed.capabilities.launches {
        return;
    }
    let needed = scale::instances_for_waiting(draft, policy);
    let under_way = scale::under_way(draft.state());
    let counted = scale::counted(draft, observed);
    let free = policy.max_instances.saturating_sub(counted);
    let leaving = u32::try_from(draft.state().instances.values().filter(|i| scale::is_leaving(i)).count());
    let missing = needed
        .saturating_sub(under_way)
        .saturating_sub(free)
        .saturating_sub(scale::refused(draft.state()))
        .saturating_sub(leaving.unwrap_or(u32::MAX));
    if missing == 0 {
        return;
    }
    let mut idle: Vec<(Stamp, InstanceId)> = draft
        .state()
        .instances
        .values()
        .filter(|i| i.is_idle() && !i.is_fixed() && !observed.is_named(&i.id))
        .map(|i| (i.idle_since(), i.id.clone()))
        .collect();
    idle.sort_by(|a, b| (a.0.wall_ms, a.0.uptime_ms, &a.1).cmp(&(b.0.wall_ms, b.0.uptime_ms, &b.1)));
    for (_, id) in idle.into_iter().take(usize::try_from(missing).unwrap_or(usize::MAX)) {
        drain(draft, observed, id, DrainWhy::MadeRoom);
    }
}

/// Idle slots that any domain may use.
pub(super) fn spare_slots(draft: &Draft<'_>, policy: &Policy) -> u32 {
    let offered = |i: &&std::sync::Arc<Instance>| assign::is_offered(i, draft.now) && counts_as_spare(i);
    let young = |i: &&std::sync::Arc<Instance>| {
        policy.max_lifetime.is_none_or(|limit| draft.now.since(i.created) < limit.0)
    };
    draft.state().instances.values().filter(offered).filter(young).map(|i| i.usable()).sum()
}

fn counts_as_spare(instance: &Instance) -> bool {
    instance.domain.as_ref().is_none_or(|d| d.as_str() == "any")
}

fn drain(draft: &mut Draft<'_>, observed: &Observed, instance: InstanceId, why: DrainWhy) {
    draft.emit(Change::DrainingBegun { instance: instance.clone(), why });
    act(draft, observed, Effect::Terminate { instance });
}

/// What became used up in this very pass is terminated in it.
fn terminate_settled(draft: &mut Draft<'_>, observed: &Observed) {
    let now = draft.now;
    let fresh: Vec<InstanceId> = draft
        .state()
        .instances
        .values()
        .filter(|i| scale::is_leaving(i) && i.since == now && i.holders.is_empty())
        .map(|i| i.id.clone())
        .collect();
    for instance in fresh {
        let effect = Effect::Terminate { instance };
        if !draft.has(&effect) {
            act(draft, observed, effect);
        }
    }
}
