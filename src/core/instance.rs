//! One instance: its phase, its slots, and the questions one may ask it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::attempt::End;
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::ids::{AttemptName, Generation, InstanceId, JobKey, OfferingName, TrustDomain};
use super::time::Stamp;

/// A recorded instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub id: InstanceId,
    /// `None` for a fixed host, which was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecord>,
    pub phase: Phase,
    /// When the phase began.
    pub since: Stamp,
    pub created: Stamp,
    /// When it became ready last; its boot must be the present one for the instance to be handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Stamp>,
    /// When its last job left; `None` again when a clean has made it nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Stamp>,
    /// Jobs at once.
    pub capacity: u32,
    /// Jobs it may still be given; `None`: no limit.
    pub uses_left: Option<u32>,
    /// Jobs that have really used it.
    pub uses: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holders: BTreeMap<AttemptName, Holder>,
    /// Bound to this domain since a job of it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<TrustDomain>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// Begin of the first of the complete lists that lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Stamp>,
}

/// Where a launched instance comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    pub generation: Generation,
    pub number: u32,
    /// Counts launch attempts of this instance, from 1. Part of the launch token.
    pub attempt: u32,
    /// In which of its ways the provider is to launch it; `None`: it has one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offering: Option<OfferingName>,
    pub answer: Answer,
    /// When the present attempt's intent was committed.
    pub requested_at: Stamp,
}

/// What the provider said to the present launch attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Nothing yet: the call is under way, or its caller died.
    Pending,
    Accepted {
        at: Stamp,
    },
    /// No answer came: it may or may not have been made.
    Unknown {
        at: Stamp,
    },
    /// Certainly not made.
    Refused {
        at: Stamp,
        failure: Failure,
    },
}

/// A job on an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub job: JobKey,
    pub granted: Stamp,
    /// The attempt is closed, but a call of it still lives: the slot is not free yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closing: Option<Stamp>,
}

/// What an instance is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Asked for; not reachable yet.
    Launching,
    /// Reachable; the ready command has not passed yet. A fixed host also when it was ready and could not be reached.
    Checking,
    /// Serves jobs, or waits for them.
    Ready,
    /// Being cleaned between jobs.
    Cleaning,
    /// Out of service until somebody looks at it.
    OutOfService { reason: String },
    /// No new jobs; terminated when the present ones have ended.
    Draining { reason: DrainReason },
}

/// Why an instance is drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainReason {
    /// It has served its last job.
    UsedUp,
    /// Idle longer than `idle_time` and more than the policy wants.
    Surplus,
    /// Older than `max_lifetime`.
    Expired,
    /// A waiting job of another trust domain needs the room.
    MadeRoom,
    /// The operator asked.
    ByOperator,
    /// Not ready within `launch_timeout`.
    NeverReady,
    /// The ready command failed.
    NotReady { message: String },
    /// The provider has stopped it, or it died.
    Stopped,
    /// The provider does not know it any more.
    Vanished,
    /// A job found it unusable.
    Broken { message: String },
    /// It did not answer while it was idle.
    Unresponsive { message: String },
    /// The machine was rebooted: what was recorded as idle may have been given away.
    Rebooted,
    /// An attempt that the record does not know has run a job there.
    Unaccounted,
    /// The provider refused the launch, and then it was there.
    LaunchedAfterRefusal,
}

impl DrainReason {
    /// Does this count as a failed launch, if the instance was still booting?
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
            | Self::LaunchedAfterRefusal => false,
        }
    }
}

impl fmt::Display for DrainReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UsedUp => f.write_str("it has served its last job"),
            Self::Surplus => f.write_str("idle for longer than `idle_time`, and not wanted"),
            Self::Expired => f.write_str("older than `max_lifetime`"),
            Self::MadeRoom => f.write_str("a waiting job of another trust domain needs the room"),
            Self::ByOperator => f.write_str("drained by the operator"),
            Self::NeverReady => f.write_str("not ready within `launch_timeout`"),
            Self::NotReady { message } => write!(f, "its ready command failed: {message}"),
            Self::Stopped => f.write_str("the provider stopped it"),
            Self::Vanished => f.write_str("the provider does not know it any more"),
            Self::Broken { message } => write!(f, "a job found it unusable: {message}"),
            Self::Unresponsive { message } => write!(f, "it stopped answering while it was idle: {message}"),
            Self::Rebooted => f.write_str("this machine was rebooted, and its record may lack the last jobs"),
            Self::Unaccounted => f.write_str("a job ran there that its record does not know"),
            Self::LaunchedAfterRefusal => f.write_str("its launch was refused, yet it is there"),
        }
    }
}

