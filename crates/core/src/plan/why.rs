//! Last step: what each waiting job waits for.

use super::attempts::UngrantedAttempts;
use super::backoff::OwnGate;
use super::observed::Observed;
use super::reconcile::Reconciled;
use super::scale::{self, ScaleReport};
use super::upcoming::{self, UpcomingCapacity};
use super::{PlanBuilder, ScaleInput};
use crate::ids::AttemptName;
use crate::instance::{Instance, Phase};
use crate::job::Reservation;
use crate::obstacle::{self, UnusableHosts};
use crate::pool::PoolState;
use crate::report::{Report, WaitingOn};
use crate::time::Stamp;

pub(super) fn step(
    draft: &PlanBuilder<'_>,
    input: &ScaleInput<'_>,
    scaled: &ScaleReport,
    report: &mut Report,
) {
    let state = draft.state();
    let now = draft.now;
    let met = |instance: &Instance| input.observed.obstacles.get(&instance.id)?.of(instance, now).cloned();
    let known = input.observed.obstacles.keys().filter_map(|id| state.instance(id));
    report.obstacles = known.filter_map(|i| Some((i.id.clone(), met(i)?))).collect();
    if state.waiting.is_empty() {
        return;
    }
    let mut upcoming = UpcomingCapacity::new(state, input.policy, input.ungranted, draft.now);
    let hosts = bound_hosts(draft, input);
    let all = static_hosts(draft, input, report);
    let mut rest = Rest { draft, input, scaled, hosts, all, full: None, ahead: 0 };
    report.waiting.reserve(state.waiting.len());
    for job in state.waiting.values() {
        let drained = scaled.blocked.as_ref().filter(|on| matches!(on, WaitingOn::Drained { .. }));
        let serving = if drained.is_none() { upcoming.serve(job) } else { None };
        let on = match serving {
            Some(instance) if instance.is_static() && instance.phase == Phase::Checking => {
                rest.of_checked_host(job, instance)
            }
            Some(instance) => match met(instance) {
                Some(obstacle) => WaitingOn::Obstructed { instance: instance.id.clone(), obstacle },
                None => on_its_way(instance, job),
            },
            None => rest.reason(job),
        };
        report.waiting.push((job.attempt.clone(), on));
    }
}

/// The reason why a job waits that this instance is to serve.
fn on_its_way(serving: &Instance, job: &Reservation) -> WaitingOn {
    let instance = serving.id.clone();
    match (&serving.phase, &serving.unreachable) {
        (Phase::Cleaning, _) => WaitingOn::Cleaning { instance },
        (Phase::Suspended { .. }, _) => WaitingOn::Resume { instance },
        (Phase::Ready, Some(why)) => WaitingOn::Unreachable { instance, reason: why.reason.clone() },
        // Its own, ready and held back: a pass decides.
        (Phase::Ready, None) if job.job.order.is_some() => WaitingOn::NextPass,
        (Phase::Ready, None) if serving.awaits_check().is_none() && serving.awaits_recheck() => {
            WaitingOn::Recheck { instance }
        }
        (Phase::Ready, None) => {
            WaitingOn::StageCheck { instance, kind: serving.awaits_check().unwrap_or_default() }
        }
        _ => WaitingOn::Boot { instance },
    }
}

/// The reason why the attempt waits, according to the record alone, for a call that cannot wait for the keeper's report.
pub fn by_record(state: &PoolState, attempt: &AttemptName, now: Stamp) -> Option<WaitingOn> {
    let policy = state.policy.as_deref()?;
    let observed = Observed::nothing(state, now);
    let ungranted = UngrantedAttempts::default();
    let reconciled = Reconciled::default();
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
    /// All hosts of the pool.
    all: Vec<Host<'a>>,
    /// The reason that a full pool gives to the first of them; computed once.
    full: Option<WaitingOn>,
    ahead: u32,
}

