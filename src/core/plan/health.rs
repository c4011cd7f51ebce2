//! Probes idle instances, so that failures are found before a job gets the instance, and decides whose fault a failure is.
//!
//! A fault on the runner host, such as a lost route or a full connection table, makes all instances look unreachable. So
//! one failure alone replaces nothing: others are probed first. If most of them fail, too, the runner host is suspected,
//! and the instances are kept for a while. All of it is recorded with the instances but the latest probes, which a new
//! keeper repeats.

use std::time::Duration;

use super::Effect;
use super::builder::PlanBuilder;
use super::observed::Observed;
use super::reconcile::{Reconciled, act, drain};
use crate::core::event::Change;
use crate::core::ids::InstanceId;
use crate::core::instance::{DrainReason, Instance, Phase, Unreachable};
use crate::core::policy::Policy;
use crate::core::report::{Note, Report};
use crate::core::time::Stamp;

/// As many instances must fail together before the runner host is suspected.
const TOGETHER: usize = 3;
/// As many responding instances show that the runner host is well, unless even more fail.
const SAMPLE: usize = 4;
/// How long instances are kept while the runner host is suspected. Then they are probed again, and replaced.
pub const HOLD: Duration = Duration::from_mins(5);

/// Who is at fault when instances do not respond.
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
    let until = doubts.began.plus(HOLD);
    let blame = blame(doubts.failed.len(), doubts.responding, doubts.unknown.len());
    let held = !now.reached(until);
    if held && blame == Blame::RunnerHost {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (unreachable, responding) = (count(doubts.failed.len()), count(doubts.responding));
        report.notes.push(Note::HostSuspected {
            unreachable,
            responding,
            reason: doubts.reason.clone(),
            until,
        });
    }
    let stays_silent = |id: &InstanceId| observed.unhealthy.get(id).is_some_and(|at| at.reached(until));
    let Doubts { failed, mut unknown, .. } = doubts;
    let (probe, go) = match (blame, held) {
        (Blame::Instances, _) => (Vec::new(), failed),
        (Blame::Undecided, true) => {
            unknown.truncate(SAMPLE - doubts.responding);
            (unknown, Vec::new())
        }
        (Blame::Undecided | Blame::RunnerHost, false) if failed.iter().all(stays_silent) => {
            (Vec::new(), failed)
        }
        (Blame::RunnerHost, true) | (Blame::Undecided | Blame::RunnerHost, false) => (failed, Vec::new()),
    };
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
    failed: Vec<InstanceId>,
    /// When the first of them failed, and why.
    began: Stamp,
    reason: String,
    /// How many idle instances have responded since the last of them failed.
    responding: usize,
    /// Idle instances that were not probed since.
    unknown: Vec<InstanceId>,
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
        let (first, last) = (whys().max_by_key(since)?, whys().min_by_key(since)?);
        let failed = launched().filter(|i| i.unreachable.is_some()).map(|i| i.id.clone()).collect();
        let last = last.since.seen_from(now);
        let others = launched()
            .filter(|i| i.is_idle() && i.unreachable.is_none() && !reconciled.held_back.contains(&i.id));
        let responds = |i: &&Instance| observed.healthy.get(&i.id).is_some_and(|at| at.reached(last));
        let (responding, unknown): (Vec<&Instance>, Vec<&Instance>) = others.partition(responds);
        Some(Self {
            failed,
            began: first.since.seen_from(now),
            reason: first.reason.clone(),
            responding: responding.len(),
            unknown: unknown.into_iter().map(|i| i.id.clone()).collect(),
        })
    }
}

/// Last step: probe idle instances not heard from for `health_interval`. Schedules no wake-up.
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
