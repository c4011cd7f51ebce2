//! One instance: its phase and its slots.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::attempt::End;
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::ids::{AttemptName, Generation, InstanceId, JobKey, Location, OfferingName, TrustDomain};
use super::images::Images;
use super::order::Ordered;
use super::policy::{Lifetime, Policy};
use super::time::{ManagerId, Stamp};
use super::unbegun::{CheckKind, Unbegun};
use crate::unbegun::EarlyFailures;

const FOUND_UNUSABLE: &str = "a job found it unusable: ";

/// A recorded instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub id: InstanceId,
    /// `None` for a static host, which was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecord>,
    pub phase: Phase,
    /// Time at which the phase began.
    pub since: Stamp,
    pub created: Stamp,
    /// Time at which the instance last became ready; an instance is assigned only in that boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Stamp>,
    /// Time at which the last resume was requested; `None`: the instance was never suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Stamp>,
    /// Time at which the last job left; `None` again after a cleaning has unbound it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Stamp>,
    /// Concurrent jobs.
    pub capacity: u32,
    /// Jobs it may still be given; `None`: no limit.
    pub uses_left: Option<u32>,
    /// Jobs that have used it.
    pub uses: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holders: BTreeMap<AttemptName, Holder>,
    /// Bound to this domain since a job of it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<TrustDomain>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The location of the launch; `None`: no list has told yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// Begin of the first of the complete lists that lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Stamp>,
    /// The failure of a launched instance that was ready and does not respond. The instance gets no job until it
    /// does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<Unreachable>,
    /// The last jobs, if it began no stage or no container of theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbegun: Option<Unbegun>,
    /// Jobs in a row that failed on it before their own scripts began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early: Option<EarlyFailures>,
    /// A job has left since the keeper last found it fit. Not a comparison of times: clocks are set back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
    /// The images that it is known to have.
    #[serde(default, skip_serializing_if = "Images::is_empty")]
    pub images: Images,
    /// The job that it was launched for; no other one gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<Arc<Ordered>>,
}

/// The first check that failed, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreachable {
    pub since: Stamp,
    pub reason: String,
}

impl Unreachable {
    /// The reason of a job that found its instance unusable.
    pub fn by_job(message: &str) -> String {
        format!("{FOUND_UNUSABLE}{message}")
    }

    /// The reason without the words that say that a job found it.
    pub fn job_words(&self) -> &str {
        self.reason.strip_prefix(FOUND_UNUSABLE).unwrap_or(&self.reason)
    }
}

/// The origin of a launched instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    pub generation: Generation,
    pub number: u32,
    /// Counts launch attempts of this instance, from 1. Part of the launch token.
    pub attempt: u32,
    /// The offering to launch; `None` if the provider names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offering: Option<OfferingName>,
    /// The instance's lifetime, as set at its launch; `None`: no limit, or launched before this was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
    pub answer: Answer,
    /// Time at which the present attempt's intent was committed.
    pub requested_at: Stamp,
}

/// The provider's answer to the present launch attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// None yet: the call is in progress, or its caller died.
    Pending,
    Accepted {
        at: Stamp,
    },
    /// The call got no answer: the instance may or may not exist.
    Unknown {
        at: Stamp,
    },
    /// The instance certainly does not exist.
    Refused {
        at: Stamp,
        failure: Failure,
    },
}

/// A job on an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub job: JobKey,
    /// The manager whose attempt it is.
    pub manager: ManagerId,
    pub granted: Stamp,
    /// The attempt is closed, but its last call is still running: the slot is not free yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closing: Option<Stamp>,
}

/// The stage in an instance's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Launch requested; not reachable yet.
    Launching,
    /// Reachable; the ready command has not passed yet. Also a static host that was ready and became unreachable.
    Checking,
    /// Serves jobs, or is idle.
    Ready,
    /// The instance is in the tier *stopped*, on its way there, or on its way back. It has no jobs.
    Suspended { step: Suspension },
    /// Being cleaned between jobs.
    Cleaning,
    /// Given no jobs until an operator returns it to service.
    OutOfService { reason: String },
    /// No new jobs; terminated when the present ones have finished.
    Draining { reason: DrainReason },
}

