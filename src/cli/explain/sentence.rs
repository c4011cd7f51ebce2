//! An event as one sentence.
//!
//! The sentence is made from the event and the state immediately before it. If the kept history begins later, unknown
//! facts are omitted.

use std::sync::Arc;
use std::time::Duration;

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, InstanceId, OfferingName};
use greenroom_core::images::FoundImage;
use greenroom_core::instance::{Answer, Instance};
use greenroom_core::job::{JobFacts, Reservation};
use greenroom_core::policy::Policy;
use greenroom_core::pool::PoolState;
use greenroom_core::start::StartAccount;
use greenroom_core::text::size;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_core::unbegun::CheckKind;

use crate::cli::ui::plural;
use crate::cli::when::whole;

/// The request of an attempt, waiting or granted.
pub(super) fn request<'a>(state: &'a PoolState, attempt: &AttemptName) -> Option<&'a Reservation> {
    let granted = || state.granted.get(attempt).map(|grant| grant.reservation.as_ref());
    state.waiting_for(attempt).or_else(granted)
}

/// The instance that an attempt is on, closing ones included.
pub(super) fn instance_of<'a>(state: &'a PoolState, attempt: &AttemptName) -> Option<&'a Instance> {
    state.instances.values().map(AsRef::as_ref).find(|i| i.holders.contains_key(attempt))
}

