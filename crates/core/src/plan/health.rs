//! Probes idle instances, so that failures are found before a job gets the instance, and decides whose fault a failure is.
//!
//! A fault on the runner host, such as a lost route or a full connection table, makes all instances look unreachable. So
//! one failure alone replaces nothing: others are probed first. If most of them fail, too, the runner host is suspected,
//! and each instance is kept for a while. All of it is recorded with the instances but the latest probes, which a new
//! keeper repeats.

use std::time::Duration;

use super::observed::Observed;
use super::reconcile::{Reconciled, act, drain};
use super::{Effect, PlanBuilder};
use crate::event::Change;
use crate::ids::InstanceId;
use crate::instance::{DrainReason, Instance, Phase, Unreachable};
use crate::inventory::Listed;
use crate::policy::Policy;
use crate::report::{Note, Report};
use crate::time::Stamp;

/// Number of instances that must fail together before the runner host is suspected.
const TOGETHER: usize = 3;
/// Number of responding instances that show that the runner host is well, unless even more fail.
const SAMPLE: usize = 4;
/// The time for which an instance is kept while the runner host is suspected. Then it is probed again, and replaced.
pub const HOLD: Duration = Duration::from_mins(5);

/// The party at fault when instances do not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// Others have to be probed first.
    Undecided,
    RunnerHost,
    Instances,
}

/// Decides by the number of idle instances that do not respond, that have responded since, and that were not probed
/// since.
pub fn blame(failed: usize, responding: usize, unknown: usize) -> Blame {
    if failed >= TOGETHER && failed > responding {
        Blame::RunnerHost
    } else if responding < SAMPLE && unknown > 0 {
        Blame::Undecided
    } else {
        Blame::Instances
    }
}

/// Replaces launched instances that do not respond, unless the runner host is suspected.
pub(super) fn replace(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    reconciled: &Reconciled,
    report: &mut Report,
) {
    let now = draft.now;
    let Some(doubts) = Doubts::of(draft, observed, reconciled) else { return };
    let blame = blame(doubts.failed.len(), doubts.responding, doubts.unknown.len());
    if blame == Blame::RunnerHost {
        report.notes.extend(doubts.note(now));
    }
    let (probe, go) = doubts.verdict(blame, observed, now);
    if !probe.is_empty() {
        draft.wake_at(now.plus(policy.timing.pass_interval));
    }
    for instance in probe {
        act(draft, observed, Effect::CheckHealth { instance });
    }
    for id in go {
        let Some(known) = draft.state().instance(&id) else { continue };
        let message = known.unreachable.as_ref().map_or_else(String::new, |why| why.reason.clone());
        let reason = DrainReason::Unresponsive { message };
        if known.is_idle() {
            drain(draft, observed, id, reason);
        } else {
            draft.emit(Change::DrainingBegun { instance: id, reason });
        }
    }
}

/// Launched instances that do not respond, and what is known of the others.
struct Doubts {
    failed: Vec<Silent>,
    /// The reason why the first of them failed.
    reason: String,
    /// Number of idle instances that have responded since the last of them failed.
    responding: usize,
    /// Idle instances that were not probed since.
    unknown: Vec<InstanceId>,
}

/// An instance that does not respond.
struct Silent {
    id: InstanceId,
    /// End of the time for which the instance is kept while the runner host is suspected.
    until: Stamp,
}

impl Doubts {
    fn of(draft: &PlanBuilder<'_>, observed: &Observed, reconciled: &Reconciled) -> Option<Self> {
        let now = draft.now;
        let launched = || {
            let instances = draft.state().instances.values().map(AsRef::as_ref);
            instances.filter(|i: &&Instance| !i.is_static() && i.phase == Phase::Ready)
        };
        let since = |why: &&Unreachable| now.since(why.since.seen_from(now));
        let whys = || launched().filter_map(|i| i.unreachable.as_ref());
        let first = whys().max_by_key(since)?;
        let last = whys().min_by_key(since)?;
        let silent = |i: &Instance| {
            let until = i.unreachable.as_ref()?.since.seen_from(now).plus(HOLD);
            Some(Silent { id: i.id.clone(), until })
        };
        let failed = launched().filter_map(silent).collect();
        let last = last.since.seen_from(now);
        let others = launched()
            .filter(|i| i.is_idle() && i.unreachable.is_none() && !reconciled.held_back.contains(&i.id));
        let responds = |i: &&Instance| observed.healthy.get(&i.id).is_some_and(|at| at.reached(last));
        let (responding, unknown): (Vec<&Instance>, Vec<&Instance>) = others.partition(responds);
        Some(Self {
            failed,
            reason: first.reason.clone(),
            responding: responding.len(),
            unknown: unknown.into_iter().map(|i| i.id.clone()).collect(),
        })
    }