/// The progress of an instance of the tier *stopped*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspension {
    /// The suspension is requested.
    Suspending,
    /// A list has shown it as suspended.
    Stopped,
    /// The resumption is requested; not ready again yet.
    Resuming,
}

/// The reason why an instance is drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainReason {
    /// The instance has served its last job.
    UsedUp,
    /// Idle longer than [`idle_time`](crate::policy::IdlePolicy::idle_time), and above the policy's target.
    Surplus,
    /// Older than [`max_lifetime`](crate::policy::Policy::max_lifetime).
    Expired,
    /// A waiting job that it does not suit needs the room.
    MadeRoom,
    /// An operator drained it.
    ByOperator,
    /// The instance was not ready within [`launch_timeout`](crate::policy::Timing::launch_timeout).
    NeverReady,
    /// The ready command failed.
    NotReady { message: String },
    /// The provider has stopped it, or it died.
    Stopped,
    /// The provider no longer has it.
    Vanished,
    /// A job found it unusable.
    Broken { message: String },
    /// The instance did not respond while idle.
    Unresponsive { message: String },
    /// The runner host was rebooted: an instance that is recorded as idle may have been granted.
    Rebooted,
    /// An unrecorded attempt has run a job on it.
    Unaccounted,
    /// The provider refused the launch, but the instance exists.
    LaunchedAfterRefusal,
    /// The provider has announced its end.
    Announced { notice: String },
    /// The instance responds, and stages do not begin there.
    BeginsNoStage { message: String },
    /// The instance did not pass the keeper's check, which followed from what a job met there.
    FailedCheck { message: String },
    /// The instance failed the keeper's check between two jobs.
    Unfit { message: String },
    /// Jobs failed on it before their own scripts began, and others pass elsewhere.
    FailsEarly { message: String },
    /// The job that it was launched for needs it no longer.
    Abandoned,
    /// The instance could not be suspended.
    NotSuspended { message: String },
    /// The instance could not be resumed.
    NotResumed { message: String },
}

impl DrainReason {
    /// True if this counts as a failed launch while the instance is booting.
    pub fn is_launch_failure(&self) -> bool {
        match self {
            Self::NeverReady | Self::NotReady { .. } | Self::Stopped | Self::Vanished => true,
            Self::UsedUp
            | Self::Surplus
            | Self::Expired
            | Self::MadeRoom
            | Self::ByOperator
            | Self::Broken { .. }
            | Self::Unresponsive { .. }
            | Self::Rebooted
            | Self::Unaccounted
            | Self::LaunchedAfterRefusal
            | Self::Announced { .. }
            | Self::BeginsNoStage { .. }
            | Self::FailedCheck { .. }
            | Self::Unfit { .. }
            | Self::FailsEarly { .. }
            | Self::Abandoned
            | Self::NotSuspended { .. }
            | Self::NotResumed { .. } => false,
        }
    }

    /// True if this counts as a failed suspension while the instance is suspending or resuming.
    pub fn is_suspension_failure(&self) -> bool {
        matches!(self, Self::NotSuspended { .. } | Self::NotResumed { .. } | Self::NotReady { .. })
    }
}

impl fmt::Display for DrainReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UsedUp => f.write_str("it has served its last job"),
            Self::Surplus => f.write_str("idle for longer than `idle_time` and not needed"),
            Self::Expired => f.write_str("older than `max_lifetime`"),
            Self::MadeRoom => f.write_str("it makes room for a waiting job that it does not suit"),
            Self::ByOperator => f.write_str("drained by the operator"),
            Self::NeverReady => f.write_str("not ready within `launch_timeout`"),
            Self::NotReady { message } => write!(f, "its ready command failed: {message}"),
            Self::Stopped => f.write_str("the provider stopped it"),
            Self::Vanished => f.write_str("the provider no longer has it"),
            Self::Broken { message } => write!(f, "a job found it unusable: {message}"),
            Self::Unresponsive { message } => write!(f, "it stopped responding while idle: {message}"),
            Self::Rebooted => {
                f.write_str("the runner host was rebooted, and the record may lack the last jobs")
            }
            Self::Unaccounted => f.write_str("an unrecorded job ran on it"),
            Self::LaunchedAfterRefusal => f.write_str("its launch was refused, but it exists"),
            Self::Announced { notice } => write!(f, "it {notice}"),
            Self::BeginsNoStage { message } => write!(f, "it responds, but begins no stages: {message}"),
            Self::FailedCheck { message } => write!(f, "it did not pass the keeper's check: {message}"),
            Self::Unfit { message } => write!(f, "it failed the check between jobs: {message}"),
            Self::FailsEarly { message } => write!(
                f,
                "jobs of two projects failed on it at their start, and others pass elsewhere: {message}"
            ),
            Self::Abandoned => f.write_str("the job that it was launched for needs it no longer"),
            Self::NotSuspended { message } => write!(f, "it could not be suspended: {message}"),
            Self::NotResumed { message } => write!(f, "it could not be resumed: {message}"),
        }
    }
}

