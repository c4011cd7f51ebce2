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
use greenroom_core::ids::{AttemptName, InstanceId, OfferingName, PoolName};
use greenroom_core::instance::Instance;
use greenroom_core::job::Reservation;
use greenroom_core::plan::backoff::{self, LaunchGate};
use greenroom_core::policy::{IdlePolicy, Policy};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Note, Report, WaitingOn};
use greenroom_core::time::{Pretty, Stamp};
use greenroom_providers::qemu::store_use::StoreStatus;
use greenroom_ssh::link::Survey;
use serde::{Serialize, Serializer};

use super::instance::{InstanceView, OrderedView, rank};
use super::links;
use crate::cli::fields::{self, tag};
use crate::cli::read_model::KeeperStatus;
use crate::cli::when::When;

/// The record of a pool, as far as its status shows it.
#[derive(Debug, Clone, Copy)]
pub struct StatusInput<'a> {
    pub pool: &'a PoolName,
    pub state: &'a PoolState,
    /// The report of the last pass.
    pub report: Option<&'a Report>,
    pub keeper: &'a KeeperStatus,
    /// The status of its links; `None`: they were not queried, and are not shown.
    pub links: Option<&'a Survey>,
    /// The use of containers; `None`: the pool runs no jobs in containers, as far as known.
    pub containers: Option<&'a ContainerUse>,
}

/// The use of containers in a pool.
#[derive(Debug, Default)]
pub struct ContainerUse {
    /// The jobs that run in containers; `None`: the configuration does not say so now, or cannot be read.
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
    /// The jobs that run in containers: `image`, those that name one, or `always`. Null: none.
    pub(super) containers: Option<&'static str>,
    /// The engine of these containers. Null: there are none.
    pub(super) container_engine: Option<&'static str>,
    /// The image store that the configuration names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_store: Option<&'a StoreStatus>,
    /// The moment when the operator drained the pool.
    #[serde(serialize_with = "fields::moment")]
    pub(super) drained_since: Option<Stamp>,
    /// Set while launches are backing off or paused after failures.
    pub(super) launch_backoff: Option<LaunchBackoff>,
    /// Another cause that blocks launches.
    pub(super) launch_blocked_by: Option<WaitingFor<'a>>,
    /// The offerings in order of preference; empty if the provider has only one way to launch.
    pub(super) offerings: Vec<OfferingView<'a>>,
    /// The instances: those that serve come first, those on their way out last.
    pub(super) instances: Vec<InstanceView<'a>>,
    pub(super) waiting: Vec<WaitingView<'a>>,
    pub(super) notes: Vec<NoteView<'a>>,
    /// The trust domains that the pool's static hosts serve; null: it has none.
    pub(super) hosts: Option<HostsView>,
    /// The links of the pool's instances, in one line; only with `--wide`.
    #[serde(skip)]
    pub(super) links: Option<String>,
}

/// The active policy.
#[derive(Debug, Serialize)]
pub(super) struct PolicyView<'a> {
    /// The number of the active `[[pool.NAME.policy]]`, from 1; null: the default.
    pub(super) entry: Option<usize>,
    pub(super) periods: &'a [String],
    pub(super) timezone: Option<&'a str>,
    /// The moment when another entry becomes active; null: not within eight days.
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
    /// The number of jobs that an instance may serve; null: no limit.
    pub(super) max_use_count: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(super) struct KeeperView<'a> {
    /// True if a keeper is running; null: not known.
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
    /// The number of failures in a row.
    #[serde(skip)]
    pub(crate) failures: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct OfferingView<'a> {
    offering: &'a OfferingName,
    /// The reason for which launches skip the offering, since when and until when; null: it is available.
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
    /// The number of refusals in a row.
    times: u32,
    #[serde(serialize_with = "fields::moment")]
    until: Stamp,
}

#[derive(Debug, Serialize)]
pub(super) struct WaitingView<'a> {
    /// The position in the queue, from 1.
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
    /// The launch that was ordered for the job alone; such a job gets an instance of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<OrderedView<'a>>,
}

