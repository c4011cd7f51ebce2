//! The outcome of a reconcile pass, and the reasons, as data.
//!
//! Written after each pass; waiting calls, `pool status` and `explain` read it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::availability;
use super::failure::Failure;
use super::ids::{AttemptName, InstanceId, Location, OfferingName};
use super::instance::{DrainReason, Instance};
use super::obstacle::{Obstacle, UnusableHosts};
use super::own_key::OwnKey;
use super::time::{Pretty, Stamp, millis};
use super::unbegun::CheckKind;

/// The outcome of one pass over a pool: the reasons in a [`Plan`](crate::plan::Plan).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Time at which the pass planned.
    pub at: Stamp,
    /// The state's revision that the plan was made from.
    pub revision: u64,
    /// The target of idle slots, and the index of the policy entry that sets it (`None`: the default).
    pub idle_target: u32,
    pub schedule: Option<usize>,
    /// The row of the reconcile table that applied to each instance.
    pub rows: Vec<(InstanceId, u8)>,
    /// The provider's reports about instances beyond their status.
    #[serde(default)]
    pub details: Vec<(InstanceId, String)>,
    /// The reasons why instances that exist get no job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<(InstanceId, Obstacle)>,
    /// Images that are being pulled in advance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pulls: Vec<(InstanceId, Arc<str>)>,
    /// The reason why each waiting job waits.
    pub waiting: Vec<(AttemptName, WaitingOn)>,
    /// The reason that blocks launches, if one is needed.
    pub launches: Option<WaitingOn>,
    /// Notes for operators.
    pub notes: Vec<Note>,
    /// Time at which the next pass is due.
    pub next: Option<Stamp>,
    /// Time at which the last complete list of the provider's instances began, also of an earlier keeper's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Stamp>,
    /// Calls to the API of the pool's cloud since the keeper built its provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_calls: Option<ApiCalls>,
}

/// Calls to a cloud's API, by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiCalls {
    pub ok: u64,
    pub failed: u64,
    pub throttled: u64,
    /// Calls that were not made, because the cloud had just throttled the account.
    pub postponed: u64,
}

impl Report {
    /// The provider's report about an instance beyond its status.
    pub fn detail(&self, instance: &InstanceId) -> Option<&str> {
        self.details.iter().find(|(id, _)| id == instance).map(|(_, detail)| detail.as_str())
    }

    /// The sentence about why an instance gets no job.
    pub fn obstacle(&self, instance: &InstanceId) -> Option<String> {
        let (id, obstacle) = self.obstacles.iter().find(|(id, _)| id == instance)?;
        Some(obstacle.sentence(id))
    }

    /// The image that is pulled on an instance in advance.
    pub fn pull_on(&self, instance: &InstanceId) -> Option<&str> {
        self.pulls.iter().find(|(id, _)| id == instance).map(|(_, image)| &**image)
    }

    /// True if the pass listed another location than the instance's.
    pub fn is_elsewhere(&self, instance: &Instance) -> bool {
        self.elsewhere().is_some_and(|here| instance.is_outside(here))
    }

    /// The location that the pass listed, if the pool has instances in another one.
    pub fn elsewhere(&self) -> Option<&Location> {
        self.notes
            .iter()
            .find_map(|note| if let Note::Elsewhere { here, .. } = note { Some(here) } else { None })
    }

    /// The failure of the pass to list the provider's instances, if it failed.
    pub fn list_failure(&self) -> Option<&Failure> {
        self.notes
            .iter()
            .find_map(|note| if let Note::ListFailed { failure } = note { Some(failure) } else { None })
    }

    /// The reason why a waiting job waits.
    pub fn waiting_on(&self, attempt: &AttemptName) -> Option<&WaitingOn> {
        self.waiting.iter().find(|(waits, _)| waits == attempt).map(|(_, on)| on)
    }

    /// An empty report.
    pub fn new(at: Stamp, revision: u64) -> Self {
        Self {
            at,
            revision,
            idle_target: 0,
            schedule: None,
            rows: Vec::new(),
            details: Vec::new(),
            obstacles: Vec::new(),
            pulls: Vec::new(),
            waiting: Vec::new(),
            launches: None,
            notes: Vec::new(),
            next: None,
            listed: None,
            api_calls: None,
        }
    }
}