impl Phase {
    /// The one place that defines which phase may follow which.
    pub fn may_become(&self, next: &Phase) -> bool {
        use Phase::{Checking, Cleaning, Draining, Launching, OutOfService, Ready, Suspended};
        match (self, next) {
            (Launching, Checking | Draining { .. })
            | (Checking, Ready | Cleaning | OutOfService { .. } | Draining { .. })
            | (Ready, Checking | Cleaning | OutOfService { .. } | Draining { .. })
            | (Cleaning, Ready | OutOfService { .. } | Draining { .. })
            | (OutOfService { .. }, Checking | Cleaning | Draining { .. })
            | (Suspended { .. }, Draining { .. }) => true,
            (Ready, Suspended { step: next }) => *next == Suspension::Suspending,
            (Suspended { step }, Suspended { step: next }) => step.may_become(*next),
            (Suspended { step }, Ready) => *step == Suspension::Resuming,
            (Launching, Launching | Ready | Cleaning | OutOfService { .. } | Suspended { .. })
            | (Checking, Launching | Checking | Suspended { .. })
            | (Cleaning, Launching | Checking | Cleaning | Suspended { .. })
            | (Ready, Launching | Ready)
            | (OutOfService { .. }, Launching | Ready | OutOfService { .. } | Suspended { .. })
            | (Suspended { .. }, Launching | Checking | Cleaning | OutOfService { .. })
            | (Draining { .. }, _) => false,
        }
    }

    /// The name in tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Launching => "launching",
            Self::Checking => "checking",
            Self::Ready => "ready",
            Self::Suspended { step } => step.word(),
            Self::Cleaning => "cleaning",
            Self::OutOfService { .. } => "out of service",
            Self::Draining { .. } => "draining",
        }
    }

    pub fn is_stopped(&self) -> bool {
        *self == Self::Suspended { step: Suspension::Stopped }
    }

    /// True for an instance that counts for the tier *stopped*.
    pub fn is_of_tier(&self) -> bool {
        self.is_stopped() || *self == Self::Suspended { step: Suspension::Suspending }
    }

    pub fn is_resuming(&self) -> bool {
        *self == Self::Suspended { step: Suspension::Resuming }
    }
}

impl Suspension {
    /// True if a step may follow this one. An instance that runs although it should not is suspended once more.
    fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Suspending, Self::Stopped) | (Self::Stopped, Self::Suspending | Self::Resuming)
        )
    }

    fn word(self) -> &'static str {
        match self {
            Self::Suspending => "suspending",
            Self::Stopped => "stopped",
            Self::Resuming => "resuming",
        }
    }
}

impl Instance {
    /// Time since which the instance's lifetime counts for jobs: it became ready, so that an instance that was booted for a
    /// job whose timeout is just as long serves it. Suspension does not prolong it.
    pub fn lives_since(&self) -> Stamp {
        self.ready.filter(|_| self.resumed.is_none()).unwrap_or(self.created)
    }

    /// Duration of the last resume; `None`: the instance was never suspended, or is not ready again.
    pub fn resume_time(&self) -> Option<Duration> {
        let asked = self.resumed?;
        let ready = self.ready?;
        ready.seen_from(asked).reached(asked).then(|| ready.since(asked))
    }

    /// The instance's age limit; `None`: no limit. A cloud ends it at the age that was set at its launch.
    pub fn lifetime(&self, policy: &Policy) -> Option<Duration> {
        let launched = self.launch.as_ref()?.lifetime;
        let limit = match (policy.max_lifetime, launched) {
            (Some(limit), Some(launched)) if !policy.extends_lifetime => Some(limit.min(launched)),
            (limit, launched) => launched.or(limit),
        };
        limit.map(|limit| limit.0)
    }

