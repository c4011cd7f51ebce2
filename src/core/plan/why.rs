//! Last step: what each waiting job waits for.

use super::attempts::UngrantedAttempts;
use super::builder::PlanBuilder;
use super::observed::Observed;
use super::own_gate::OwnGate;
use super::reconcile::Reconciled;
use super::scale::{self, ScaleReport};
use super::upcoming::UpcomingCapacity;
use super::{ScaleInput, counts, wants};
use crate::core::ids::AttemptName;
use crate::core::instance::{Instance, Phase};
use crate::core::pool::PoolState;
use crate::core::report::{Report, WaitingOn};
use crate::core::reservation::Reservation;
use crate::core::time::Stamp;

pub(super) fn step(
    draft: &PlanBuilder<'_>,
    input: &ScaleInput<'_>,
    scaled: &ScaleReport,
    report: &mut Report,
) {
    let state = draft.state();
    if state.waiting.is_empty() {
        return;
    }
    let mut upcoming = UpcomingCapacity::new(state, input.policy, input.ungranted, draft.now);
    let hosts = bound_hosts(draft, input);
    let mut rest = Rest { draft, input, scaled, hosts, full: None, ahead: 0 };
    report.waiting.reserve(state.waiting.len());
    for job in state.waiting.values() {
        let drained = scaled.blocked.as_ref().filter(|on| matches!(on, WaitingOn::Drained { .. }));
        let serving = if drained.is_none() { upcoming.serve(job) } else { None };
        let is_rechecked = serving.is_some_and(|i| i.awaits_check().is_none() && i.awaits_recheck());
        let on = match serving.map(|i| (&i.phase, i.unreachable.is_some(), i.id.clone())) {
            Some((Phase::Cleaning, _, instance)) => WaitingOn::Cleaning { instance },
            Some((Phase::Suspended { .. }, _, instance)) => WaitingOn::Resume { instance },
            Some((Phase::Ready, true, instance)) => WaitingOn::Unreachable { instance },
            // Its own, ready and held back: a pass decides.
            Some((Phase::Ready, false, _)) if job.job.order.is_some() => WaitingOn::NextPass,
            Some((Phase::Ready, false, instance)) if is_rechecked => WaitingOn::Recheck { instance },
            Some((Phase::Ready, false, instance)) => {
                let kind = state.instance(&instance).and_then(Instance::awaits_check).unwrap_or_default();
                WaitingOn::StageCheck { instance, kind }
            }
            Some((_, _, instance)) => WaitingOn::Boot { instance },
            None => rest.reason(job),
        };
        report.waiting.push((job.attempt.clone(), on));
    }
}

/// What the attempt waits for according to the record alone, for a call that cannot wait for the keeper's report.
pub fn by_record(state: &PoolState, attempt: &AttemptName, now: Stamp) -> Option<WaitingOn> {
    let policy = state.policy.as_deref()?;
    let observed = Observed::nothing(state, now);
    let (ungranted, reconciled) = (UngrantedAttempts::default(), Reconciled::default());
    let mut draft = PlanBuilder::new(state, now);
    let mut report = Report::new(now, state.revision);
    let input = ScaleInput::of(&draft, &observed, policy, &ungranted, &reconciled);
    let scaled = scale::step(&mut draft, &input, &mut report);
    step(&draft, &input, &scaled, &mut report);
    let (_, on) = report.waiting.into_iter().find(|(name, _)| name == attempt)?;
    // A launch that only the next pass would make does not count.
    let to_come = matches!(&on, WaitingOn::Boot { instance } if state.instance(instance).is_none());
    (!to_come && on != WaitingOn::NextPass).then_some(on)
}

/// The jobs that no instance on its way will serve.
struct Rest<'a> {
    draft: &'a PlanBuilder<'a>,
    input: &'a ScaleInput<'a>,
    scaled: &'a ScaleReport,
    /// All hosts of the pool, if each is bound for good.
    hosts: Vec<&'a Instance>,
    /// The reason that a full pool gives to the first of them; computed once.
    full: Option<WaitingOn>,
    ahead: u32,
}

impl Rest<'_> {
    fn reason(&mut self, job: &Reservation) -> WaitingOn {
        let before = self.ahead;
        self.ahead += 1;
        let policy = self.input.policy;
        let drained = matches!(self.scaled.blocked, Some(WaitingOn::Drained { .. }));
        if let Some(limit) = policy.max_lifetime.filter(|_| !drained && !policy.has_time_for(&job.job)) {
            return WaitingOn::TooLong { timeout: job.job.timeout, max_lifetime: limit.0 };
        }
        if let Some(first) = self.hosts.first().filter(|_| !drained)
            && !self.hosts.iter().any(|host| host.admits(&job.domain))
        {
            let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
            return WaitingOn::Bound { hosts, instance: first.id.clone() };
        }
        let of_kind = if job.job.order.is_some() { &self.scaled.ordered } else { &self.scaled.shared };
        if let Some(blocked) = &self.scaled.blocked {
            return blocked.clone();
        }
        if job.job.order.is_some()
            && let OwnGate::Wait { until, failure } = wants::gate(self.draft, self.input, job)
        {
            return WaitingOn::OwnLaunch { until, failure };
        }
        if let Some(blocked) = of_kind {
            return blocked.clone();
        }
        let full = self.full.get_or_insert_with(|| full(self.draft, self.input, self.scaled));
        if let WaitingOn::Limit { in_use, max_instances, .. } = *full {
            return WaitingOn::Limit { in_use, max_instances, ahead: before };
        }
        full.clone()
    }
}

/// All hosts of a pool of static hosts, if each stays with its trust domain until the operator unbinds it. Empty if one
/// may still serve any domain: one that no job has used yet, or one that is listed and not adopted.
fn bound_hosts<'a>(draft: &'a PlanBuilder<'_>, input: &ScaleInput<'_>) -> Vec<&'a Instance> {
    let (state, observed) = (draft.state(), input.observed);
    if input.policy.clean_unbinds || observed.capabilities.launches {
        return Vec::new();
    }
    let Some(listing) = observed.listing.as_ref().ok().filter(|listing| listing.complete) else {
        return Vec::new();
    };
    let is_used =
        |i: &Instance| i.holders.keys().any(|name| observed.attempts.get(name).is_some_and(|seen| seen.used));
    let stays = |i: &Instance| i.is_static() && i.domain.is_some() && (i.is_bound_by_use() || is_used(i));
    let hosts: Vec<&Instance> = state.instances.values().map(AsRef::as_ref).collect();
    let adopted = listing.instances.iter().all(|listed| state.instance(&listed.id).is_some());
    if adopted && hosts.iter().all(|host| stays(host)) { hosts } else { Vec::new() }
}

fn full(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, scaled: &ScaleReport) -> WaitingOn {
    if !scaled.limit_reached {
        return WaitingOn::NextPass;
    }
    let instances = draft.state().instances.values();
    if let Some(leaving) = instances.clone().find(|i| counts::is_leaving(i, input)) {
        return WaitingOn::Room { instance: leaving.id.clone() };
    }
    let in_use = u32::try_from(instances.filter(|i| !i.is_idle()).count()).unwrap_or(u32::MAX);
    WaitingOn::Limit { in_use, max_instances: input.policy.max_instances, ahead: 0 }
}

/// Gives all waiting jobs the same reason.
pub(super) fn all_waiting(draft: &PlanBuilder<'_>, report: &mut Report, problem: &str) {
    for reservation in draft.state().waiting.values() {
        let on = WaitingOn::Moved { problem: problem.to_owned() };
        report.waiting.push((reservation.attempt.clone(), on));
    }
}
