//! Every metric: name, type, labels, meaning and source. docs/metrics.md has the same ones: a test compares the two.
//!
//! Names and labels follow Prometheus' guidelines: base units, moments as Unix time instead of ages, `_total` for counters.

use crate::instance::{Instance, Phase};
use crate::report::{Note, WaitingOn};

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
    Histogram,
    /// Labels whose value is always 1.
    Info,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
    pub source: Source,
}

/// The source of a metric, which decides what resets a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The program itself.
    Program,
    /// The recorded state of the pool. Counters go on across restarts.
    State,
    /// The report of the keeper's last pass.
    Report,
    /// Counted in the keeper's process and published in its report. Restarts at 0 with the keeper.
    Keeper,
    /// Files, locks and sockets of the state directory.
    Directory,
}

impl Source {
    /// The word for the documentation.
    pub fn word(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::State => "state",
            Self::Report => "report",
            Self::Keeper => "keeper",
            Self::Directory => "directory",
        }
    }
}

impl Kind {
    /// The word for the documentation.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

macro_rules! metrics {
    ($($metric:ident $kind:ident $name:literal [$($label:literal),*] $source:ident $help:literal;)*) => {
        $(pub const $metric: Metric = Metric {
            name: concat!("greenroom_", $name),
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
            source: Source::$source,
        };)*

        /// All of them, in the order of the output and of the documentation.
        pub const ALL: &[Metric] = &[$($metric),*];
    };
}

metrics! {
    BUILD Info "build_info" ["version", "commit", "features"] Program "Version of the program.";
    KEEPER_UP Gauge "keeper_up" [] Directory "1 if a keeper is running.";
    KEEPER_STARTS Counter "keeper_starts_total" [] Directory "Starts of a keeper, in the background or as a service.";
    KEEPER_CRASHES Counter "keeper_crashes_total" [] Directory "Starts of a keeper whose predecessor had not exited by itself.";

    POOL Info "pool_info" ["pool", "provider"] Program "The pools and their providers.";
    POOL_READABLE Gauge "pool_readable" ["pool"] State "1 if the recorded state of the pool can be read. The pool's other metrics are missing if not.";
    POOL_DRAINED Gauge "pool_drained" ["pool"] State "1 if an operator drained the pool.";
    SLOTS Gauge "slots" ["pool", "state"] State "Slots of recorded instances, by what they do.";
    SLOTS_LIMIT Gauge "slots_limit" ["pool"] State "Highest number of slots: `max_instances` × `capacity_per_instance`.";
    IDLE_SLOTS_TARGET Gauge "idle_slots_target" ["pool"] Report "Slots that the policy keeps idle.";
    INSTANCES Gauge "instances" ["pool", "phase"] State "Recorded instances, by phase.";
    INSTANCES_LIMIT Gauge "instances_limit" ["pool"] State "`max_instances`.";
    HOSTS_OUT_OF_SERVICE Counter "hosts_out_of_service_total" ["pool"] State "How often a static host went out of service.";

    JOBS_WAITING Gauge "jobs_waiting" ["pool"] State "Jobs that wait for a slot.";
    LONGEST_WAIT Gauge "longest_wait_seconds" ["pool"] State "Longest time that a waiting job has waited so far; 0 if no job waits.";
    JOBS_BLOCKED Gauge "jobs_blocked" ["pool", "reason"] Report "Waiting jobs, by what they wait for.";
    JOBS_STARTED Counter "jobs_started_total" ["pool", "start"] State "Slots given to jobs: from an idle instance (`warm`), after a boot (`booted`), after another job or a cleaning (`freed`), or after a stopped instance was resumed (`resumed`).";
    JOB_WAIT Histogram "job_wait_seconds" ["pool"] State "How long jobs waited for their slot.";
    JOBS_WITHDRAWN Counter "jobs_withdrawn_total" ["pool"] State "Jobs whose request ended without a slot.";
    GRANTS_REJECTED Counter "grants_rejected_total" ["pool"] State "Slots that a job returned, because it found the instance unusable. The job is counted again with its next slot.";

    BOOTS Counter "boots_total" ["pool", "offering", "result"] State "Launches by result: `ready`, `failed` (never ready) or `refused` (nothing was created).";
    BOOT_TIME Histogram "boot_duration_seconds" ["pool", "offering"] State "Time from the launch until the instance was ready.";
    LAUNCH_FAILURES Counter "launch_failures_total" ["pool", "class"] State "Launches that the provider refused, by class of the failure.";
    FAILURES_IN_A_ROW Gauge "launch_failures_in_a_row" ["pool"] State "Failed launches since an instance last became ready.";
    BREAKER_OPEN Gauge "breaker_open" ["pool"] State "1 while the circuit breaker pauses launches.";
    LAUNCHES_DELAYED Gauge "launches_delayed" ["pool"] State "1 while launches wait after a failure, the breaker's pause included.";
    OFFERINGS Gauge "offerings" ["pool", "state"] State "Offerings of the provider: `available`, and `unavailable` after a refusal.";
    DRAINED Counter "instances_drained_total" ["pool", "reason"] State "Instances that were taken out of use, by reason.";

    LAST_PASS Gauge "last_pass_timestamp_seconds" ["pool"] Report "When the last reconcile pass ran.";
    NEXT_PASS Gauge "next_pass_timestamp_seconds" ["pool"] Report "When the next reconcile pass is due. Missing if none is scheduled.";
    LAST_LIST Gauge "last_list_timestamp_seconds" ["pool"] Report "When the provider last began a complete list of the instances.";
    NOTES Gauge "notes" ["pool", "note"] Report "Notes of the last pass for operators, by kind.";
    API_CALLS Counter "provider_api_calls_total" ["pool", "provider", "result"] Keeper "Calls to a cloud's API: `ok`, `failed`, `throttled`, or `postponed` because the account was throttled.";
    ORPHANS Gauge "orphaned_resources" ["pool", "source"] Report "Orphaned resources at the last check: instances by a reconcile pass (`pass`), all resources by `pool leaks` (`leaks`).";
    ORPHANS_CHECKED Gauge "orphans_checked_timestamp_seconds" ["pool", "source"] Report "When orphaned resources were last listed.";
    LINKS Gauge "links" ["pool"] Directory "Open links: processes that keep a connection to an instance.";
    DISK_RESERVE Gauge "disk_reserve" ["pool"] Directory "1 if the pool's reserve of disk space is there. Without it, the disk is or was full.";
}

// The values of labels that come from the core's enums.

/// The values of the label `phase`.
pub(super) const PHASES: [&str; 9] = [
    "launching",
    "checking",
    "ready",
    "suspending",
    "stopped",
    "resuming",
    "cleaning",
    "out-of-service",
    "draining",
];

/// The values of the label `state` of slots.
pub(super) const SLOT_STATES: [&str; 11] = [
    "in-use",
    "idle",
    "unavailable",
    "launching",
    "checking",
    "suspending",
    "stopped",
    "resuming",
    "cleaning",
    "out-of-service",
    "draining",
];

/// The values of the label `class` of failures.
pub(super) const CLASSES: [&str; 8] =
    ["not-found", "no-capacity", "quota", "denied", "invalid", "throttled", "transient", "unknown"];

/// The values of the label `reason` of drained instances.
pub(super) const DRAIN_REASONS: [&str; 22] = [
    "used-up",
    "surplus",
    "expired",
    "made-room",
    "by-operator",
    "never-ready",
    "not-ready",
    "stopped",
    "vanished",
    "broken",
    "unresponsive",
    "rebooted",
    "unaccounted",
    "launched-after-refusal",
    "announced",
    "begins-no-stage",
    "failed-check",
    "unfit",
    "fails-early",
    "abandoned",
    "not-suspended",
    "not-resumed",
];

/// The values of the label `reason` of waiting jobs.
pub(super) const BLOCKED: [&str; 22] = [
    "boot",
    "limit",
    "room",
    "launching",
    "ordered-launches",
    "own-launch",
    "rate",
    "backoff",
    "paused",
    "no-offering",
    "resume",
    "cleaning",
    "unreachable",
    "stage-check",
    "drained",
    "moved",
    "disk",
    "elsewhere",
    "too-long",
    "no-host",
    "bound",
    "next-pass",
];

/// The values of the label `note`.
pub(super) const NOTE_LABELS: [&str; 22] = [
    "list-failed",
    "list-incomplete",
    "owner-conflict",
    "copies",
    "elsewhere",
    "location-unknown",
    "over-limit",
    "calls-failing",
    "image-not-pulled",
    "suspect",
    "announced",
    "attempt-unreadable",
    "list-implausible",
    "host-suspected",
    "unavailable",
    "cannot-suspend",
    "own-key",
    "suspensions-fail",
    "boot-failed",
    "unfit",
    "config-invalid",
    "moved",
];

pub(super) fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::OutOfService { .. } => "out-of-service",
        Phase::Launching
        | Phase::Checking
        | Phase::Ready
        | Phase::Suspended { .. }
        | Phase::Cleaning
        | Phase::Draining { .. } => phase.word(),
    }
}

