//! The status of a pool: what `pool status` shows, and its `--json`.
//!
//! Field names are stable: a field may be added, none is renamed or removed within a major version. Moments are
//! RFC 3339 in UTC; fields that end in `_s` are whole seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_core::availability::Unavailable;
use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::settings::Mode;
use greenroom_core::failure::Failure;
use greenroom_core::ids::{AttemptName, InstanceId, Location, OfferingName, PoolName, TrustDomain};
use greenroom_core::images::ImageFact;
use greenroom_core::instance::{Holder, Instance, Phase};
use greenroom_core::plan::backoff::{self, LaunchGate};
use greenroom_core::policy::{IdlePolicy, Policy};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Note, Report, WaitingOn};
use greenroom_core::reservation::Reservation;
use greenroom_core::time::Stamp;
use greenroom_providers::qemu::store_use::StoreStatus;
use greenroom_ssh::link::Survey;
use serde::{Serialize, Serializer};

use super::links::{self, LinkView};
use super::ordered::OrderedView;
use super::reason::{HostsView, bound, bring_back, hosts, job_on_what, on_what, reason};
use super::until::until;
use crate::cli::fields::{self, tag};
use crate::cli::when::When;

/// Whether a keeper is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeeperStatus {
    Runs,
    Absent,
    /// It could not be determined, and why.
    Unknown(String),
}

/// What was read of a pool.
#[derive(Debug, Clone, Copy)]
pub struct StatusInput<'a> {
    pub pool: &'a PoolName,
    pub state: &'a PoolState,
    /// The report of the last pass.
    pub report: Option<&'a Report>,
    pub keeper: &'a KeeperStatus,
    /// The status of its links; `None`: they were not queried, and are not shown.
    pub links: Option<&'a Survey>,
    /// `None`: the pool runs no jobs in containers, as far as known.
    pub containers: Option<&'a ContainerUse>,
}

/// How a pool uses containers.
#[derive(Debug, Default)]
pub struct ContainerUse {
    /// `None`: the configuration does not say so now, or cannot be read.
    pub mode: Option<Mode>,
    pub engine: ContainerEngine,
    /// The images of the jobs that hold slots.
    pub images: BTreeMap<AttemptName, String>,
    /// The image store that its instances share.
    pub image_store: Option<StoreStatus>,
}

/// One pool.
#[derive(Debug, Serialize)]
pub(super) struct PoolView<'a> {
    pub(super) pool: &'a PoolName,
    #[serde(serialize_with = "fields::moment")]
    pub(super) at: Stamp,
    /// Recorded instances in any phase.
    pub(super) instance_count: u32,
    pub(super) slots_in_use: u32,
    /// `max_instances` × `capacity_per_instance`.
    pub(super) slots: u32,
    /// Slots that a job could take immediately.
    pub(super) idle: u32,
    pub(super) idle_target: u32,
    pub(super) policy: Option<PolicyView<'a>>,
    pub(super) keeper: KeeperView<'a>,
    /// Which jobs run in containers: `image`, those that name one, or `always`. Null: none.
    pub(super) containers: Option<&'static str>,
    /// The engine of these containers. Null: there are none.
    pub(super) container_engine: Option<&'static str>,
    /// The image store that the configuration names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_store: Option<&'a StoreStatus>,
    /// When the operator drained the pool.
    #[serde(serialize_with = "fields::moment")]
    pub(super) drained_since: Option<Stamp>,
    /// Set while launches are backing off or paused after failures.
    pub(super) launch_backoff: Option<LaunchBackoff>,
    /// What else blocks launches.
    pub(super) launch_blocked_by: Option<WaitingFor<'a>>,
    /// In order of preference; empty if the provider has only one way to launch.
    pub(super) offerings: Vec<OfferingView<'a>>,
    /// Those that serve come first, those on their way out last.
    pub(super) instances: Vec<InstanceView<'a>>,
    pub(super) waiting: Vec<WaitingView<'a>>,
    pub(super) notes: Vec<NoteView<'a>>,
    /// Which trust domains its static hosts serve; null: it has none.
    pub(super) hosts: Option<HostsView>,
    /// Only with `--wide`: the links of its instances, in one line.
    #[serde(skip)]
    pub(super) links: Option<String>,
}