/// Name, stage, pipeline and ref of a job, if GitLab reported them.
pub(super) fn about(job: &JobFacts) -> Option<String> {
    let protected = if job.protected { "protected" } else { "not protected" };
    let parts = [
        job.name.as_ref().map(|name| format!("job name `{name}`")),
        job.stage.as_ref().map(|stage| format!("stage `{stage}`")),
        job.pipeline.map(|id| format!("pipeline {id}")),
        job.git_ref.as_ref().map(|git_ref| format!("ref `{git_ref}` ({protected})")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

pub(super) fn sentence(before: &PoolState, event: &Event) -> String {
    let at = event.at;
    match &event.change {
        Change::PolicySet { policy } => policy_set(before.policy.as_deref(), policy),
        Change::GenerationBegun { generation } => {
            format!("a keeper began generation {generation} of launches")
        }
        Change::OfferingsChanged { offerings } => named(offerings),
        Change::LaunchIntended { instance, attempt, offering, ordered, .. } => {
            let again = match attempt {
                1 => String::new(),
                _ => format!(" (attempt {attempt})"),
            };
            let chosen = offering.as_ref().map(|offering| chosen(before, offering, at));
            let own = ordered.as_ref().map(|own| format!(" for job {}: {}", own.job.id, own.order));
            let chosen = chosen.unwrap_or_default();
            let own = own.unwrap_or_default();
            format!("launch of {instance} requested{again}{chosen}{own}")
        }
        Change::LaunchAnswered { instance, answer, .. } => answered(before, instance, answer, at),
        Change::Reached { instance, endpoint }
            if before.instance(instance).is_some_and(|i| i.phase.is_resuming()) =>
        {
            let after = in_phase(before, instance, at);
            format!("{instance} reachable again at {}{after}", endpoint.place())
        }
        Change::Reached { instance, endpoint } => {
            format!("{instance} reachable at {}{}", endpoint.place(), after(before, instance, at))
        }
        Change::BecameReady { instance }
            if before.instance(instance).is_some_and(|i| i.unreachable.is_some()) =>
        {
            format!("{instance} responds again")
        }
        Change::BecameReady { instance }
            if before.instance(instance).is_some_and(|i| i.phase.is_resuming()) =>
        {
            format!("{instance} resumed and ready{}", in_phase(before, instance, at))
        }
        Change::BecameReady { instance } => format!("{instance} ready{}", after(before, instance, at)),
        Change::Adopted { instance, endpoint, .. } => {
            let again = before.former_host(instance, endpoint).map_or("", |_| " again, as it was");
            format!("{instance} adopted{again}, a static host at {}", endpoint.place())
        }
        Change::Requested { job, .. } => {
            let own = job.order.as_ref().map(|order| format!(" of its own ({order})")).unwrap_or_default();
            format!("job {} of {} requested an instance{own}{}", job.key, job.project, situation(before))
        }
        Change::Granted { attempt, instance } => granted(before, attempt, instance, at),
        Change::Withdrawn { attempt, how } => {
            let waited =
                request(before, attempt).map(|r| format!(" after {}", Pretty(at.since(r.requested_at))));
            format!("{} stopped waiting{}: {how}", who(before, attempt), waited.unwrap_or_default())
        }
        Change::OrderRefused { attempt, refused } => {
            format!("the provider refused what {} ordered: {}", who(before, attempt), refused.reason)
        }
        Change::Rejected { attempt, message } => {
            let place = place(before, attempt);
            format!("{} found {place} unusable and waits again: {message}", who(before, attempt))
        }
        Change::StageNotBegun { attempt, reason, kind } => {
            let what = match kind {
                CheckKind::Stages => "did not begin a stage of",
                CheckKind::Engine | CheckKind::Network => "did not start the containers of",
            };
            format!("{} {what} {}: {reason}", place(before, attempt), who(before, attempt))
        }
        Change::FailedEarly { attempt, reason } => {
            let who = who(before, attempt);
            let place = place(before, attempt);
            format!("{who} failed on {place} before its own script: {reason}")
        }
        Change::Released { attempt, release: leaving } => {
            let held = instance_of(before, attempt).and_then(|i| i.holders.get(attempt));
            let held = held.map(|h| format!(" after {}", Pretty(at.since(h.granted))));
            let used = if leaving.used { "" } else { ", without having used it" };
            let closing = if leaving.closing { "; its last call is still running" } else { "" };
            let who = who(before, attempt);
            let place = place(before, attempt);
            format!("{who} left {place}{}: {}{used}{closing}", held.unwrap_or_default(), leaving.how)
        }
        Change::JobEnded { attempt, end } => {
            let blame = end.result.blame().map(|party| format!(", caused by the {party}"));
            let reason = end.reason.as_ref().map(|reason| format!(": {reason}"));
            let blame = blame.unwrap_or_default();
            let reason = reason.unwrap_or_default();
            format!("{} ended: {}{blame}{reason}", who(before, attempt), end.result)
        }
        Change::SlotFreed { attempt } => {
            let job = instance_of(before, attempt).and_then(|i| i.holders.get(attempt));
            let who = job.map_or(format!("attempt {attempt}"), |h| format!("job {}", h.job));
            format!("the last call of {who} exited, its slot on {} is free", place(before, attempt))
        }
        other => of_instance(before, other, at),
    }
}

/// Events about an instance and no job, and the operator's commands.
fn of_instance(before: &PoolState, change: &Change, at: Stamp) -> String {
    match change {
        Change::Resized { instance, capacity } => {
            format!("{instance} now has room for {}", plural(*capacity as usize, "job"))
        }
        Change::Readdressed { instance, endpoint } => {
            format!("{instance} is now reached at {}", endpoint.place())
        }
        Change::BecameUnreachable { instance, reason: why } => {
            format!("{instance} unreachable, gets no jobs until it responds: {why}")
        }
        Change::StageBegun { instance, kind: CheckKind::Stages } => {
            format!("{instance} begins stages again")
        }
        Change::StageBegun { instance, kind: CheckKind::Engine | CheckKind::Network } => {
            format!("{instance} starts containers: it passed the keeper's check")
        }
        Change::Rechecked { instance } => format!("{instance} passed the check between jobs"),
        Change::SuspendIntended { instance } => {
            format!("suspension of {instance} requested, for the tier of `idle_stopped`")
        }
        Change::Suspended { instance } => format!("{instance} suspended{}", in_phase(before, instance, at)),
        Change::ResumeIntended { instance } => {
            let slept = before.instance(instance).map(|i| format!(", after {}", age(at, i.since)));
            format!("resumption of {instance} requested{}", slept.unwrap_or_default())
        }
        Change::ImagesFound { instance, images, attempt } => {
            images_found(before, instance, images, attempt.as_ref())
        }
        Change::ImagesRemoved { instance, images } => {
            format!("{instance}: image {} removed to make room", ticked(images))
        }
        Change::CleaningBegun { instance } => format!("{instance} is being cleaned"),
        Change::Cleaned { instance, .. } => format!("{instance} cleaned{}", in_phase(before, instance, at)),
        Change::OutOfService { instance, reason: why } => format!("{instance} out of service: {why}"),
        Change::ReturnedToService { instance } => format!("{instance} returned to service by the operator"),
        Change::Unbound { instance } => format!("{instance} released from its trust domain by the operator"),
        Change::DrainingBegun { instance, reason: why } => format!("{instance} draining: {why}"),
        Change::MissingFromList { instance, .. } => format!("{instance} missing from the provider's list"),
        Change::Located { instance, location } => format!("{instance} listed in {location}"),
        Change::ListedAgain { instance } => format!("{instance} listed again by the provider"),
        Change::Forgotten { instance } => match before.instance(instance) {
            Some(known) => format!("{instance} gone after {}", age(at, known.created)),
            None => format!("{instance} gone"),
        },
        Change::RecordDropped { instance, problem } => {
            let place = before.instance(instance).and_then(|known| known.location.as_ref());
            let place = place.map_or_else(String::new, |place| format!(" in {place}"));
            format!(
                "record of {instance} dropped by the operator, because the provider did not answer ({problem}); it may \
                 still exist{place}"
            )
        }
        Change::PoolDrained => "the pool was drained by the operator".to_owned(),
        Change::PoolResumed => "the pool was resumed by the operator".to_owned(),
        // `sentence` handles the other events.
        _ => String::new(),
    }
}

fn ticked(images: &[Arc<str>]) -> String {
    images.iter().map(|image| format!("`{image}`")).collect::<Vec<_>>().join(", ")
}

/// Images that the keeper pulled before a job needed them, or that came with a job.
fn images_found(
    before: &PoolState,
    instance: &InstanceId,
    images: &[FoundImage],
    attempt: Option<&AttemptName>,
) -> String {
    if let Some(attempt) = attempt {
        let names: Vec<Arc<str>> = images.iter().map(|found| Arc::clone(&found.name)).collect();
        return format!("{instance} has image {} since {}", ticked(&names), who(before, attempt));
    }
    let known = before.instance(instance);
    let each = images.iter().map(|found| match known.and_then(|known| known.images.get(&found.name)) {
        Some(fact) if fact.image.digest == found.digest => format!("image `{}` is up to date", found.name),
        Some(_) => format!("image `{}` has changed in its registry, and was pulled again", found.name),
        None => format!("image `{}` pulled in advance ({})", found.name, size(found.bytes)),
    });
    format!("{instance}: {}", each.collect::<Vec<_>>().join(", "))
}

fn age(at: Stamp, since: Stamp) -> Pretty {
    whole(at.since(since))
}

/// The time since the launch.
fn after(before: &PoolState, instance: &InstanceId, at: Stamp) -> String {
    let known = before.instance(instance);
    match known {
        Some(known) if known.ready.is_none() => format!(" after {}", Pretty(at.since(known.created))),
        Some(known) => format!(" again after {}", Pretty(at.since(known.since))),
        None => String::new(),
    }
}

fn in_phase(before: &PoolState, instance: &InstanceId, at: Stamp) -> String {
    before.instance(instance).map_or(String::new(), |i| format!(" after {}", Pretty(at.since(i.since))))
}

fn who(before: &PoolState, attempt: &AttemptName) -> String {
    request(before, attempt).map_or(format!("attempt {attempt}"), |r| format!("job {}", r.job.key))
}

fn place(before: &PoolState, attempt: &AttemptName) -> String {
    instance_of(before, attempt).map_or("its instance".to_owned(), |i| i.id.to_string())
}

/// The new offerings.
fn named(offerings: &[OfferingName]) -> String {
    if offerings.is_empty() {
        return "the pool no longer has offerings".to_owned();
    }
    let names: Vec<&str> = offerings.iter().map(OfferingName::as_str).collect();
    format!("offerings in order of preference: {}", names.join("; "))
}

/// The offering of a launch, and why it skipped those before it.
fn chosen(before: &PoolState, taken: &OfferingName, at: Stamp) -> String {
    let Some(policy) = before.policy.as_deref() else { return format!(", as {taken}") };
    let reasons: Vec<String> = before
        .availability
        .preferred_to(taken, &policy.timing, at)
        .map(|passed| format!("{passed}, refused {} earlier", whole(at.since(passed.refusal.at))))
        .collect();
    if reasons.is_empty() {
        return format!(", as {taken}");
    }
    format!(", as {taken} instead of {}", reasons.join("; "))
}

fn answered(before: &PoolState, instance: &InstanceId, answer: &Answer, at: Stamp) -> String {
    let launch = before.instance(instance).and_then(|i| i.launch.as_ref());
    let took = launch.map_or(String::new(), |l| format!(" after {}", Pretty(at.since(l.requested_at))));
    match answer {
        Answer::Pending => format!("launch of {instance} in progress"),
        Answer::Accepted { .. } => format!("launch of {instance} accepted{took}"),
        Answer::Unknown { .. } => format!("launch of {instance} got no answer{took}"),
        Answer::Refused { failure, .. } => format!("launch of {instance} refused{took}: {failure}"),
    }
}

/// The reasons for which a job that requests an instance now may have to wait.
fn situation(before: &PoolState) -> String {
    let idle: u32 = before.instances.values().map(|i| i.usable()).sum();
    let limit = before.policy.as_ref().map_or(String::new(), |p| format!(" of {}", p.max_instances));
    let ahead = match before.waiting.len() {
        0 => String::new(),
        1 => ", 1 job ahead".to_owned(),
        n => format!(", {n} jobs ahead"),
    };
    let slots = plural(idle as usize, "slot");
    format!("; {slots} idle, {}{limit} instances{ahead}", before.alive())
}

fn granted(before: &PoolState, attempt: &AttemptName, instance: &InstanceId, at: Stamp) -> String {
    let who = who(before, attempt);
    let Some(request) = request(before, attempt) else { return format!("{who} got {instance}") };
    let waited = Pretty(at.since(request.requested_at));
    let account = |known| StartAccount::of(known, attempt, request.requested_at, at);
    let how = before.instance(instance).map_or(String::new(), |known| format!(" ({})", account(known)));
    format!("{who} got {instance} after {waited}{how}")
}

fn policy_set(before: Option<&Policy>, policy: &Policy) -> String {
    let keys = |p: &Policy| {
        let uses = p.max_use_count.map_or("none".to_owned(), |n| n.to_string());
        let idle = &p.idle;
        [
            ("max_instances", p.max_instances.to_string()),
            ("capacity_per_instance", p.capacity_per_instance.to_string()),
            ("max_use_count", uses),
            ("idle_count", idle.idle_count.to_string()),
            ("idle_time", show(idle.idle_time)),
            ("scale_factor", idle.scale_factor.to_string()),
        ]
    };
    let stopped = |p: &Policy| format!("`idle_stopped = {}`", p.idle_stopped);
    let now = keys(policy);
    let Some(before) = before else {
        let all = now.iter().map(|(key, value)| format!("`{key} = {value}`"));
        let all: Vec<String> = all.chain((policy.idle_stopped > 0).then(|| stopped(policy))).collect();
        return format!("policy set: {}", all.join(", "));
    };
    let changed: Vec<String> = keys(before)
        .iter()
        .zip(&now)
        .filter(|(old, new)| old != new)
        .map(|((key, old), (_, new))| format!("`{key} = {new}` (was {old})"))
        .chain((before.idle_stopped != policy.idle_stopped).then(|| {
            let old = before.idle_stopped;
            format!("{} (was {old})", stopped(policy))
        }))
        .collect();
    if changed.is_empty() {
        return "policy changed: schedules, timing or launch limits".to_owned();
    }
    format!("policy changed: {}", changed.join(", "))
}

fn show(duration: Duration) -> String {
    whole(duration).to_string()
}