/// The state of an instance's free slots, as a label.
pub(super) fn free(instance: &Instance) -> &'static str {
    match instance.phase {
        Phase::Ready if instance.usable() > 0 => "idle",
        Phase::Ready => "unavailable",
        Phase::Launching
        | Phase::Checking
        | Phase::Suspended { .. }
        | Phase::Cleaning
        | Phase::OutOfService { .. }
        | Phase::Draining { .. } => phase(&instance.phase),
    }
}

pub(super) fn blocked(on: &WaitingOn) -> &'static str {
    match on {
        WaitingOn::Boot { .. } => "boot",
        WaitingOn::Limit { .. } => "limit",
        WaitingOn::Room { .. } => "room",
        WaitingOn::Launching { .. } => "launching",
        WaitingOn::OrderedLaunches { .. } => "ordered-launches",
        WaitingOn::OwnLaunch { .. } => "own-launch",
        WaitingOn::Rate { .. } => "rate",
        WaitingOn::Backoff { .. } => "backoff",
        WaitingOn::Paused { .. } => "paused",
        WaitingOn::NoOffering { .. } => "no-offering",
        WaitingOn::Resume { .. } => "resume",
        WaitingOn::Cleaning { .. } => "cleaning",
        WaitingOn::Unreachable { .. } => "unreachable",
        WaitingOn::StageCheck { .. } => "stage-check",
        WaitingOn::Recheck { .. } => "recheck",
        WaitingOn::Drained { .. } => "drained",
        WaitingOn::Moved { .. } => "moved",
        WaitingOn::Disk { .. } => "disk",
        WaitingOn::Elsewhere { .. } => "elsewhere",
        WaitingOn::TooLong { .. } => "too-long",
        WaitingOn::Obstructed { .. } => "obstructed",
        WaitingOn::HostCheck { .. } => "host-check",
        WaitingOn::NoHost { .. } => "no-host",
        WaitingOn::Bound { .. } => "bound",
        WaitingOn::NextPass => "next-pass",
    }
}