/// The active policy.
#[derive(Debug, Serialize)]
pub(super) struct PolicyView<'a> {
    /// Which `[[pool.NAME.policy]]`, from 1; null: the default.
    pub(super) entry: Option<usize>,
    pub(super) periods: &'a [String],
    pub(super) timezone: Option<&'a str>,
    /// When another entry becomes active; null: not within eight days.
    #[serde(serialize_with = "fields::moment")]
    pub(super) until: Option<Stamp>,
    pub(super) idle_count: u32,
    /// Instances that are kept suspended.
    pub(super) idle_stopped: u32,
    #[serde(serialize_with = "fields::seconds")]
    pub(super) idle_time_s: Duration,
    pub(super) scale_factor: f64,
    pub(super) scale_factor_limit: u32,
    pub(super) max_instances: u32,
    pub(super) capacity_per_instance: u32,
    /// Null: no limit.
    pub(super) max_use_count: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(super) struct KeeperView<'a> {
    /// Null: not known.
    #[serde(serialize_with = "runs")]
    pub(super) runs: &'a KeeperStatus,
    #[serde(serialize_with = "fields::moment")]
    pub(super) last_pass: Option<Stamp>,
    #[serde(serialize_with = "fields::moment")]
    pub(super) next_pass: Option<Stamp>,
}

/// Launches are delayed after failures.
#[derive(Debug, Serialize)]
pub(crate) struct LaunchBackoff {
    #[serde(serialize_with = "fields::moment")]
    pub(crate) until: Stamp,
    /// True after `breaker_failures` in a row; `pool resume` resumes launches.
    pub(crate) paused: bool,
    /// The last one.
    #[serde(serialize_with = "fields::text")]
    pub(crate) failure: Failure,
    /// How many in a row.
    #[serde(skip)]
    pub(crate) failures: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct OfferingView<'a> {
    offering: &'a OfferingName,
    /// Why launches skip it, since when and until when; null: it is available.
    pub(crate) unavailable: Option<UnavailableView>,
}

#[derive(Debug, Serialize)]
pub(crate) struct UnavailableView {
    text: String,
    /// The class of the failure and the provider's message.
    #[serde(serialize_with = "fields::text")]
    failure: Failure,
    #[serde(serialize_with = "fields::moment")]
    refused: Stamp,
    /// In a row.
    times: u32,
    #[serde(serialize_with = "fields::moment")]
    until: Stamp,
}

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
    /// Null: no limit.
    pub(super) uses_left: Option<u32>,
    capacity: u32,
    pub(super) bound_to: Option<&'a TrustDomain>,
    /// More about it, in a sentence.
    #[serde(skip)]
    bound: Option<String>,
    reason: Option<String>,
    /// What the provider reports beyond its status.
    detail: Option<&'a str>,
    /// The offering it was launched from, if the provider names any.
    offering: Option<&'a OfferingName>,
    /// Where it was launched: the kind, and the account and the region, or the project.
    location: Option<&'a Location>,
    #[serde(skip)]
    is_elsewhere: bool,
    /// Ready, and yet given no jobs, or missing from the provider's list.
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
    /// Only with `--wide`: its links, by slot.
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
    /// When it was last compared with the registry's.
    #[serde(serialize_with = "fields::moment")]
    checked: Stamp,
}

impl<'a> ImageView<'a> {
    fn of(fact: &'a ImageFact) -> Self {
        let (image, checked) = (&fact.image, fact.checked_at());
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
    /// Its attempt is closed, but its last call is still running.
    closing: bool,
    /// The image of its container; null: it runs on the instance itself.
    image: Option<&'a str>,
}

#[derive(Debug, Serialize)]
pub(super) struct WaitingView<'a> {
    /// From 1.
    pub(super) position: usize,
    pub(super) job: u64,
    server: &'a str,
    pub(super) project: &'a str,
    attempt: &'a AttemptName,
    #[serde(serialize_with = "fields::moment")]
    requested_at: Stamp,
    #[serde(serialize_with = "fields::seconds")]
    pub(super) for_s: Duration,
    #[serde(serialize_with = "fields::moment")]
    pub(super) deadline: Stamp,
    pub(super) waiting_for: WaitingFor<'a>,
    /// What it ordered; such a job gets an instance of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<OrderedView<'a>>,
}