    /// Free slots in any phase.
    pub fn free_slots(&self) -> u32 {
        self.capacity.saturating_sub(u32::try_from(self.holders.len()).unwrap_or(u32::MAX))
    }

    /// True if one job holds it, and none was there before: whatever a job has done there, this one did.
    pub fn had_one_job(&self) -> bool {
        self.uses == 0 && self.holders.len() == 1
    }

    /// The check that the keeper has to make before the instance gets a job.
    pub fn awaits_check(&self) -> Option<CheckKind> {
        self.unbegun.as_ref().and_then(Unbegun::check)
    }

    /// True if a job has left since the keeper last found it fit: it gets no other one before it has been checked.
    pub fn awaits_recheck(&self) -> bool {
        self.unchecked && !self.is_used_up()
    }

    /// The failures that make the instance suspect: jobs of two projects failed on it before their own scripts began, and
    /// others get it last.
    pub fn suspicion(&self) -> Option<&EarlyFailures> {
        self.early.as_ref().filter(|row| row.is_suspect())
    }

    /// True if it gets no job until a check of the keeper's has passed there.
    pub fn must_be_checked(&self) -> bool {
        self.awaits_check().is_some() || self.awaits_recheck()
    }

    /// Jobs it can take now: free slots, limited by the uses left. Zero unless ready, reachable, and not to be checked.
    pub fn usable(&self) -> u32 {
        if self.awaits_recheck() { 0 } else { self.usable_unchecked() }
    }

    /// The usable slots ([`usable`](Self::usable)) regardless of the check between jobs, which records of earlier versions lack.
    pub fn usable_unchecked(&self) -> u32 {
        match self.phase {
            Phase::Ready if self.unreachable.is_some() || self.awaits_check().is_some() => 0,
            Phase::Ready => self.free_slots().min(self.uses_left.unwrap_or(u32::MAX)),
            Phase::Launching
            | Phase::Checking
            | Phase::Suspended { .. }
            | Phase::Cleaning
            | Phase::OutOfService { .. }
            | Phase::Draining { .. } => 0,
        }
    }

    /// The offering it was launched from, if the provider names any.
    pub fn offering(&self) -> Option<&OfferingName> {
        self.launch.as_ref()?.offering.as_ref()
    }

    /// True if it is known to be in another location.
    pub fn is_outside(&self, here: &Location) -> bool {
        self.location.as_ref().is_some_and(|location| location != here)
    }

    pub fn is_static(&self) -> bool {
        self.launch.is_none()
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Ready && self.holders.is_empty()
    }

    /// True if jobs of this domain may run on it.
    pub fn admits(&self, domain: &TrustDomain) -> bool {
        self.domain.as_ref().is_none_or(|bound| bound == domain)
    }

    /// True if its trust domain is certain: a job has used it. A grant that is given back unused unbinds it.
    pub fn is_bound_by_use(&self) -> bool {
        self.domain.is_some() && self.released.is_some()
    }

    /// True for a static host that was never cleaned since it was adopted.
    pub fn is_new_host(&self) -> bool {
        self.is_static() && self.ready.is_none()
    }

    /// True if its last job ended after it became ready. A clock that was set back before a reboot proves nothing.
    pub fn has_served(&self) -> bool {
        let left_after =
            |ready: Stamp| self.released.is_some_and(|left| left.seen_from(ready).reached(ready));
        self.ready.is_some_and(left_after)
    }

    /// Time since which the instance has been idle: ready, or the end of its last job, whichever came later.
    pub fn idle_since(&self) -> Stamp {
        let left = self.released.filter(|_| self.has_served());
        left.or(self.ready).unwrap_or(self.since)
    }

    /// The reason why the instance never became ready, if it is drained for that reason.
    pub fn failed_boot(&self) -> Option<&DrainReason> {
        match &self.phase {
            Phase::Draining { reason: why } if self.ready.is_none() && why.is_launch_failure() => Some(why),
            Phase::Draining { .. }
            | Phase::Launching
            | Phase::Checking
            | Phase::Ready
            | Phase::Suspended { .. }
            | Phase::Cleaning
            | Phase::OutOfService { .. } => None,
        }
    }