impl Rest<'_> {
    /// A host that is checked may serve the job; one in use may become free before.
    fn of_checked_host(&mut self, job: &Reservation, host: &Instance) -> WaitingOn {
        if matches!(self.scaled.blocked, Some(WaitingOn::NoHost { .. })) && unusable(&self.all, job).is_some()
        {
            return self.reason(job);
        }
        WaitingOn::HostCheck { instance: host.id.clone() }
    }

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
        match &self.scaled.blocked {
            Some(WaitingOn::NoHost { .. }) => {
                return WaitingOn::NoHost { unusable: unusable(&self.all, job) };
            }
            Some(blocked) => return blocked.clone(),
            None => {}
        }
        if job.job.order.is_some()
            && let OwnGate::Wait { until, failure } = scale::order_gate(self.draft, self.input, job)
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

/// A static host, and why jobs cannot get it now.
struct Host<'a> {
    instance: &'a Instance,
    /// True if the host stays with its trust domain until the operator unbinds it.
    stays: bool,
    out_of_service: Option<String>,
    unreached: Option<String>,
}

fn static_hosts<'a>(draft: &'a PlanBuilder<'_>, input: &ScaleInput<'_>, report: &Report) -> Vec<Host<'a>> {
    let hosts = draft.state().instances.values().map(AsRef::as_ref).filter(|i: &&Instance| i.is_static());
    let out_of_service = |host: &Instance| {
        let Phase::OutOfService { reason } = &host.phase else { return None };
        Some(obstacle::out_of_service(host, reason))
    };
    let state_of = |instance: &'a Instance| Host {
        instance,
        stays: !input.policy.clean_unbinds && stays_bound(instance, input),
        out_of_service: out_of_service(instance),
        unreached: report.obstacle(&instance.id),
    };
    hosts.map(state_of).collect()
}

/// The hosts that a job may have and cannot get, with the reason of the first: one that is out of service before one that
/// is not reached.
fn unusable(hosts: &[Host<'_>], job: &Reservation) -> Option<UnusableHosts> {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let (open, bound): (Vec<&Host<'_>>, Vec<&Host<'_>>) =
        hosts.iter().partition(|host| !host.stays || host.instance.admits(&job.domain));
    let out = || open.iter().filter_map(|host| host.out_of_service.as_ref());
    let unreached = || open.iter().filter_map(|host| host.unreached.as_ref());
    Some(UnusableHosts {
        of: count(open.len()),
        out_of_service: count(out().count()),
        unreachable: count(unreached().count()),
        first: out().chain(unreached()).next()?.clone(),
        bound: count(bound.len()),
    })
}

/// True if a host is bound by a job that has used it, or that will have.
fn stays_bound(host: &Instance, input: &ScaleInput<'_>) -> bool {
    let attempts = &input.observed.attempts;
    let is_used = || {
        host.holders.iter().any(|(name, holder)| match attempts.get(name) {
            Some(seen) => seen.used,
            // What another manager's job has done is not known here.
            None => !input.observed.is_own(holder.manager),
        })
    };
    host.is_static() && host.domain.is_some() && (host.is_bound_by_use() || is_used())
}

/// All hosts of a pool of static hosts, if each stays with its trust domain until the operator unbinds it. Empty if one
/// may still serve any domain: one that no job has used yet, or one that is listed and not adopted.
fn bound_hosts<'a>(draft: &'a PlanBuilder<'_>, input: &ScaleInput<'_>) -> Vec<&'a Instance> {
    let state = draft.state();
    let observed = input.observed;
    if input.policy.clean_unbinds || observed.capabilities.launches {
        return Vec::new();
    }
    let Some(listing) = observed.listing.as_ref().ok().filter(|listing| listing.complete) else {
        return Vec::new();
    };
    let hosts: Vec<&Instance> = state.instances.values().map(AsRef::as_ref).collect();
    let adopted = listing.instances.iter().all(|listed| state.instance(&listed.id).is_some());
    if adopted && hosts.iter().all(|host| stays_bound(host, input)) { hosts } else { Vec::new() }
}

fn full(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, scaled: &ScaleReport) -> WaitingOn {
    if !scaled.limit_reached {
        return WaitingOn::NextPass;
    }
    let instances = draft.state().instances.values();
    if let Some(leaving) = instances.clone().find(|i| upcoming::is_leaving(i, input)) {
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