/// What a job or a launch waits for.
#[derive(Debug, Serialize)]
pub(super) struct WaitingFor<'a> {
    /// `boot`, `limit`, `room`, `launching`, `ordered-launches`, `own-launch`, `rate`, `backoff`, `paused`, `no-offering`,
    /// `resume`, `cleaning`, `obstructed`, `unreachable`, `host-check`, `stage-check`, `recheck`, `drained`, `moved`, `disk`,
    /// `elsewhere`, `too-long`, `no-host`, `bound` or `next-pass`.
    #[serde(serialize_with = "waiting_kind")]
    pub(super) kind: &'a WaitingOn,
    pub(super) text: String,
    instance: Option<&'a InstanceId>,
    #[serde(serialize_with = "fields::moment")]
    until: Option<Stamp>,
}

#[derive(Debug, Serialize)]
pub(super) struct NoteView<'a> {
    /// `list-failed`, `list-incomplete`, `owner-conflict`, `copies`, `elsewhere`, `location-unknown`, `over-limit`,
    /// `calls-failing`, `image-not-pulled`, `cannot-suspend`, `own-key`, `suspensions-fail`, `suspect`, `attempt-unreadable`, `list-implausible`, `host-suspected`, `unavailable`, `boot-failed`, `config-invalid`
    /// or `moved`.
    #[serde(serialize_with = "note_kind")]
    pub(super) kind: &'a Note,
    pub(super) text: String,
}

fn runs<S: Serializer>(keeper: &KeeperStatus, to: S) -> Result<S::Ok, S::Error> {
    let runs = match keeper {
        KeeperStatus::Runs => Some(true),
        KeeperStatus::Absent => Some(false),
        KeeperStatus::Unknown(_) => None,
    };
    runs.serialize(to)
}

fn waiting_kind<S: Serializer>(on: &WaitingOn, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&tag(on, "waiting_for"))
}

fn note_kind<S: Serializer>(note: &Note, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&tag(note, "note"))
}

impl<'a> PoolView<'a> {
    pub(super) fn of(input: StatusInput<'a>, when: &When) -> Self {
        let StatusInput { pool, state, report, keeper, links, containers } = input;
        let (now, in_use) = (when.now(), state.in_use());
        let policy = state.policy.as_deref();
        let in_force = policy.map(|policy| policy.in_force(now));
        let mut recorded: Vec<&Instance> = state.instances.values().map(AsRef::as_ref).collect();
        recorded.sort_by_key(|instance| rank(&instance.phase));
        let waiting = state.waiting.values().enumerate();
        Self {
            pool,
            at: now,
            instance_count: state.alive(),
            slots_in_use: in_use,
            slots: policy.map_or(0, |p| p.max_instances.saturating_mul(p.capacity_per_instance)),
            idle: recorded.iter().map(|instance| instance.usable()).sum(),
            idle_target: in_force.map_or(0, |(idle, _)| idle.target(in_use)),
            policy: policy.zip(in_force).map(|(policy, in_force)| PolicyView::of(policy, in_force, now)),
            keeper: KeeperView {
                runs: keeper,
                last_pass: report.map(|report| report.at),
                next_pass: report.and_then(|report| report.next),
            },
            container_engine: containers.filter(|used| used.mode.is_some()).map(|used| used.engine.program()),
            containers: containers.and_then(|used| used.mode).map(|mode| match mode {
                Mode::Image => "image",
                Mode::Always => "always",
            }),
            image_store: containers.and_then(|used| used.image_store.as_ref()),
            drained_since: state.drained,
            launch_backoff: LaunchBackoff::of(state, now),
            launch_blocked_by: report
                .and_then(|report| report.launches.as_ref())
                .map(|on| WaitingFor::of(on, state, when)),
            offerings: offerings(state, now),
            waiting: waiting.map(|(at, waits)| WaitingView::of(at + 1, waits, &input, when)).collect(),
            notes: report
                .into_iter()
                .flat_map(|report| &report.notes)
                .map(|note| NoteView { kind: note, text: note.to_string() })
                .collect(),
            hosts: hosts(state),
            links: links.map(|survey| links::summary(recorded.iter().flat_map(|known| survey.of(&known.id)))),
            instances: recorded.iter().map(|known| InstanceView::of(known, &input, when)).collect(),
        }
    }
}

