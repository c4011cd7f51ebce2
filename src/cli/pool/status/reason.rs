//! Why an instance is as it is, and what a job waits for, in sentences.

use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::instance::{Answer, Instance, Phase, Suspension};
use greenroom_core::pool::PoolState;
use greenroom_core::report::WaitingOn;
use greenroom_core::reservation::Reservation;
use greenroom_core::time::Pretty;
use greenroom_core::unbegun::CheckKind;
use serde::Serialize;

use crate::cli::when::When;

/// The static hosts of a pool, taken together.
#[derive(Debug, Serialize)]
pub(crate) struct HostsView {
    pub(crate) kind: HostKind,
    count: usize,
    /// How many have a trust domain now.
    bound: usize,
    pub(crate) text: String,
}

/// What hosts are worth, by who cleans them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HostKind {
    AnyDomain,
    FirstDomain,
}

/// Why an instance is in its phase, if there is more to say.
pub(super) fn reason(instance: &Instance, state: &PoolState, when: &When) -> Option<String> {
    match &instance.phase {
        Phase::Launching => Some(launching(instance, state)),
        Phase::Checking => Some("reachable, not yet ready".to_owned()),
        Phase::Ready => ready(instance, when),
        Phase::Suspended { step: Suspension::Suspending } => Some("being suspended".to_owned()),
        Phase::Suspended { step: Suspension::Stopped } => {
            Some("launched, checked and suspended; a job that finds no idle instance resumes it".to_owned())
        }
        Phase::Suspended { step: Suspension::Resuming } => Some("being resumed".to_owned()),
        Phase::Cleaning if instance.is_new_host() => Some("being cleaned before its first job".to_owned()),
        Phase::Cleaning => Some("being cleaned between jobs".to_owned()),
        Phase::OutOfService { reason: why } => Some(why.clone()),
        Phase::Draining { reason: why } if instance.holders.is_empty() => Some(why.to_string()),
        Phase::Draining { reason: why } => Some(format!("{why}; waiting for its jobs to finish")),
    }
}

fn launching(instance: &Instance, state: &PoolState) -> String {
    let Some(launch) = &instance.launch else { return "adopted, not yet reached".to_owned() };
    match &launch.answer {
        Answer::Pending => "launch requested, the provider has not answered yet".to_owned(),
        Answer::Accepted { .. } => match state.launches.usual_boot().filter(|_| instance.ordered.is_none()) {
            Some(usual) => format!("booting, usually {}", Pretty(usual)),
            None => "booting".to_owned(),
        },
        Answer::Unknown { .. } => "the launch got no answer: the instance may or may not exist".to_owned(),
        Answer::Refused { failure, .. } => format!("launch {} refused: {failure}", launch.attempt),
    }
}

fn ready(instance: &Instance, when: &When) -> Option<String> {
    if let Some(why) = &instance.unreachable {
        return Some(format!("unreachable for {}: {}", when.age(why.since), why.reason));
    }
    if let Some((row, kind)) = instance.unbegun.as_ref().zip(instance.awaits_check()) {
        let why = match kind {
            CheckKind::Stages => "began no stages of its last jobs, gets none until the keeper's begins",
            CheckKind::Engine | CheckKind::Network => {
                "did not start the last job's containers, gets no job until the keeper has started one"
            }
        };
        return Some(format!("{why}: {}", row.reason));
    }
    if let Some(since) = instance.missing {
        let age = when.age(since);
        return Some(format!("missing from the provider's list for {age}"));
    }
    let closing: Vec<String> =
        instance.holders.values().filter(|h| h.closing.is_some()).map(|h| h.job.to_string()).collect();
    if !closing.is_empty() {
        return Some(format!("closing, the last call is still running: job {}", closing.join(", ")));
    }
    if instance.awaits_recheck() {
        return Some("checked before it gets the next job".to_owned());
    }
    if let Some(row) = instance.suspicion() {
        let what = "jobs of two projects failed on it at their start";
        return Some(format!("used last, because {what}: {}", row.reason));
    }
    // Longer in its phase than idle: it has served a job in between.
    (instance.is_idle() && instance.idle_since() != instance.since)
        .then(|| format!("idle for {}", when.age(instance.idle_since())))
}

/// Which trust domains the pool's static hosts serve, if it has any.
pub(crate) fn hosts(state: &PoolState) -> Option<HostsView> {
    let hosts: Vec<_> = state.instances.values().filter(|i| i.is_static()).collect();
    let policy = state.policy.as_ref().filter(|_| !hosts.is_empty())?;
    let (count, bound) = (hosts.len(), hosts.iter().filter(|host| host.domain.is_some()).count());
    let (kind, text) = if policy.clean_unbinds {
        (HostKind::AnyDomain, "each serves any trust domain after it was cleaned".to_owned())
    } else {
        let text = format!("each stays with the trust domain of its first job, {bound} of {count} are bound");
        (HostKind::FirstDomain, text)
    };
    Some(HostsView { kind, count, bound, text })
}

/// What an instance is bound to, beyond the name of its project or namespace.
pub(super) fn bound(pool: &PoolName, instance: &Instance, state: &PoolState) -> Option<String> {
    let domain = instance.domain.as_ref()?;
    let policy = state.policy.as_ref().filter(|policy| !policy.reuse.is_open(domain))?;
    if !instance.is_static() || policy.clean_unbinds {
        return domain.is_protected().then(|| "bound to jobs of protected refs".to_owned());
    }
    let refs = if domain.is_protected() { "protected" } else { "unprotected" };
    let remedy = format!("{} --unbind", bring_back(pool, &instance.id));
    Some(format!("stays with {refs} refs of {}; `{remedy}` releases it", domain.name()))
}

/// The command that returns an instance to service.
pub(super) fn bring_back(pool: &PoolName, instance: &InstanceId) -> String {
    format!("greenroom pool resume {pool} --instance {instance}")
}

/// What a waiting job waits for, and what it ordered.
pub(crate) fn job_on_what(job: &Reservation, on: &WaitingOn, state: &PoolState, when: &When) -> String {
    let Some(order) = &job.job.order else { return on_what(on, state, when) };
    if let Some(refused) = &job.refused {
        return format!("what it ordered cannot be made: {}", refused.reason);
    }
    let step = match on {
        // How long the pool's own instances take tells nothing about this one.
        WaitingOn::Boot { .. } => on.to_string(),
        _ => on_what(on, state, when),
    };
    format!("an instance of its own ({order}): {step}")
}

/// What a job waits for, and until when or how long that usually takes.
pub(crate) fn on_what(on: &WaitingOn, state: &PoolState, when: &When) -> String {
    match on {
        WaitingOn::Boot { .. } => match state.launches.usual_boot() {
            Some(usual) => format!("{on}, usually {}", Pretty(usual)),
            None => on.to_string(),
        },
        WaitingOn::Rate { until }
        | WaitingOn::OwnLaunch { until, .. }
        | WaitingOn::Backoff { until, .. }
        | WaitingOn::Paused { until, .. } => {
            format!("{on}, {}", when.until(*until))
        }
        WaitingOn::NoOffering { until, .. } => format!("{on}, next try {}", when.left(*until)),
        _ => on.to_string(),
    }
}

/// True if an operator's drain or a launch back-off is the reason, which the commands show separately.
pub(crate) fn is_suspended(on: &WaitingOn) -> bool {
    matches!(on, WaitingOn::Drained { .. } | WaitingOn::Paused { .. } | WaitingOn::Backoff { .. })
}
