//! What a pass found and why it did what it did, as data.
//!
//! Written after each pass, read by waiting calls, `pool status` and `explain`. Nothing knows more than it does.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::availability;
use super::failure::Failure;
use super::ids::{AttemptName, InstanceId, OfferingName};
use super::instance::DrainReason;
use super::time::{Pretty, Stamp, millis};

/// The outcome of one pass over a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When the pass planned.
    pub at: Stamp,
    /// The state's revision that the plan was made from.
    pub revision: u64,
    /// Idle slots wanted, and the index of the policy entry that says so (`None`: the default).
    pub idle_target: u32,
    pub schedule: Option<usize>,
    /// Which row of the reconcile table applied to each instance.
    pub rows: Vec<(InstanceId, u8)>,
    /// What the provider says of an instance beyond its status.
    #[serde(default)]
    pub details: Vec<(InstanceId, String)>,
    /// Why each waiting job waits.
    pub waiting: Vec<(AttemptName, WaitingOn)>,
    /// What stands in the way of launching, if something was wanted.
    pub launches: Option<WaitingOn>,
    /// What an operator should know.
    pub notes: Vec<Note>,
    /// When the keeper looks again by itself.
    pub next: Option<Stamp>,
}

impl Report {
    /// What the provider says of an instance beyond its status.
    pub fn detail(&self, instance: &InstanceId) -> Option<&str> {
        self.details.iter().find(|(id, _)| id == instance).map(|(_, detail)| detail.as_str())
    }

    /// Nothing found yet.
    pub fn new(at: Stamp, revision: u64) -> Self {
        Self {
            at,
            revision,
            idle_target: 0,
            schedule: None,
            rows: Vec::new(),
            details: Vec::new(),
            waiting: Vec::new(),
            launches: None,
            notes: Vec::new(),
            next: None,
        }
    }
}

/// Why a job or a wish is not served yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "waiting_for", rename_all = "kebab-case")]
pub enum WaitingOn {
    /// An instance is on its way for it.
    Boot { instance: InstanceId },
    /// All instances are in use and the pool is at its limit.
    Limit { in_use: u32, max_instances: u32, ahead: u32 },
    /// The pool is at its limit; this instance is on its way out and makes room.
    Room { instance: InstanceId },
    /// Launches are limited for now, by `max_launching` or by what boots at once on this machine; one follows.
    Launching { under_way: u32, at_most: u32 },
    /// `launches_per_minute` is used up.
    Rate { until: Stamp },
    /// The last launch failed; the next try is due then.
    Backoff { until: Stamp, failure: Failure },
    /// Launches keep failing: the pool pauses.
    Paused { until: Stamp, failures: u32, failure: Failure },
    /// All `count` offerings were refused lately; this one may be asked again first, at `until`.
    NoOffering { until: Stamp, offering: OfferingName, failure: Failure, count: u32 },
    /// An instance is being cleaned for it.
    Cleaning { instance: InstanceId },
    /// The operator stopped the pool.
    Drained { since: Stamp },
    /// The state directory was copied or moved.
    Moved { problem: String },
    /// No instance lives long enough for the job.
    TooLong {
        #[serde(with = "millis")]
        timeout: Duration,
        #[serde(with = "millis")]
        max_lifetime: Duration,
    },
    /// The provider launches nothing and no host is free.
    NoHost,
    /// The next pass has not looked yet.
    NextPass,
}

/// What an operator should know about a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "kebab-case")]
pub enum Note {
    /// The provider's list failed or was incomplete.
    ListFailed {
        failure: Failure,
    },
    ListIncomplete,
    /// Instances with our owner's tag that another manager made: somebody works with a copy of this state.
    OwnerConflict {
        instances: Vec<InstanceId>,
    },
    /// More instances exist than `max_instances` allows; we made none of the surplus.
    OverLimit {
        alive: u32,
        max_instances: u32,
    },
    /// A call to the provider about this instance keeps failing.
    Trouble {
        instance: InstanceId,
        failure: Failure,
        until: Stamp,
    },
    /// An instance in use looks gone; its job decides.
    Suspect {
        instance: InstanceId,
        /// Why it ended, where the provider knows.
        #[serde(default)]
        cause: Option<String>,
    },
    /// A fixed host cannot be used now; it is back by itself when that has changed.
    Unavailable {
        instance: InstanceId,
        reason: String,
    },
    /// A boot came to nothing; told for some minutes.
    BootFailed(FailedBoot),
    /// The configuration is invalid; the last good one is in force.
    ConfigInvalid {
        problem: String,
    },
    /// The state directory was copied or moved.
    Moved {
        problem: String,
    },
}

