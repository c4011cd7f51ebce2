//! The status of a pool, for scripts.
//!
//! Field names are stable: a field may be added, none is renamed or removed within a major version. Moments are
//! RFC 3339 in UTC; fields that end in `_s` are whole seconds.

use serde::Serialize;
use serde_json::Value;

use super::links::LinkView;
use super::model::{ActivePolicy, InstanceView, KeeperStatus, OfferingView, Overview, Suspension, Waiting};
use crate::cli::when::{When, rfc3339};
use crate::core::instance::Phase;
use crate::core::report::{Note, WaitingOn};
use crate::core::time::Stamp;

/// One pool.
#[derive(Debug, Serialize)]
pub(super) struct PoolJson {
    pool: String,
    at: String,
    /// Recorded instances in any phase.
    instance_count: u32,
    slots_in_use: u32,
    /// `max_instances` × `capacity_per_instance`.
    slots: u32,
    /// Slots that a job could take immediately.
    idle: u32,
    idle_target: u32,
    policy: Option<PolicyJson>,
    keeper: KeeperJson,
    /// When the operator drained the pool.
    drained_since: Option<String>,
    /// Set while launches are backing off or paused after failures.
    launch_backoff: Option<LaunchBackoffJson>,
    /// What else blocks launches.
    launch_blocked_by: Option<WaitingForJson>,
    /// In order of preference; empty if the provider has only one way to launch.
    offerings: Vec<OfferingJson>,
    instances: Vec<InstanceJson>,
    waiting: Vec<WaitingJson>,
    notes: Vec<NoteJson>,
}

#[derive(Debug, Serialize)]
struct PolicyJson {
    /// Which `[[pool.NAME.policy]]`, from 1; null: the default.
    entry: Option<usize>,
    periods: Vec<String>,
    timezone: Option<String>,
    /// When another entry becomes active; null: not within eight days.
    until: Option<String>,
    idle_count: u32,
    idle_time_s: u64,
    scale_factor: f64,
    scale_factor_limit: u32,
    max_instances: u32,
    capacity_per_instance: u32,
    /// Null: no limit.
    max_use_count: Option<u32>,
}

#[derive(Debug, Serialize)]
struct KeeperJson {
    /// Null: not known.
    runs: Option<bool>,
    last_pass: Option<String>,
    next_pass: Option<String>,
}

#[derive(Debug, Serialize)]
struct LaunchBackoffJson {
    until: String,
    /// True after `breaker_failures` in a row; `pool resume` resumes launches.
    paused: bool,
    failure: String,
}

#[derive(Debug, Serialize)]
struct OfferingJson {
    offering: String,
    /// Why launches skip it, since when and until when; null: it is available.
    unavailable: Option<UnavailableJson>,
}

#[derive(Debug, Serialize)]
struct UnavailableJson {
    text: String,
    /// The class of the failure and the provider's message.
    failure: String,
    refused: String,
    /// In a row.
    times: u32,
    until: String,
}

#[derive(Debug, Serialize)]
struct InstanceJson {
    instance: String,
    /// `launching`, `checking`, `ready`, `cleaning`, `out-of-service` or `draining`.
    phase: &'static str,
    since: String,
    for_s: u64,
    created: String,
    jobs: Vec<JobJson>,
    served: u32,
    /// Null: no limit.
    uses_left: Option<u32>,
    capacity: u32,
    bound_to: Option<String>,
    reason: Option<String>,
    /// What the provider reports beyond its status.
    detail: Option<String>,
    /// The offering it was launched from, if the provider names any.
    offering: Option<String>,
    /// The command that returns it to service.
    remedy: Option<String>,
    /// Only with `--wide`: its links, by slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<Vec<LinkJson>>,
}

/// The process that holds the connection of a job slot.
#[derive(Debug, Serialize)]
struct LinkJson {
    /// Which job slot of the instance, from 1.
    slot: u32,
    pid: Option<u32>,
    /// `connecting`, `idle`, `shell-waits`, `busy`, `closing` or `unresponsive`; figures are null in the last two.
    state: String,
    connected: Option<String>,
    connected_for_s: Option<u64>,
    /// In microseconds.
    round_trip_us: Option<u64>,
    /// Memory of its own, in bytes.
    memory_bytes: Option<u64>,
    /// Number of stages that it has run.
    stages: Option<u64>,
}

