//! An instance in the status of its pool, its JSON included, and why it is as it is, in sentences.

use std::sync::Arc;
use std::time::Duration;

use greenroom_core::ids::{AttemptName, InstanceId, JobKey, Location, OfferingName, PoolName, TrustDomain};
use greenroom_core::images::ImageFact;
use greenroom_core::instance::{Answer, Holder, Instance, Phase, Suspension};
use greenroom_core::order::Order;
use greenroom_core::pool::PoolState;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_core::unbegun::CheckKind;
use greenroom_ssh::link::Survey;
use serde::Serialize;

use super::links::LinkView;
use super::view::{ContainerUse, StatusInput};
use crate::cli::fields;
use crate::cli::when::When;

#[derive(Debug, Serialize)]
pub(crate) struct InstanceView<'a> {
    pub(super) instance: &'a InstanceId,
    /// `launching`, `checking`, `ready`, `suspending`, `stopped`, `resuming`, `cleaning`, `out-of-service` or `draining`.
    #[serde(serialize_with = "fields::word")]
    pub(super) phase: &'static str,
    #[serde(serialize_with = "fields::moment")]
    since: Stamp,
    #[serde(serialize_with = "fields::seconds")]
    pub(super) for_s: Duration,
    #[serde(serialize_with = "fields::moment")]
    created: Stamp,
    pub(super) jobs: Vec<JobView<'a>>,
    pub(super) served: u32,
    /// The number of jobs that the instance may still serve; null: no limit.
    pub(super) uses_left: Option<u32>,
    capacity: u32,
    pub(super) bound_to: Option<&'a TrustDomain>,
    /// More about the trust domain, in a sentence.
    #[serde(skip)]
    bound: Option<String>,
    reason: Option<String>,
    /// The provider's report beyond its status.
    detail: Option<&'a str>,
    /// The offering it was launched from, if the provider names any.
    offering: Option<&'a OfferingName>,
    /// The location of the launch: the kind, and the account and the region, or the project.
    location: Option<&'a Location>,
    #[serde(skip)]
    is_elsewhere: bool,
    /// True if the instance is ready, and yet given no jobs, or is missing from the provider's list.
    #[serde(skip)]
    is_troubled: bool,
    /// The images that it is known to have.
    images: Vec<ImageView<'a>>,
    /// The job that it was launched for, and what that job ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordered: Option<OrderedView<'a>>,
    #[serde(skip)]
    ordered_text: Option<String>,
    /// The image that the keeper pulls there; null: none.
    pulling: Option<&'a str>,
    /// The command that returns it to service.
    remedy: Option<String>,
    /// The links of the instance, by slot; only with `--wide`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) links: Option<Vec<LinkView>>,
}

/// An image on an instance.
#[derive(Debug, Serialize)]
struct ImageView<'a> {
    name: &'a str,
    digest: Option<&'a str>,
    /// Unpacked.
    bytes: u64,
    #[serde(serialize_with = "fields::moment")]
    since: Stamp,
    /// The moment when the image was last compared with the registry's.
    #[serde(serialize_with = "fields::moment")]
    checked: Stamp,
}