/// The reason why a job or a launch waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "waiting_for", rename_all = "kebab-case")]
pub enum WaitingOn {
    /// An instance is booting for it.
    Boot { instance: InstanceId },
    /// All instances are in use and the pool is at its limit.
    Limit { in_use: u32, max_instances: u32, ahead: u32 },
    /// The pool is at its limit; this instance is being terminated and makes room.
    Room { instance: InstanceId },
    /// As many launches are in progress as [`max_launching`](crate::policy::Policy::max_launching) or the runner host
    /// allows; one follows.
    Launching { under_way: u32, at_most: u32 },
    /// As many launches that jobs ordered are in progress as their half of
    /// [`max_launching`](crate::policy::Policy::max_launching) allows. The last one is kept for a trust domain that has
    /// none.
    OrderedLaunches { under_way: u32, at_most: u32 },
    /// The launch of the job's own instance was refused; the next try is due then. Other launches do not wait for it.
    OwnLaunch { until: Stamp, failure: Failure },
    /// The limit [`launches_per_minute`](crate::policy::Policy::launches_per_minute) is reached.
    Rate { until: Stamp },
    /// The last launch failed; the next try is due then.
    Backoff { until: Stamp, failure: Failure },
    /// Launches fail repeatedly: the pool is paused.
    Paused { until: Stamp, failures: u32, failure: Failure },
    /// All `count` offerings are unavailable; this one is retried first, at `until`.
    NoOffering { until: Stamp, offering: OfferingName, failure: Failure, count: u32 },
    /// A stopped instance is being resumed for it.
    Resume { instance: InstanceId },
    /// An instance is being cleaned for it.
    Cleaning { instance: InstanceId },
    /// The instance that is to serve it exists and cannot be used yet.
    Obstructed { instance: InstanceId, obstacle: Obstacle },
    /// An instance that may serve it does not respond at present.
    Unreachable {
        instance: InstanceId,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// A static host that may serve it is checked.
    HostCheck { instance: InstanceId },
    /// An instance that may serve it began no stage of its last jobs; the keeper checks it.
    StageCheck {
        instance: InstanceId,
        #[serde(default, skip_serializing_if = "CheckKind::is_stages")]
        kind: CheckKind,
    },
    /// An instance that may serve it is checked after its last job.
    Recheck { instance: InstanceId },
    /// An operator drained the pool.
    Drained { since: Stamp },
    /// The state directory was copied or moved.
    Moved { problem: String },
    /// Launches cannot be recorded, as on a full disk.
    Disk { problem: String },
    /// The pool has instances in another location than `here`, where the provider now launches.
    Elsewhere { instances: u32, location: Location, here: Location },
    /// No instance lives long enough for the job.
    TooLong {
        #[serde(with = "millis")]
        timeout: Duration,
        #[serde(with = "millis")]
        max_lifetime: Duration,
    },
    /// The provider launches nothing and no static host is free.
    NoHost {
        /// The hosts that no job can get, if there are any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unusable: Option<UnusableHosts>,
    },
    /// Each of the pool's `hosts` static hosts is bound to another trust domain for good; `instance` is one of them.
    Bound { hosts: u32, instance: InstanceId },
    /// The next pass is pending.
    NextPass,
}

/// A note for operators about a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "kebab-case")]
pub enum Note {
    /// The provider's list failed or was incomplete.
    ListFailed {
        failure: Failure,
    },
    ListIncomplete,
    /// A complete list lacks all `missing` instances that were ready, and so many idle ones of them answer: none is replaced.
    ListImplausible {
        missing: u32,
        answering: u32,
    },
    /// Instances with this owner's tag that another keeper launched: a copy of this state directory is in use.
    OwnerConflict {
        instances: Vec<InstanceId>,
    },
    /// Instances with this owner's tags that no launch created, by the provider's names: a person copied an instance.
    Copies {
        names: Vec<String>,
    },
    /// The pool has instances in another location than `here`, which the provider now lists: they are kept, and nothing
    /// is launched.
    Elsewhere {
        instances: u32,
        location: Location,
        here: Location,
    },
    /// The location of a list without these instances is unknown: they are not forgotten.
    LocationUnknown {
        instances: u32,
    },
    /// More instances exist than [`max_instances`](crate::policy::Policy::max_instances) allows, although this keeper
    /// launched none above it.
    OverLimit {
        alive: u32,
        max_instances: u32,
    },
    /// Calls to the provider about this instance fail repeatedly.
    CallsFailing {
        instance: InstanceId,
        failure: Failure,
        until: Stamp,
    },
    /// An image of `images_warm` was not pulled on so many instances; one of them tries again at `until`.
    ImageNotPulled {
        image: Arc<str>,
        instances: u32,
        failure: Failure,
        until: Stamp,
    },
    /// An instance in use seems to be gone; the job's own connection decides.
    Suspect {
        instance: InstanceId,
        /// The reason why the instance stopped, if the provider reports it.
        #[serde(default)]
        cause: Option<String>,
        /// True if its only job ended it by using up its memory or disk.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_job: bool,
    },
    /// The provider has announced the end of an instance in use.
    Announced {
        instance: InstanceId,
        notice: String,
    },
    /// A file of an open attempt cannot be read: its job fails at the next stage.
    AttemptUnreadable {
        attempt: AttemptName,
        problem: String,
    },
    /// So many instances do not respond that the fault may be on the runner host: none is replaced before `until`.
    HostSuspected {
        unreachable: u32,
        /// Instances that do respond.
        responding: u32,
        /// The reason why the first of them does not respond.
        reason: String,
        until: Stamp,
    },
    /// A static host cannot be used at present; it returns to service when it responds.
    Unavailable {
        instance: InstanceId,
        reason: String,
    },
    /// The target [`idle_stopped`](crate::policy::Policy::idle_stopped) is set, and the provider says that it cannot
    /// suspend instances.
    CannotSuspend,
    /// The provider's plugin makes a key for logins, instead of using the pool's.
    OwnKey(OwnKey),
    /// Instances were not suspended, or not resumed: at `until`, one more is suspended.
    SuspensionsFail {
        /// Number of failures in a row.
        failures: u32,
        /// The last one.
        failure: Failure,
        until: Stamp,
    },
    /// A boot failed; reported for some minutes.
    BootFailed(FailedBoot),
    /// The check between jobs took an instance out of use; reported for some minutes.
    Unfit {
        instance: InstanceId,
        reason: String,
    },
    /// The configuration is invalid; the last valid one stays active.
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
    /// Time at which the keeper gave the boot up.
    pub at: Stamp,
    pub reason: DrainReason,
    /// The reason why the instance stopped, if the provider reports it: a sentence without its subject.
    #[serde(default)]
    pub cause: Option<String>,
    /// The last lines of its console, made fit for messages.
    pub console: Vec<String>,
}

impl FailedBoot {
    /// The failure in one sentence.
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
            Self::Room { instance } => write!(f, "{instance} is being terminated to make room"),
            Self::Launching { under_way, at_most } => {
                write!(f, "{under_way} launches in progress, limit {at_most}")
            }
            Self::OrderedLaunches { under_way, at_most } => write!(
                f,
                "{under_way} launches of instances that jobs ordered are in progress, limit {at_most} (half of \
                 `max_launching`; the last one is kept for other trust domains)"
            ),
            Self::OwnLaunch { failure, .. } => {
                write!(f, "the launch of the job's own instance was refused ({failure})")
            }
            Self::Rate { .. } => f.write_str("`launches_per_minute` is reached"),
            Self::Backoff { failure, .. } => write!(f, "the last launch failed ({failure})"),
            Self::Paused { failures, failure, .. } => {
                write!(f, "the pool is paused after {failures} failed launches in a row (last: {failure})")
            }
            Self::NoOffering { offering, failure, count: 1, .. } => {
                write!(f, "{offering}: {}", availability::summary(failure))
            }
            Self::NoOffering { offering, failure, count, .. } => {
                write!(
                    f,
                    "all {count} offerings are unavailable; {offering}: {}",
                    availability::summary(failure)
                )
            }
            Self::Resume { instance } => write!(f, "{instance} was stopped and is being resumed"),
            Self::Cleaning { instance } => write!(f, "{instance} is being cleaned"),
            Self::Obstructed { instance, obstacle } => f.write_str(&obstacle.sentence(instance)),
            Self::Unreachable { instance, reason } => {
                write!(f, "{instance} does not respond, and is checked again")?;
                if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
            }
            Self::HostCheck { instance } => write!(f, "{instance} is being checked"),
            Self::StageCheck { instance, kind: CheckKind::Stages } => {
                write!(f, "{instance} began no stages of its last jobs, and is checked")
            }
            Self::StageCheck { instance, kind: CheckKind::Engine | CheckKind::Network } => {
                write!(f, "{instance} did not start the last job's containers, and is checked")
            }
            Self::Recheck { instance } => write!(f, "{instance} is checked after its last job"),
            Self::Drained { .. } => {
                f.write_str("the operator drained the pool (`greenroom pool resume` resumes it)")
            }
            Self::Moved { problem } => f.write_str(problem),
            Self::Disk { problem } => write!(f, "no launch can be recorded: {problem}"),
            Self::Elsewhere { instances, location, here } => {
                write!(f, "{} in {location}, but launches would be in {here}", counted(*instances))
            }
            Self::TooLong { timeout, max_lifetime } => write!(
                f,
                "the job's timeout of {} exceeds the lifetime of an instance ({}, `max_lifetime`)",
                Pretty(*timeout),
                Pretty(*max_lifetime),
            ),
            Self::NoHost { unusable: None } => f.write_str("no static host is free"),
            Self::NoHost { unusable: Some(hosts) } => write!(f, "{hosts}"),
            Self::Bound { hosts: 1, instance } => {
                write!(f, "{instance}, the pool's only host, is bound to another trust domain")
            }
            Self::Bound { hosts, .. } => {
                write!(f, "all {hosts} hosts of the pool are bound to other trust domains")
            }
            Self::NextPass => f.write_str("the keeper's next reconcile pass is pending"),
        }
    }
}