impl Phase {
    /// The one place that says which phase may follow which.
    pub fn may_become(&self, next: &Phase) -> bool {
        use Phase::{Checking, Cleaning, Draining, Launching, OutOfService, Ready};
        match (self, next) {
            (Launching, Checking | Draining { .. })
            | (Checking, Ready | Cleaning | OutOfService { .. } | Draining { .. })
            | (Ready, Checking | Cleaning | OutOfService { .. } | Draining { .. })
            | (Cleaning, Ready | OutOfService { .. } | Draining { .. })
            | (OutOfService { .. }, Checking | Cleaning | Draining { .. }) => true,
            (Launching, Launching | Ready | Cleaning | OutOfService { .. })
            | (Checking, Launching | Checking)
            | (Cleaning, Launching | Checking | Cleaning)
            | (Ready, Launching | Ready)
            | (OutOfService { .. }, Launching | Ready | OutOfService { .. })
            | (Draining { .. }, _) => false,
        }
    }

    /// One word for tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Launching => "launching",
            Self::Checking => "checking",
            Self::Ready => "ready",
            Self::Cleaning => "cleaning",
            Self::OutOfService { .. } => "out of service",
            Self::Draining { .. } => "draining",
        }
    }
}

impl Instance {
    /// Slots not taken, whatever the phase.
    pub fn free_slots(&self) -> u32 {
        self.capacity.saturating_sub(u32::try_from(self.holders.len()).unwrap_or(u32::MAX))
    }

    /// Jobs it could take now: free slots, as far as its uses reach. Zero unless ready.
    pub fn usable(&self) -> u32 {
        match self.phase {
            Phase::Ready => self.free_slots().min(self.uses_left.unwrap_or(u32::MAX)),
            Phase::Launching
            | Phase::Checking
            | Phase::Cleaning
            | Phase::OutOfService { .. }
            | Phase::Draining { .. } => 0,
        }
    }

    /// In which of the provider's ways it was launched, where there are several.
    pub fn offering(&self) -> Option<&OfferingName> {
        self.launch.as_ref()?.offering.as_ref()
    }

    pub fn is_static(&self) -> bool {
        self.launch.is_none()
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Ready && self.holders.is_empty()
    }

    /// Would this domain's jobs be allowed on it?
    pub fn admits(&self, domain: &TrustDomain) -> bool {
        self.domain.as_ref().is_none_or(|bound| bound == domain)
    }

    /// Has its last job left since it became ready? A clock that was set back before a reboot tells nothing of that.
    pub fn has_served(&self) -> bool {
        let left_after =
            |ready: Stamp| self.released.is_some_and(|left| left.seen_from(ready).reached(ready));
        self.ready.is_some_and(left_after)
    }

    /// Since when it has been idle: ready, or left by its last job, whichever came later.
    pub fn idle_since(&self) -> Stamp {
        let left = self.released.filter(|_| self.has_served());
        left.or(self.ready).unwrap_or(self.since)
    }

    /// Why it never became ready, if it is leaving for that.
    pub fn failed_boot(&self) -> Option<&DrainReason> {
        match &self.phase {
            Phase::Draining { reason: why } if self.ready.is_none() && why.is_launch_failure() => Some(why),
            Phase::Draining { .. }
            | Phase::Launching
            | Phase::Checking
            | Phase::Ready
            | Phase::Cleaning
            | Phase::OutOfService { .. } => None,
        }
    }