/// A launched instance that never became ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedBoot {
    pub instance: InstanceId,
    /// When it was given up.
    pub at: Stamp,
    pub reason: DrainReason,
    /// Why it ended, where the provider knows: a sentence without its subject.
    #[serde(default)]
    pub cause: Option<String>,
    /// The last lines of its console, made fit for messages.
    pub console: Vec<String>,
}

impl FailedBoot {
    /// What became of it, in one sentence.
    pub fn sentence(&self) -> String {
        match (&self.reason, &self.cause) {
            (DrainReason::Stopped, Some(cause)) => format!("{} {cause}", self.instance),
            (why, _) => format!("{} did not come up: {why}", self.instance),
        }
    }
}

impl fmt::Display for WaitingOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boot { instance } => write!(f, "{instance} is booting"),
            Self::Limit { in_use, max_instances, ahead } => {
                write!(f, "all {in_use} instances in use, limit {max_instances} (`max_instances`)")?;
                match ahead {
                    0 => Ok(()),
                    1 => f.write_str(", 1 job ahead"),
                    n => write!(f, ", {n} jobs ahead"),
                }
            }
            Self::Room { instance } => write!(f, "{instance} is being removed and makes room"),
            Self::Launching { under_way, at_most } => {
                write!(f, "{under_way} launches under way, {at_most} at a time at most")
            }
            Self::Rate { .. } => f.write_str("`launches_per_minute` is used up for now"),
            Self::Backoff { failure, .. } => write!(f, "the last launch failed ({failure})"),
            Self::Paused { failures, failure, .. } => {
                write!(f, "the pool pauses after {failures} failed launches in a row (last: {failure})")
            }
            Self::NoOffering { offering, failure, count: 1, .. } => {
                write!(f, "{offering}: {}", availability::said(failure))
            }
            Self::NoOffering { offering, failure, count, .. } => {
                write!(f, "all {count} offerings were refused; {offering}: {}", availability::said(failure))
            }
            Self::Cleaning { instance } => write!(f, "{instance} is being cleaned"),
            Self::Drained { .. } => {
                f.write_str("the pool was drained by the operator (`greenroom pool resume` ends it)")
            }
            Self::Moved { problem } => f.write_str(problem),
            Self::TooLong { timeout, max_lifetime } => write!(
                f,
                "the job's timeout of {} is longer than an instance lives ({}, `max_lifetime`)",
                Pretty(*timeout),
                Pretty(*max_lifetime),
            ),
            Self::NoHost => f.write_str("no host is free"),
            Self::NextPass => f.write_str("the keeper has not looked yet"),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ListFailed { failure } => write!(f, "the provider's list failed ({failure})"),
            Self::ListIncomplete => {
                f.write_str("the provider's list was incomplete: it proves no absence, nothing is replaced")
            }
            Self::OwnerConflict { instances } => {
                f.write_str(
                    "another manager works with a copy of this state directory, reaping stands still: ",
                )?;
                for (at, instance) in instances.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{instance}")?;
                }
                f.write_str(" carry our owner and no generation of ours")
            }
            Self::OverLimit { alive, max_instances } => {
                write!(f, "{alive} instances are there, limit {max_instances} (`max_instances`)")
            }
            Self::Unavailable { instance, reason: why } => write!(f, "{instance} gets no job for now: {why}"),
            Self::Trouble { instance, failure, .. } => {
                write!(f, "calls about {instance} keep failing ({failure})")
            }
            Self::BootFailed(boot) => {
                f.write_str(&boot.sentence())?;
                match boot.console.last() {
                    Some(line) => write!(f, "; its console ends with `{line}`"),
                    None => Ok(()),
                }
            }
            Self::Suspect { instance, cause: None } => {
                write!(f, "{instance} looks gone while it is in use; its job decides")
            }
            Self::Suspect { instance, cause: Some(cause) } => {
                write!(f, "{instance} has ended while it is in use ({cause}); its job decides")
            }
            Self::ConfigInvalid { problem } => {
                write!(f, "the configuration is invalid, the last good one is in force: {problem}")
            }
            Self::Moved { problem } => f.write_str(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::failure::ErrorClass;
    use crate::core::notation::{NOW, instance};

    #[test]
    fn each_reason_to_wait_is_a_sentence_without_our_insides() {
        let failure = || Failure { class: ErrorClass::Quota, message: "vCPU".to_owned() };
        let one = || instance("h1");
        for (on, text) in [
            (WaitingOn::Boot { instance: one() }, "h1 is booting"),
            (
                WaitingOn::Limit { in_use: 3, max_instances: 4, ahead: 2 },
                "all 3 instances in use, limit 4 (`max_instances`), 2 jobs ahead",
            ),
            (WaitingOn::Room { instance: one() }, "h1 is being removed and makes room"),
            (WaitingOn::Launching { under_way: 2, at_most: 2 }, "2 launches under way, 2 at a time at most"),
            (WaitingOn::Rate { until: NOW }, "`launches_per_minute` is used up for now"),
            (
                WaitingOn::Backoff { until: NOW, failure: failure() },
                "the last launch failed (quota reached: vCPU)",
            ),
            (
                WaitingOn::Paused { until: NOW, failures: 5, failure: failure() },
                "the pool pauses after 5 failed launches in a row (last: quota reached: vCPU)",
            ),
            (
                WaitingOn::NoOffering {
                    until: NOW,
                    offering: OfferingName::new("zone-b small spot"),
                    failure: Failure {
                        class: ErrorClass::NoCapacity { scope: "zone-b".to_owned() },
                        message: "no such host is free".to_owned(),
                    },
                    count: 3,
                },
                "all 3 offerings were refused; zone-b small spot: out of stock",
            ),
            (
                WaitingOn::NoOffering {
                    until: NOW,
                    offering: OfferingName::new("zone-b small"),
                    failure: failure(),
                    count: 1,
                },
                "zone-b small: quota reached: vCPU",
            ),
            (WaitingOn::Cleaning { instance: one() }, "h1 is being cleaned"),
            (
                WaitingOn::Drained { since: NOW },
                "the pool was drained by the operator (`greenroom pool resume` ends it)",
            ),
            (WaitingOn::Moved { problem: "moved".to_owned() }, "moved"),
            (
                WaitingOn::TooLong {
                    timeout: Duration::from_hours(2),
                    max_lifetime: Duration::from_hours(1),
                },
                "the job's timeout of 2h is longer than an instance lives (1h, `max_lifetime`)",
            ),
            (WaitingOn::NoHost, "no host is free"),
            (WaitingOn::NextPass, "the keeper has not looked yet"),
        ] {
            assert_eq!(on.to_string(), text);
            let json = serde_json::to_string(&on).unwrap();
            assert_eq!(serde_json::from_str::<WaitingOn>(&json).unwrap(), on);
        }
    }

    #[test]
    fn each_note_is_a_sentence_and_outlives_its_file() {
        let failure = || Failure { class: ErrorClass::Denied, message: "no key".to_owned() };
        let one = || instance("h1");
        let boot = |console: &[&str]| FailedBoot {
            instance: one(),
            at: NOW,
            reason: DrainReason::NeverReady,
            cause: None,
            console: console.iter().map(|line| (*line).to_owned()).collect(),
        };
        for (note, text) in [
            (Note::ListFailed { failure: failure() }, "the provider's list failed (denied: no key)"),
            (
                Note::ListIncomplete,
                "the provider's list was incomplete: it proves no absence, nothing is replaced",
            ),
            (
                Note::OwnerConflict { instances: vec![one(), instance("h2")] },
                "another manager works with a copy of this state directory, reaping stands still: h1, h2 carry our \
                 owner and no generation of ours",
            ),
            (
                Note::OverLimit { alive: 3, max_instances: 2 },
                "3 instances are there, limit 2 (`max_instances`)",
            ),
            (
                Note::Trouble { instance: one(), failure: failure(), until: NOW },
                "calls about h1 keep failing (denied: no key)",
            ),
            (
                Note::Suspect { instance: one(), cause: None },
                "h1 looks gone while it is in use; its job decides",
            ),
            (
                Note::Suspect { instance: one(), cause: Some("it powered itself off".to_owned()) },
                "h1 has ended while it is in use (it powered itself off); its job decides",
            ),
            (Note::BootFailed(boot(&[])), "h1 did not come up: not ready within `launch_timeout`"),
            (
                Note::BootFailed(boot(&["booting", "no root"])),
                "h1 did not come up: not ready within `launch_timeout`; its console ends with `no root`",
            ),
            (
                Note::BootFailed(FailedBoot {
                    reason: DrainReason::Stopped,
                    cause: Some("did not boot: the guest did not come up within 30 s".to_owned()),
                    ..boot(&[])
                }),
                "h1 did not boot: the guest did not come up within 30 s",
            ),
            (Note::Moved { problem: "moved".to_owned() }, "moved"),
        ] {
            assert_eq!(note.to_string(), text);
            let json = serde_json::to_string(&note).unwrap();
            assert_eq!(serde_json::from_str::<Note>(&json).unwrap(), note);
        }
    }
}