#[derive(Debug, Serialize)]
struct JobJson {
    job: u64,
    server: String,
    attempt: String,
    granted: String,
    /// Its attempt is closed, but its last call is still running.
    closing: bool,
}

#[derive(Debug, Serialize)]
struct WaitingJson {
    /// From 1.
    position: usize,
    job: u64,
    server: String,
    project: String,
    attempt: String,
    requested_at: String,
    for_s: u64,
    deadline: String,
    waiting_for: WaitingForJson,
}

/// What a job or a launch waits for.
#[derive(Debug, Serialize)]
struct WaitingForJson {
    /// `boot`, `limit`, `room`, `launching`, `rate`, `backoff`, `paused`, `no-offering`, `cleaning`, `drained`, `moved`,
    /// `too-long`, `no-host` or `next-pass`.
    kind: String,
    text: String,
    instance: Option<String>,
    until: Option<String>,
}

#[derive(Debug, Serialize)]
struct NoteJson {
    /// `list-failed`, `list-incomplete`, `owner-conflict`, `over-limit`, `calls-failing`, `suspect`, `unavailable`,
    /// `boot-failed`, `config-invalid` or `moved`.
    kind: String,
    text: String,
}

pub(super) fn json(seen: &Overview<'_>, when: &When) -> PoolJson {
    let launches = seen.report.and_then(|r| r.launches.as_ref());
    PoolJson {
        pool: seen.pool.to_string(),
        at: rfc3339(when.now()),
        instance_count: seen.state.alive(),
        slots_in_use: seen.in_use,
        slots: seen.slots,
        idle: seen.idle,
        idle_target: seen.idle_target,
        policy: seen.policy.as_ref().map(policy),
        keeper: KeeperJson {
            runs: match seen.keeper {
                KeeperStatus::Runs => Some(true),
                KeeperStatus::Absent => Some(false),
                KeeperStatus::Unknown(_) => None,
            },
            last_pass: seen.report.map(|r| rfc3339(r.at)),
            next_pass: seen.report.and_then(|r| r.next).map(rfc3339),
        },
        drained_since: seen.state.drained.map(rfc3339),
        launch_backoff: seen.suspensions.iter().find_map(standstill),
        launch_blocked_by: launches.map(|on| waits_on(on, super::model::on_what(on, seen.state, when))),
        offerings: seen.offerings.iter().map(offering).collect(),
        instances: seen.instances.iter().map(|each| instance(each, seen, when)).collect(),
        waiting: seen.waiting.iter().map(|each| waiting(each, when)).collect(),
        notes: seen.report.into_iter().flat_map(|r| &r.notes).map(note).collect(),
    }
}

fn policy(force: &ActivePolicy<'_>) -> PolicyJson {
    let (policy, idle) = (force.policy, force.idle);
    PolicyJson {
        entry: force.entry.map(|(index, _)| index + 1),
        periods: force.entry.map(|(_, text)| text.periods.clone()).unwrap_or_default(),
        timezone: force.entry.map(|(_, text)| text.timezone.clone()),
        until: force.until.map(rfc3339),
        idle_count: idle.idle_count,
        idle_time_s: idle.idle_time.as_secs(),
        scale_factor: idle.scale_factor,
        scale_factor_limit: idle.scale_factor_limit,
        max_instances: policy.max_instances,
        capacity_per_instance: policy.capacity_per_instance,
        max_use_count: policy.max_use_count,
    }
}

fn standstill(halt: &Suspension) -> Option<LaunchBackoffJson> {
    match halt {
        Suspension::Drained { .. } => None,
        Suspension::Paused { until, failure, .. } => {
            Some(LaunchBackoffJson { until: rfc3339(*until), paused: true, failure: failure.to_string() })
        }
        Suspension::Backoff { until, failure } => {
            Some(LaunchBackoffJson { until: rfc3339(*until), paused: false, failure: failure.to_string() })
        }
    }
}