    /// Was its launch refused, with nothing made?
    pub fn is_refused(&self) -> bool {
        let refused = |l: &LaunchRecord| matches!(l.answer, Answer::Refused { .. });
        self.phase == Phase::Launching && self.launch.as_ref().is_some_and(refused)
    }

    /// Is something being done with it that ends by itself?
    pub fn is_under_way(&self) -> bool {
        match self.phase {
            Phase::Launching | Phase::Checking | Phase::Cleaning | Phase::Draining { .. } => true,
            Phase::Ready | Phase::OutOfService { .. } => false,
        }
    }

    /// Must it go once its jobs have left?
    pub fn is_used_up(&self) -> bool {
        self.uses_left == Some(0)
    }
}

/// How a holder left; decides whether it cost a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    pub how: End,
    /// Did a `run` ever come? A grant given back unused costs nothing.
    pub used: bool,
    /// A call of the attempt still lives; the slot stays taken until it ends.
    pub closing: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::notation::{NOW, ago, world};
    use crate::core::time::BootId;
    use std::time::Duration;

    #[test]
    fn the_phases_follow_one_another_as_drawn() {
        let phases = [
            Phase::Launching,
            Phase::Checking,
            Phase::Ready,
            Phase::Cleaning,
            Phase::OutOfService { reason: String::new() },
            Phase::Draining { reason: DrainReason::Surplus },
        ];
        // From each row to each column, in the order above.
        let drawn = [
            "launching:      .c...d",
            "checking:       ..rlsd",
            "ready:          .c.lsd",
            "cleaning:       ..r.sd",
            "out of service: .c.l.d",
            "draining:       ......",
        ];
        for (from, row) in phases.iter().zip(drawn) {
            let letters = phases.iter().zip("tcrlsd".chars());
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
            ("cap 3 | held 5m by 7 lingering 8", 1, 1),
            ("cap 1 | held 5m by 7", 0, 0),
            ("cap 3 | checking 5s", 3, 0),
            ("cap 3 | draining 5s by 7", 2, 0),
            ("cap 3 | fixed cleaning 5s", 3, 0),
            ("cap 3 | fixed aside 5s", 3, 0),
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
        let mut cleaned = known("bound | fixed idle 5m of a");
        cleaned.ready = Some(ago(Duration::from_secs(9)));
        assert_eq!(NOW.since(cleaned.idle_since()).as_secs(), 9);
        cleaned.ready = Some(crate::core::time::Stamp { boot: BootId(6), ..cleaned.ready.unwrap() });
        assert!(cleaned.idle_since().boot == BootId(6), "across boots the wall clock says so");
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
        assert_eq!(ask("fixed idle 5m"), "if...");
        assert_eq!(ask("refused 5m"), "..rw.");
        assert_eq!(ask("booting 5m"), "...w.");
        assert_eq!(ask("checking 5m"), "...w.");
        assert_eq!(ask("draining 5m"), "...w.");
        assert_eq!(ask("fixed cleaning 5m"), ".f.w.");
        assert_eq!(ask("fixed aside 5m"), ".f...");
        let mut later = known("refused 5m");
        later.phase = Phase::Draining { reason: DrainReason::LaunchedAfterRefusal };
        assert!(!later.is_refused(), "it is being removed");
    }

    #[test]
    fn each_reason_to_drain_is_said_in_words_of_its_own() {
        let message = || "mark".to_owned();
        let reasons = [
            DrainReason::UsedUp,
            DrainReason::Surplus,
            DrainReason::Expired,
            DrainReason::MadeRoom,
            DrainReason::ByOperator,
            DrainReason::NeverReady,
            DrainReason::NotReady { message: message() },
            DrainReason::Stopped,
            DrainReason::Vanished,
            DrainReason::Broken { message: message() },
            DrainReason::Unresponsive { message: message() },
            DrainReason::Rebooted,
            DrainReason::Unaccounted,
            DrainReason::LaunchedAfterRefusal,
        ];
        let words: std::collections::BTreeSet<String> = reasons.iter().map(DrainReason::to_string).collect();
        assert_eq!(words.len(), reasons.len());
        assert_eq!(words.iter().filter(|w| w.ends_with(": mark")).count(), 3);
    }
}