impl<'a> ImageView<'a> {
    fn of(fact: &'a ImageFact) -> Self {
        let image = &fact.image;
        let checked = fact.checked_at();
        Self {
            name: &image.name,
            digest: image.digest.as_deref(),
            bytes: image.bytes,
            since: fact.since,
            checked,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct JobView<'a> {
    pub(super) job: u64,
    server: &'a str,
    attempt: &'a AttemptName,
    #[serde(serialize_with = "fields::moment")]
    granted: Stamp,
    /// True if the attempt is closed, but its last call is still running.
    closing: bool,
    /// The image of its container; null: it runs on the instance itself.
    image: Option<&'a str>,
}

impl<'a> InstanceView<'a> {
    pub(crate) fn of(known: &'a Instance, input: &StatusInput<'a>, when: &When) -> Self {
        let StatusInput { pool, state, report, links, containers, .. } = input;
        let is_out_of_service = matches!(known.phase, Phase::OutOfService { .. });
        let link_views =
            |survey: &Survey| survey.of(&known.id).iter().map(|f| LinkView::of(f, when)).collect();
        Self {
            instance: &known.id,
            phase: known.phase.word(),
            since: known.since,
            for_s: when.now().since(known.since),
            created: known.created,
            jobs: known.holders.iter().map(|holder| JobView::of(holder, *containers)).collect(),
            served: known.uses,
            uses_left: known.uses_left,
            capacity: known.capacity,
            bound_to: known.domain.as_ref(),
            bound: bound(pool, known, state),
            // A ready one says since when it does not respond.
            reason: report
                .filter(|_| known.phase != Phase::Ready)
                .and_then(|report| report.obstacle(&known.id))
                .or_else(|| reason(known, state, when)),
            detail: report.and_then(|report| report.detail(&known.id)),
            offering: known.offering(),
            location: known.location.as_ref(),
            is_elsewhere: report.is_some_and(|report| report.is_elsewhere(known)),
            is_troubled: known.unreachable.is_some()
                || known.missing.is_some()
                || known.awaits_check().is_some(),
            images: known.images.iter().map(ImageView::of).collect(),
            ordered: known.ordered.as_ref().map(|own| OrderedView::of(&own.job, &own.order)),
            ordered_text: known.ordered.as_ref().map(ToString::to_string),
            pulling: report.and_then(|report| report.pull_on(&known.id)),
            remedy: is_out_of_service.then(|| bring_back(pool, &known.id)),
            links: links.map(link_views),
        }
    }

    /// The lower, the more an operator has to look after it.
    pub(super) fn calm(&self) -> u8 {
        match self.phase {
            "out of service" => 0,
            "ready" if self.is_troubled || self.is_elsewhere => 1,
            "draining" => 2,
            "ready" if self.jobs.is_empty() => 5,
            "ready" => 4,
            _ => 3,
        }
    }

    /// Sentences about the instance.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let reason = self.reason.clone();
        let ordered = self.ordered_text.clone();
        let offering = self.offering.map(|offering| format!("launched as {offering}"));
        let detail = self.detail.map(str::to_owned);
        let location = self.location.filter(|_| self.is_elsewhere);
        let location =
            location.map(|location| format!("in {location}, which the provider does not list now"));
        let bound = self.bound.clone();
        let remedy = self.remedy.as_ref().map(|remedy| format!("return it to service with `{remedy}`"));
        let warm = (!self.images.is_empty()).then(|| {
            let names: Vec<String> = self.images.iter().map(|image| format!("`{}`", image.name)).collect();
            format!("has {}", names.join(", "))
        });
        let pulling = self.pulling.map(|image| format!("pulls `{image}`"));
        let images = self
            .jobs
            .iter()
            .filter_map(|each| each.image.map(|image| format!("job {} runs in image `{image}`", each.job)));
        [reason, ordered, bound, offering, location, detail, remedy, warm, pulling]
            .into_iter()
            .flatten()
            .chain(images)
            .collect()
    }
}

impl<'a> JobView<'a> {
    fn of((attempt, holder): (&'a AttemptName, &'a Holder), containers: Option<&'a ContainerUse>) -> Self {
        Self {
            job: holder.job.id,
            server: &holder.job.server,
            attempt,
            granted: holder.granted,
            closing: holder.closing.is_some(),
            image: containers.and_then(|used| used.images.get(attempt)).map(String::as_str),
        }
    }
}

/// A job and its order.
#[derive(Debug, Serialize)]
pub(super) struct OrderedView<'a> {
    job: u64,
    server: &'a str,
    image: &'a str,
    services: &'a [Arc<str>],
}

impl<'a> OrderedView<'a> {
    pub(super) fn of(job: &'a JobKey, order: &'a Order) -> Self {
        Self { job: job.id, server: &job.server, image: &order.image, services: &order.services }
    }
}

/// Instances that serve come first, those on their way out last.
pub(super) fn rank(phase: &Phase) -> u8 {
    match phase {
        Phase::Ready => 0,
        Phase::Checking => 1,
        Phase::Launching => 2,
        Phase::Suspended { .. } if phase.is_resuming() => 3,
        Phase::Suspended { .. } => 4,
        Phase::Cleaning => 5,
        Phase::OutOfService { .. } => 6,
        Phase::Draining { .. } => 7,
    }
}

/// The reason for which an instance is in its phase, if there is more to say.
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

/// A sentence about the trust domain of an instance, beyond the name of its project or namespace.
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