fn offering(seen: &OfferingView<'_>) -> OfferingJson {
    let passed_over = seen.unavailable.as_ref().map(|passed| UnavailableJson {
        text: passed.to_string(),
        failure: passed.refusal.failure.to_string(),
        refused: rfc3339(passed.refusal.at),
        times: passed.refusal.times,
        until: rfc3339(passed.until),
    });
    OfferingJson { offering: seen.offering.to_string(), unavailable: passed_over }
}

fn instance(seen: &InstanceView<'_>, pool: &Overview<'_>, when: &When) -> InstanceJson {
    let instance = seen.instance;
    let links = pool.links.map(|survey| survey.of(&instance.id).iter());
    let jobs = instance.holders.iter().map(|(attempt, holder)| JobJson {
        job: holder.job.id,
        server: holder.job.server.to_string(),
        attempt: attempt.to_string(),
        granted: rfc3339(holder.granted),
        closing: holder.closing.is_some(),
    });
    InstanceJson {
        instance: instance.id.to_string(),
        phase: phase(&instance.phase),
        since: rfc3339(instance.since),
        for_s: when.now().since(instance.since).as_secs(),
        created: rfc3339(instance.created),
        jobs: jobs.collect(),
        served: instance.uses,
        uses_left: instance.uses_left,
        capacity: instance.capacity,
        bound_to: instance.domain.as_ref().map(ToString::to_string),
        reason: seen.reason.clone(),
        detail: seen.detail.map(str::to_owned),
        offering: instance.offering().map(ToString::to_string),
        remedy: seen.remedy.clone(),
        links: links.map(|links| links.map(|found| link(&LinkView::of(found), when)).collect()),
    }
}

fn link(link: &LinkView<'_>, when: &When) -> LinkJson {
    let since = link.connected.map(|age| when.before(age));
    LinkJson {
        slot: link.slot,
        pid: link.pid,
        state: link.state.replace(' ', "-"),
        connected: since.map(rfc3339),
        connected_for_s: link.connected.map(|time| time.as_secs()),
        round_trip_us: link.figures.and_then(|figures| figures.round_trip_us),
        memory_bytes: link.figures.and_then(|figures| figures.memory),
        stages: link.figures.map(|figures| figures.stages),
    }
}

/// One word without a space.
fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::OutOfService { .. } => "out-of-service",
        _ => phase.word(),
    }
}

fn waiting(seen: &Waiting<'_>, when: &When) -> WaitingJson {
    let reservation = seen.reservation;
    WaitingJson {
        position: seen.position,
        job: reservation.job.key.id,
        server: reservation.job.key.server.to_string(),
        project: reservation.job.project.to_string(),
        attempt: reservation.attempt.to_string(),
        requested_at: rfc3339(reservation.requested_at),
        for_s: when.now().since(reservation.requested_at).as_secs(),
        deadline: rfc3339(reservation.deadline()),
        waiting_for: waits_on(&seen.reason, seen.text.clone()),
    }
}

fn waits_on(on: &WaitingOn, text: String) -> WaitingForJson {
    let until: Option<Stamp> = match on {
        WaitingOn::Rate { until }
        | WaitingOn::Backoff { until, .. }
        | WaitingOn::Paused { until, .. }
        | WaitingOn::NoOffering { until, .. } => Some(*until),
        _ => None,
    };
    let instance = match on {
        WaitingOn::Boot { instance } | WaitingOn::Room { instance } | WaitingOn::Cleaning { instance } => {
            Some(instance.to_string())
        }
        _ => None,
    };
    WaitingForJson { kind: tag(on, "waiting_for"), text, instance, until: until.map(rfc3339) }
}

fn note(note: &Note) -> NoteJson {
    NoteJson { kind: tag(note, "note"), text: note.to_string() }
}

/// The word that names the variant in the report's file; one vocabulary for both.
pub(crate) fn tag(value: &impl Serialize, field: &str) -> String {
    let value = serde_json::to_value(value).ok();
    let word = value.as_ref().and_then(|v| v.get(field)).and_then(Value::as_str);
    word.unwrap_or_default().to_owned()
}
