//! The values of labels that come from the core's enums.

use crate::instance::{Instance, Phase};
use crate::report::{Note, WaitingOn};

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
pub(super) const NOTES: [&str; 22] = [
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

/// What the free slots of an instance are.
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
    use super::*;
    use crate::counters::drain_word;
    use crate::golden;

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