/// The sentence about why an empty list is not believed.
fn list_implausible(f: &mut fmt::Formatter<'_>, missing: u32, answering: u32) -> fmt::Result {
    if missing == 1 {
        return f.write_str(
            "the provider's list lacks the only instance that was ready, but it answers: it is kept and not replaced until the \
             list has it again or it no longer answers",
        );
    }
    let answer = if answering == 1 { "answers" } else { "answer" };
    write!(
        f,
        "the provider's list lacks all {missing} instances that were ready, but {answering} of them {answer}: those are kept \
         and not replaced until the list has them again or they no longer answer"
    )
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ListFailed { failure } => {
                write!(f, "the provider's instances cannot be listed ({failure})")
            }
            Self::ListIncomplete => {
                f.write_str("the provider's list was incomplete: missing instances are not replaced")
            }
            Self::ListImplausible { missing, answering } => list_implausible(f, *missing, *answering),
            Self::OwnerConflict { instances } => {
                f.write_str(
                    "another keeper works with a copy of this state directory, and reaping is suspended: ",
                )?;
                for (at, instance) in instances.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{instance}")?;
                }
                f.write_str(" have this owner's tag but an unknown generation")
            }
            Self::Copies { names } => write!(
                f,
                "not launched by Greenroom, which never touches them, but with this owner's tags: {}",
                names.join(", ")
            ),
            Self::Elsewhere { instances, location, here } => write!(
                f,
                "{} in {location}, but the configuration and the credentials lead to {here}: Greenroom terminates, forgets \
                 and launches nothing until they lead back",
                counted(*instances)
            ),
            Self::LocationUnknown { instances } => write!(
                f,
                "{} missing from the provider's list, but the provider does not say which account it lists: Greenroom \
                 forgets none",
                counted(*instances)
            ),
            Self::OverLimit { alive, max_instances } => {
                write!(f, "{alive} instances exist, limit {max_instances} (`max_instances`)")
            }
            Self::Announced { instance, notice } => write!(f, "{instance} {notice}, while a job uses it"),
            Self::AttemptUnreadable { attempt, problem } => write!(
                f,
                "attempt `{attempt}` cannot be read ({problem}): its job fails at the next stage, and keeps its \
                 instance until the attempt ends"
            ),
            Self::Unavailable { instance, reason: why } => {
                write!(f, "{instance} gets no jobs at present: {why}")
            }
            Self::CallsFailing { instance, failure, .. } => {
                write!(f, "calls about {instance} fail repeatedly ({failure})")
            }
            Self::ImageNotPulled { image, instances: 1, failure, .. } => {
                write!(f, "image `{image}` of `images_warm` is missing on an idle instance: {failure}")
            }
            Self::ImageNotPulled { image, instances, failure, .. } => {
                write!(
                    f,
                    "image `{image}` of `images_warm` is missing on {instances} idle instances: {failure}"
                )
            }
            Self::CannotSuspend => f.write_str(
                "the provider cannot suspend instances: `idle_stopped` has no effect, and jobs without an idle instance \
                 wait for a boot",
            ),
            Self::OwnKey(own) => write!(f, "{own}"),
            Self::SuspensionsFail { failures, failure, .. } => {
                write!(f, "suspending and resuming failed {failures} times in a row (last: {failure})")
            }
            Self::BootFailed(boot) => {
                f.write_str(&boot.sentence())?;
                let last = boot.console.last();
                last.map_or(Ok(()), |line| write!(f, "; the last line of its console is `{line}`"))
            }
            Self::Unfit { instance, reason } => write!(f, "{instance} gets no more jobs: {reason}"),
            Self::HostSuspected { unreachable, responding, reason, .. } => {
                let checked = unreachable.saturating_add(*responding);
                write!(
                    f,
                    "{unreachable} of {checked} idle instances do not respond; the fault may be on the runner host, so \
                     they are kept for at most 5 minutes ({reason})"
                )
            }
            Self::Suspect { instance, cause: None, .. } => {
                write!(f, "{instance} looks gone while in use; the job's own connection decides")
            }
            Self::Suspect { instance, cause: Some(cause), .. } => {
                write!(f, "{instance} stopped while in use ({cause}); the job's own connection decides")
            }
            Self::ConfigInvalid { problem } => {
                write!(f, "the configuration is invalid, the last valid one stays active: {problem}")
            }
            Self::Moved { problem } => f.write_str(problem),
        }
    }
}

fn counted(instances: u32) -> String {
    match instances {
        1 => "1 instance is".to_owned(),
        count => format!("{count} instances are"),
    }
}

#[cfg(test)]
mod tests;
