//! Fifth step: how many to launch.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Effect;
use super::brake::{self, Brake};
use super::draft::Draft;
use super::observed::{Fresh, Observed};
use super::reconcile::{act, uncounted};
use super::retire::spare_slots;
use crate::core::event::Change;
use crate::core::ids::InstanceId;
use crate::core::instance::{Instance, Phase};
use crate::core::policy::{Policy, Reuse};
use crate::core::pool::PoolState;
use crate::core::report::{Note, Report, WaitingOn};

/// What was wanted, and what stands in the way of the rest.
#[derive(Debug, Default)]
pub(super) struct Wish {
    pub(super) blocked: Option<WaitingOn>,
    pub(super) limit_reached: bool,
}

pub(super) fn step(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy, report: &mut Report) -> Wish {
    let (idle_policy, schedule) = policy.in_force(draft.now);
    let target = idle_policy.target(draft.state().in_use());
    report.idle_target = target;
    report.schedule = schedule;
    watch_periods(draft, policy);
    let counted = counted(draft, observed);
    if counted > policy.max_instances {
        report.notes.push(Note::OverLimit { alive: counted, max_instances: policy.max_instances });
    }
    if let Some(since) = draft.state().drained {
        return Wish { blocked: Some(WaitingOn::Drained { since }), limit_reached: false };
    }
    if !observed.capabilities.launches {
        return Wish { blocked: Some(WaitingOn::NoHost), limit_reached: true };
    }
    let under_way = under_way(draft.state());
    let wanted = wanted(draft, policy, target).saturating_sub(under_way);
    drop_refused(draft, wanted);
    let Some(fresh) = &observed.launching else { return Wish::default() };
    let mut wish = Wish::default();
    let allowed = allowed(draft, policy, wanted, under_way, counted, &mut wish);
    for _ in 0..allowed {
        launch(draft, observed, policy, fresh);
    }
    report.launches.clone_from(&wish.blocked);
    wish
}

/// How many of the wanted instances may be launched now.
fn allowed(
    draft: &mut Draft<'_>,
    policy: &Policy,
    wanted: u32,
    under_way: u32,
    counted: u32,
    wish: &mut Wish,
) -> u32 {
    if wanted == 0 {
        return 0;
    }
    let room = policy.max_instances.saturating_sub(counted).saturating_add(refused(draft.state()));
    wish.limit_reached = room < wanted;
    let mut allowed = wanted.min(room);
    match brake::judge(&draft.state().launches, &policy.timing, draft.now) {
        Brake::Off => {}
        Brake::OneTry => allowed = allowed.min(1_u32.saturating_sub(under_way)),
        Brake::Wait { until, failure } => {
            draft.wake_at(until);
            wish.blocked = Some(WaitingOn::Backoff { until, failure });
            return 0;
        }
        Brake::Paused { until, failures, failure } => {
            draft.wake_at(until);
            wish.blocked = Some(WaitingOn::Paused { until, failures, failure });
            return 0;
        }
    }
    let slots = policy.max_launching.saturating_sub(under_way);
    if slots < allowed {
        let max_launching = policy.max_launching;
        wish.blocked = Some(WaitingOn::Launching { under_way, max_launching });
        allowed = slots;
    }
    let minute = Duration::from_mins(1);
    let now = draft.now;
    let recent: Vec<_> =
        draft.state().launches.recent.iter().copied().filter(|then| now.since(*then) < minute).collect();
    let rate = policy.launches_per_minute.saturating_sub(u32::try_from(recent.len()).unwrap_or(u32::MAX));
    if rate < allowed {
        let until = recent.first().map_or(now, |first| first.plus(minute));
        draft.wake_at(until);
        wish.blocked = Some(WaitingOn::Rate { until });
        allowed = rate;
    }
    allowed
}