impl<'a> PolicyView<'a> {
    fn of(policy: &'a Policy, (idle, index): (&IdlePolicy, Option<usize>), now: Stamp) -> Self {
        let schedule = index.and_then(|index| policy.schedules.get(index)).map(|entry| entry.when.text());
        Self {
            entry: index.map(|index| index + 1),
            periods: schedule.map(|schedule| schedule.periods.as_slice()).unwrap_or_default(),
            timezone: schedule.map(|schedule| schedule.timezone.as_str()),
            until: until(policy, now),
            idle_count: idle.idle_count,
            idle_stopped: policy.idle_stopped,
            idle_time_s: idle.idle_time,
            scale_factor: idle.scale_factor,
            scale_factor_limit: idle.scale_factor_limit,
            max_instances: policy.max_instances,
            capacity_per_instance: policy.capacity_per_instance,
            max_use_count: policy.max_use_count,
        }
    }
}

/// Instances that serve come first, those on their way out last.
fn rank(phase: &Phase) -> u8 {
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

impl LaunchBackoff {
    pub(crate) fn of(state: &PoolState, now: Stamp) -> Option<Self> {
        let policy = state.policy.as_deref()?;
        let (paused, until, failure) = match backoff::judge(&state.launches, &policy.timing, now) {
            LaunchGate::Paused { until, failure, .. } => (true, until, failure),
            LaunchGate::Backoff { until, failure } => (false, until, failure),
            LaunchGate::Open | LaunchGate::Trial { .. } => return None,
        };
        Some(Self { until, paused, failure, failures: state.launches.failures })
    }
}

/// The offerings of a pool, in order of preference.
pub(crate) fn offerings(state: &PoolState, now: Stamp) -> Vec<OfferingView<'_>> {
    let timing = state.policy.as_deref().map(|policy| &policy.timing);
    let unavailable = timing.into_iter().flat_map(|timing| state.availability.unavailable(timing, now));
    // Both are in the same order.
    let mut unavailable = unavailable.peekable();
    let view = |offering| OfferingView {
        offering,
        unavailable: unavailable.next_if(|next| next.offering == *offering).map(UnavailableView::of),
    };
    state.availability.offerings().iter().map(view).collect()
}

impl OfferingView<'_> {
    pub(crate) fn name(&self) -> &str {
        self.offering.as_str()
    }
}

impl UnavailableView {
    fn of(unavailable: Unavailable) -> Self {
        let (text, refusal) = (unavailable.to_string(), unavailable.refusal);
        let (failure, refused, times) = (refusal.failure, refusal.at, refusal.times);
        Self { text, failure, refused, times, until: unavailable.until }
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Why, and when launches try it again.
    pub(crate) fn until_tried(&self, when: &When) -> String {
        format!("{}, next try {}", self.text, when.left(self.until))
    }
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

    /// What is shown of it in sentences.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let (reason, ordered) = (self.reason.clone(), self.ordered_text.clone());
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

impl<'a> WaitingView<'a> {
    fn of(position: usize, waits: &'a Reservation, input: &StatusInput<'a>, when: &When) -> Self {
        let on = input.report.and_then(|report| report.waiting_on(&waits.attempt));
        let on = on.unwrap_or(&WaitingOn::NextPass);
        let waiting_for = WaitingFor::of(on, input.state, when);
        Self {
            position,
            job: waits.job.key.id,
            server: &waits.job.key.server,
            project: &waits.job.project,
            attempt: &waits.attempt,
            requested_at: waits.requested_at,
            for_s: when.now().since(waits.requested_at),
            deadline: waits.deadline(),
            waiting_for: WaitingFor { text: job_on_what(waits, on, input.state, when), ..waiting_for },
            order: waits.job.order.as_ref().map(|order| OrderedView::of(&waits.job.key, order)),
        }
    }
}

impl<'a> WaitingFor<'a> {
    fn of(on: &'a WaitingOn, state: &PoolState, when: &When) -> Self {
        let until = match on {
            WaitingOn::Rate { until }
            | WaitingOn::OwnLaunch { until, .. }
            | WaitingOn::Backoff { until, .. }
            | WaitingOn::Paused { until, .. }
            | WaitingOn::NoOffering { until, .. } => Some(*until),
            _ => None,
        };
        let instance = match on {
            WaitingOn::Boot { instance }
            | WaitingOn::Room { instance }
            | WaitingOn::Cleaning { instance }
            | WaitingOn::Unreachable { instance, .. }
            | WaitingOn::Obstructed { instance, .. }
            | WaitingOn::HostCheck { instance }
            | WaitingOn::Resume { instance }
            | WaitingOn::Recheck { instance }
            | WaitingOn::StageCheck { instance, .. } => Some(instance),
            _ => None,
        };
        Self { kind: on, text: on_what(on, state, when), instance, until }
    }
}