/// The cause for which a job or a launch waits.
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
        let now = when.now();
        let in_use = state.in_use();
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
        let text = unavailable.to_string();
        let refusal = unavailable.refusal;
        let failure = refusal.failure;
        let refused = refusal.at;
        let times = refusal.times;
        Self { text, failure, refused, times, until: unavailable.until }
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// The reason, and the moment when launches try the offering again.
    pub(crate) fn until_tried(&self, when: &When) -> String {
        format!("{}, next try {}", self.text, when.left(self.until))
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

/// The static hosts of a pool, taken together.
#[derive(Debug, Serialize)]
pub(crate) struct HostsView {
    pub(crate) kind: HostKind,
    count: usize,
    /// The number of hosts that have a trust domain now.
    bound: usize,
    pub(crate) text: String,
}

/// The trust domains that hosts may serve, by the account that cleans them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HostKind {
    AnyDomain,
    FirstDomain,
}

/// The static hosts of a pool and the trust domains that they serve; `None`: the pool has no static hosts.
pub(crate) fn hosts(state: &PoolState) -> Option<HostsView> {
    let hosts: Vec<_> = state.instances.values().filter(|i| i.is_static()).collect();
    let policy = state.policy.as_ref().filter(|_| !hosts.is_empty())?;
    let count = hosts.len();
    let bound = hosts.iter().filter(|host| host.domain.is_some()).count();
    let (kind, text) = if policy.clean_unbinds {
        (HostKind::AnyDomain, "each serves any trust domain after it was cleaned".to_owned())
    } else {
        let text = format!("each stays with the trust domain of its first job, {bound} of {count} are bound");
        (HostKind::FirstDomain, text)
    };
    Some(HostsView { kind, count, bound, text })
}

/// The cause for which a job waits, and its order.
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

/// The cause for which a job waits, and until when or how long that usually takes.
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

/// A week has every weekday once; another day covers them all after a change of the clocks, too.
const MINUTES: u64 = 8 * 24 * 60;

/// The first minute in which another entry of `policy` is active; `None`: not within eight days.
pub(super) fn until(policy: &Policy, now: Stamp) -> Option<Stamp> {
    if policy.schedules.is_empty() {
        return None;
    }
    let (_, here) = policy.in_force(now);
    let into_minute = Duration::from_millis(now.wall_ms.rem_euclid(60_000).unsigned_abs());
    (1..=MINUTES)
        .map(|minute| now.plus(Duration::from_mins(minute).saturating_sub(into_minute)))
        .find(|at| policy.in_force(*at).1 != here)
}

#[cfg(test)]
mod tests {
    use greenroom_core::policy::{IdlePolicy, ScheduledIdle};
    use greenroom_core::schedule::{Schedule, ScheduleText};
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;

    fn policy(periods: &[&str]) -> Policy {
        let periods = periods.iter().map(|p| (*p).to_owned()).collect();
        let when = Schedule::parse(ScheduleText { periods, timezone: "Europe/Berlin".into() }).unwrap();
        let entry = ScheduledIdle { when, idle: IdlePolicy { idle_count: 3, ..IdlePolicy::default() } };
        Policy { schedules: vec![entry], ..Policy::default() }
    }

    fn at(utc: &str) -> Stamp {
        let wall: jiff::Timestamp = utc.parse().unwrap();
        Stamp { wall_ms: wall.as_millisecond(), manager: ManagerId(1), boot: BootId(1), uptime_ms: 1_000_000 }
    }

    fn until_utc(periods: &[&str], now: &str) -> Option<String> {
        until(&policy(periods), at(now)).map(crate::cli::when::rfc3339)
    }

    #[test]
    fn a_period_ends_with_its_last_minute_and_the_next_begins_after_the_weekend() {
        let office = ["* 9-17 * * mon-fri"];
        // A Friday.
        assert_eq!(until_utc(&office, "2026-11-20T10:03:07.5Z").unwrap(), "2026-11-20T17:00:00Z");
        assert_eq!(until_utc(&office, "2026-11-20T17:00:00Z").unwrap(), "2026-11-23T08:00:00Z");
    }

    #[test]
    fn what_never_changes_has_no_end() {
        assert_eq!(until_utc(&["* * * * *"], "2026-11-20T10:03:07Z"), None);
        assert_eq!(until(&Policy::default(), at("2026-11-20T10:03:07Z")), None);
    }
}