/// Intent first; the effect follows its commit.
fn launch(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy, fresh: &Fresh) {
    let number = draft.state().generations.get(&fresh.generation).copied().unwrap_or(0).saturating_add(1);
    let refused = draft.state().instances.values().find(|i| i.is_refused() && !observed.busy.contains(&i.id));
    let again = refused.and_then(|i| i.launch.as_ref().map(|l| (i.id.clone(), l.clone())));
    let (instance, generation, number, attempt) = if let Some((id, launch)) = again {
        (id, launch.generation, launch.number, launch.attempt.saturating_add(1))
    } else {
        let id = InstanceId::launched(&fresh.pool, &fresh.generation, number);
        (id, fresh.generation.clone(), number, 1)
    };
    draft.emit(Change::LaunchIntended {
        instance: instance.clone(),
        generation,
        number,
        attempt,
        capacity: policy.capacity_per_instance,
        uses_left: policy.max_use_count,
    });
    act(draft, observed, Effect::Launch { instance });
    draft.wake_at(draft.now.plus(policy.timing.pass_interval));
}

/// A refused launch that nobody wants any more was never made: its record goes.
fn drop_refused(draft: &mut Draft<'_>, wanted: u32) {
    let surplus: Vec<InstanceId> = draft
        .state()
        .instances
        .values()
        .filter(|i| i.is_refused())
        .skip(usize::try_from(wanted).unwrap_or(usize::MAX))
        .map(|i| i.id.clone())
        .collect();
    for instance in surplus {
        draft.emit(Change::Forgotten { instance });
    }
}

/// The next minute may lie in another period: look again when the policy has entries.
fn watch_periods(draft: &mut Draft<'_>, policy: &Policy) {
    if !policy.schedules.is_empty() {
        let into_minute = u64::try_from(draft.now.wall_ms.rem_euclid(60_000)).unwrap_or(0);
        draft.wake_at(draft.now.plus(Duration::from_millis(60_000 - into_minute)));
    }
}

/// Instances that the waiting jobs and the idle target need beyond what is ready.
fn wanted(draft: &Draft<'_>, policy: &Policy, target: u32) -> u32 {
    let slots = policy.fresh_slots();
    let spare = spare_slots(draft, policy);
    if policy.reuse == Reuse::Any {
        let waiting = u32::try_from(draft.state().waiting.len()).unwrap_or(u32::MAX);
        return waiting.saturating_add(target).saturating_sub(spare).div_ceil(slots);
    }
    let for_target = target.saturating_sub(spare).div_ceil(slots);
    instances_for_waiting(draft, policy).saturating_add(for_target)
}

/// Instances that the waiting jobs alone need: jobs of different domains never share one.
pub(super) fn instances_for_waiting(draft: &Draft<'_>, policy: &Policy) -> u32 {
    let mut by_domain: BTreeMap<&str, u32> = BTreeMap::new();
    for reservation in draft.state().waiting.values() {
        *by_domain.entry(reservation.domain.as_str()).or_default() += 1;
    }
    by_domain.values().map(|jobs| jobs.div_ceil(policy.fresh_slots())).sum()
}

/// Launches that may still become ready.
pub(super) fn under_way(state: &PoolState) -> u32 {
    let boots = |i: &&std::sync::Arc<Instance>| {
        matches!(i.phase, Phase::Launching | Phase::Checking) && !i.is_refused()
    };
    u32::try_from(state.instances.values().filter(boots).count()).unwrap_or(u32::MAX)
}

pub(super) fn refused(state: &PoolState) -> u32 {
    u32::try_from(state.instances.values().filter(|i| i.is_refused()).count()).unwrap_or(u32::MAX)
}

/// What counts against `max_instances`: every record, and what is ours without one.
pub(super) fn counted(draft: &Draft<'_>, observed: &Observed) -> u32 {
    draft.state().alive().saturating_add(uncounted(draft, observed))
}

pub(super) fn is_leaving(instance: &Instance) -> bool {
    match instance.phase {
        Phase::Draining { .. } => true,
        Phase::Launching | Phase::Checking | Phase::Ready | Phase::Cleaning | Phase::SetAside { .. } => false,
    }
}