pub(super) fn note(note: &Note) -> &'static str {
    match note {
        Note::ListFailed { .. } => "list-failed",
        Note::ListIncomplete => "list-incomplete",
        Note::OwnerConflict { .. } => "owner-conflict",
        Note::Copies { .. } => "copies",
        Note::Elsewhere { .. } => "elsewhere",
        Note::LocationUnknown { .. } => "location-unknown",
        Note::OverLimit { .. } => "over-limit",
        Note::CallsFailing { .. } => "calls-failing",
        Note::ImageNotPulled { .. } => "image-not-pulled",
        Note::Suspect { .. } => "suspect",
        Note::Announced { .. } => "announced",
        Note::AttemptUnreadable { .. } => "attempt-unreadable",
        Note::ListImplausible { .. } => "list-implausible",
        Note::HostSuspected { .. } => "host-suspected",
        Note::Unavailable { .. } => "unavailable",
        Note::CannotSuspend => "cannot-suspend",
        Note::OwnKey(_) => "own-key",
        Note::SuspensionsFail { .. } => "suspensions-fail",
        Note::BootFailed(_) => "boot-failed",
        Note::Unfit { .. } => "unfit",
        Note::ConfigInvalid { .. } => "config-invalid",
        Note::Moved { .. } => "moved",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::counters::drain_word;
    use crate::golden;

    #[test]
    fn names_and_labels_follow_the_guidelines() {
        let names: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len(), "each name once");
        let is_fine = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        for Metric { name, kind, labels, help, .. } in ALL {
            assert!(is_fine(name) && labels.iter().all(|label| is_fine(label)), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert_eq!(name.ends_with("_info"), *kind == Kind::Info, "{name}");
            assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}");
            for unbounded in ["job", "instance", "attempt", "project", "image", "le"] {
                assert!(!labels.contains(&unbounded), "{name} has a label `{unbounded}`");
            }
        }
    }

    #[test]
    fn the_reasons_to_drain_are_those_of_the_journal() {
        let reasons = golden::drain_reasons();
        assert_eq!(reasons.len(), DRAIN_REASONS.len());
        for reason in reasons {
            let word = drain_word(&reason);
            assert!(DRAIN_REASONS.contains(&word), "{word}");
            assert!(serde_json::to_string(&reason).expect("it is written").contains(&format!("\"{word}\"")));
        }
    }
}