    /// True if its launch was refused and it does not exist.
    pub fn is_refused(&self) -> bool {
        let refused = |l: &LaunchRecord| matches!(l.answer, Answer::Refused { .. });
        self.phase == Phase::Launching && self.launch.as_ref().is_some_and(refused)
    }

    /// True in a phase that the keeper will end: launching, checking, suspending, resuming, cleaning or draining.
    pub fn is_under_way(&self) -> bool {
        match self.phase {
            Phase::Launching | Phase::Checking | Phase::Cleaning | Phase::Draining { .. } => true,
            Phase::Suspended { .. } => !self.phase.is_stopped(),
            Phase::Ready | Phase::OutOfService { .. } => false,
        }
    }

    /// True if a job that holds it may meet another one, or what another one has left. Static hosts with containers are
    /// cleaned by root between two jobs.
    pub fn jobs_meet(&self) -> bool {
        self.capacity > 1 || (!self.is_static() && (self.uses > 0 || self.uses_left != Some(0)))
    }

    /// True if it is terminated when its jobs have finished.
    pub fn is_used_up(&self) -> bool {
        self.uses_left == Some(0)
    }
}

/// The way in which a holder left; determines whether it cost a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    pub how: End,
    /// True if a `run` has started. An unused grant costs no use.
    pub used: bool,
    /// A call of the attempt is still running; the slot stays taken until it exits.
    pub closing: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::notation::{NOW, ago, world};
    use crate::time::BootId;
    use std::time::Duration;

    #[test]
    fn jobs_meet_where_several_use_an_instance_unless_root_cleans_it_between_them() {
        let meet = |line: &str| world(line).state.instances.values().next().unwrap().jobs_meet();
        for (line, expected) in [
            ("held 5m by 7 uses 0", false),
            ("held 5m by 7 uses 3", true),
            ("held 5m by 7", true),
            ("idle 5m of b uses 0", true),
            ("cap 2 | held 5m by 7 uses 0", true),
            ("static held 5m by 7", false),
            ("static idle 5m of b", false),
            ("cap 2 | static held 5m by 7", true),
        ] {
            assert_eq!(meet(line), expected, "{line}");
        }
    }

    #[test]
    fn the_phases_follow_one_another_as_drawn() {
        let phases = [
            Phase::Launching,
            Phase::Checking,
            Phase::Ready,
            Phase::Cleaning,
            Phase::OutOfService { reason: String::new() },
            Phase::Draining { reason: DrainReason::Surplus },
            Phase::Suspended { step: Suspension::Suspending },
            Phase::Suspended { step: Suspension::Stopped },
            Phase::Suspended { step: Suspension::Resuming },
        ];
        // From each row to each column, in the order above.
        let drawn = [
            "launching:      .c...d...",
            "checking:       ..rlsd...",
            "ready:          .c.lsdu..",
            "cleaning:       ..r.sd...",
            "out of service: .c.l.d...",
            "draining:       .........",
            "suspending:     .....d.p.",
            "stopped:        .....du.w",
            "resuming:       ..r..d...",
        ];
        for (from, row) in phases.iter().zip(drawn) {
            let letters = phases.iter().zip("tcrlsdupw".chars());
            let found: String =
                letters.map(|(to, letter)| if from.may_become(to) { letter } else { '.' }).collect();
            assert_eq!(format!("{:<16}{found}", format!("{}:", from.word())), row);
        }
    }

    fn known(line: &str) -> Instance {
        let state = world(line).state;
        Instance::clone(state.instances.values().next().expect("one instance"))
    }

    #[test]
    fn usable_are_the_free_slots_as_far_as_uses_reach_of_a_ready_instance() {
        for (line, free, usable) in [
            ("cap 3 | idle 5m", 3, 3),
            ("cap 3 | idle 5m uses 2", 3, 2),
            ("cap 3 | held 5m by 7", 2, 2),
            ("cap 3 | held 5m by 7 uses 0", 2, 0),
            ("cap 3 | held 5m of a by 7 unchecked", 2, 0),
            ("cap 3 | held 5m by 7 closing 8", 1, 0),
            ("cap 1 | held 5m by 7", 0, 0),
            ("cap 3 | checking 5s", 3, 0),
            ("cap 3 | draining 5s by 7", 2, 0),
            ("cap 3 | static cleaning 5s", 3, 0),
            ("cap 3 | stopped 5s", 3, 0),
            ("cap 3 | resuming 5s", 3, 0),
            ("cap 3 | static out-of-service 5s", 3, 0),
        ] {
            let instance = known(line);
            assert_eq!((instance.free_slots(), instance.usable()), (free, usable), "{line}");
        }
    }

    #[test]
    fn idle_counts_from_ready_or_from_the_last_job_whichever_came_later() {
        let idle = |line: &str| NOW.since(known(line).idle_since()).as_secs();
        assert_eq!(idle("idle 5m"), 300);
        assert_eq!(idle("idle 5m of a"), 300, "left five minutes ago, ready six");
        assert_eq!(idle("booting 40s"), 40);
        let mut cleaned = known("bound | static idle 5m of a");
        cleaned.ready = Some(ago(Duration::from_secs(9)));
        assert_eq!(NOW.since(cleaned.idle_since()).as_secs(), 9);
        cleaned.ready = Some(crate::time::Stamp { boot: BootId(6), ..cleaned.ready.unwrap() });
        assert!(cleaned.idle_since().boot == BootId(6), "across boots the wall clock says so");
    }

    #[test]
    fn a_resumed_instance_is_as_old_as_its_launch() {
        let booted = known("idle 5m");
        assert_eq!((booted.lives_since(), booted.resume_time()), (booted.ready.unwrap(), None));
        let resuming = known("resuming 5s");
        assert_eq!((resuming.lives_since(), resuming.resume_time()), (resuming.created, None));
        let ready = ago(Duration::from_secs(1));
        let resumed = Instance { phase: Phase::Ready, ready: Some(ready), ..resuming };
        assert_eq!(resumed.resume_time(), Some(Duration::from_secs(4)));
    }

    #[test]
    fn the_questions_one_may_ask() {
        let ask = |line: &str| {
            let i = known(line);
            let yes = |answer: bool, letter| if answer { letter } else { '.' };
            let answers = [
                yes(i.is_idle(), 'i'),
                yes(i.is_static(), 'f'),
                yes(i.is_refused(), 'r'),
                yes(i.is_under_way(), 'w'),
                yes(i.is_used_up(), 'u'),
            ];
            answers.iter().collect::<String>()
        };
        assert_eq!(ask("idle 5m"), "i....");
        assert_eq!(ask("idle 5m uses 0"), "i...u");
        assert_eq!(ask("held 5m by 7"), ".....");
        assert_eq!(ask("static idle 5m"), "if...");
        assert_eq!(ask("refused 5m"), "..rw.");
        assert_eq!(ask("booting 5m"), "...w.");
        assert_eq!(ask("checking 5m"), "...w.");
        assert_eq!(ask("draining 5m"), "...w.");
        assert_eq!(ask("suspending 5m"), "...w.");
        assert_eq!(ask("stopped 5m"), ".....");
        assert_eq!(ask("resuming 5m"), "...w.");
        assert_eq!(ask("static cleaning 5m"), ".f.w.");
        assert_eq!(ask("static out-of-service 5m"), ".f...");
        let mut later = known("refused 5m");
        later.phase = Phase::Draining { reason: DrainReason::LaunchedAfterRefusal };
        assert!(!later.is_refused(), "it is being removed");
    }

    #[test]
    fn a_boot_failed_if_it_never_became_ready_and_nothing_else_ended_it() {
        let drained = |ready, reason: &DrainReason| {
            let phase = Phase::Draining { reason: reason.clone() };
            Instance { phase, ready, ..known("booting 5m") }.failed_boot() == Some(reason)
        };
        assert!(drained(None, &DrainReason::NeverReady));
        assert!(!drained(Some(NOW), &DrainReason::Vanished));
        assert!(!drained(None, &DrainReason::ByOperator));
        assert_eq!(known("booting 5m").failed_boot(), None);
    }

    #[test]
    fn each_reason_to_drain_is_said_in_words_of_its_own() {
        let reasons = golden::drain_reasons();
        let sentences: std::collections::BTreeSet<String> =
            reasons.iter().map(DrainReason::to_string).collect();
        assert_eq!(sentences.len(), reasons.len());
        assert_eq!(sentences.iter().filter(|sentence| sentence.ends_with(": exit status 3")).count(), 9);
    }
}