    /// The note for operators while instances are kept.
    fn note(&self, now: Stamp) -> Option<Note> {
        let held = self.failed.iter().map(|silent| silent.until).filter(|until| !now.reached(*until));
        let until = held.min_by_key(|until| until.since(now))?;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let unreachable = count(self.failed.len());
        let responding = count(self.responding);
        Some(Note::HostSuspected { unreachable, responding, reason: self.reason.clone(), until })
    }

    /// The instances that are probed, and those that go. Instances whose time is over are probed once more, and go
    /// together.
    fn verdict(self, blame: Blame, observed: &Observed, now: Stamp) -> (Vec<InstanceId>, Vec<InstanceId>) {
        let ids = |silent: Vec<Silent>| silent.into_iter().map(|silent| silent.id).collect::<Vec<_>>();
        if blame == Blame::Instances {
            return (Vec::new(), ids(self.failed));
        }
        let Self { failed, responding, mut unknown, .. } = self;
        let (over, held): (Vec<_>, Vec<_>) = failed.into_iter().partition(|silent| now.reached(silent.until));
        let stays_silent =
            |silent: &Silent| observed.unhealthy.get(&silent.id).is_some_and(|at| at.reached(silent.until));
        let mut probe = if blame == Blame::RunnerHost {
            ids(held)
        } else if held.is_empty() {
            Vec::new()
        } else {
            unknown.truncate(SAMPLE - responding);
            unknown
        };
        if over.iter().all(stays_silent) {
            return (probe, ids(over));
        }
        probe.extend(ids(over));
        (probe, Vec::new())
    }
}

/// Last step: probe idle instances not heard from for [`health_interval`](crate::policy::Timing::health_interval).
/// Schedules no wake-up.
pub(super) fn check(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    reconciled: &Reconciled,
) {
    let now = draft.now;
    let is_due = |instance: &&Instance| {
        let heard = observed.healthy.get(&instance.id).map_or(Duration::MAX, |at| now.since(*at));
        now.since(instance.idle_since()).min(heard) >= policy.timing.health_interval
    };
    let instances = draft.state().instances.values().map(AsRef::as_ref);
    let idle =
        instances.filter(|i| i.is_idle() && i.unreachable.is_none() && !reconciled.held_back.contains(&i.id));
    let due: Vec<InstanceId> = idle.filter(is_due).map(|instance| instance.id.clone()).collect();
    for instance in due {
        let effect = Effect::CheckHealth { instance };
        if !draft.has(&effect) {
            act(draft, observed, effect);
        }
    }
}

// Static hosts, beside the table: changes by the operator, and availability as the provider reports it.

/// Records another capacity, as soon as the present jobs fit.
pub(super) fn resize(draft: &mut PlanBuilder<'_>, policy: &Policy, listed: &Listed) {
    let (Some(host), Some(known)) = (&listed.static_host, draft.state().instance(&listed.id)) else { return };
    let capacity = host.capacity.unwrap_or(policy.capacity_per_instance);
    let fits = u32::try_from(known.holders.len()).is_ok_and(|jobs| jobs <= capacity);
    if known.is_static() && known.capacity != capacity && fits {
        draft.emit(Change::Resized { instance: listed.id.clone(), capacity });
    }
}

/// A ready host became unreachable. This is recorded, so that no `prepare` takes it. It is probed until it is back.
pub(super) fn hold_back(
    draft: &mut PlanBuilder<'_>,
    policy: &Policy,
    id: &InstanceId,
    listed: Option<&Listed>,
) {
    if !draft.state().instance(id).is_some_and(|known| known.is_static() && known.is_idle()) {
        return;
    }
    let reported = listed.and_then(|l| l.static_host.as_ref()?.problem.clone());
    let why = reported.unwrap_or_else(|| "it is starting".to_owned());
    draft.emit(Change::BecameUnreachable { instance: id.clone(), reason: why });
    draft.wake_at(draft.now.plus(policy.timing.probe_interval));
}

/// The reason why a host gets no job that the provider takes for usable: its last probe.
pub(super) fn obstacle(draft: &PlanBuilder<'_>, observed: &Observed, id: &InstanceId) -> Option<String> {
    let host = draft.state().instance(id).filter(|known| known.is_static())?;
    Some(observed.obstacles.get(id)?.of(host, draft.now)?.sentence(id))
}

/// The hosts that the provider reports as unusable now, and why.
pub(super) fn unavailable(observed: &Observed) -> Vec<(&InstanceId, &str)> {
    let listed = observed.listing.iter().flat_map(|listing| &listing.instances);
    listed.filter_map(|l| Some((&l.id, l.static_host.as_ref()?.problem.as_deref()?))).collect()
}
