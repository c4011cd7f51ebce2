//! The obstacles that keep jobs from an existing instance: one sentence for each cause.
//!
//! The job log, `pool status` and `explain` all show these sentences, so a waiting job and its operator read the same.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::InstanceId;
use super::instance::{Instance, Phase};
use super::time::Stamp;

/// Servers may deny a login for a moment while they boot, because the key of the login comes late.
const GRACE: Duration = Duration::from_secs(5);

/// The result of the last try to log in to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The provider does not tell how to reach it.
    NoAddress,
    /// Nothing answers at its address.
    Silent,
    /// The server closes connections before its SSH greeting.
    TurnedAway,
    /// The server accepts a connection, and sends no greeting.
    NoGreeting,
    /// The server greets, and presents no host key.
    NoHostKey,
    /// The server presents another host key than the recorded one.
    OtherKey,
    LoginDenied,
    /// The login takes longer than the keeper waits.
    SlowLogin,
    /// The login succeeds; its shell takes longer than the keeper waits.
    SlowShell,
    /// The login succeeds; no stage begins.
    NoStage,
    /// The server ends the connection.
    Cut,
    /// The runner host can connect to nothing at present.
    RunnerHost,
}

/// A failed try to log in to an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    pub cause: Cause,
    /// The instance's address, and the jump host before it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
    /// The end of the sentence: the error, or the limit that was exceeded.
    pub detail: String,
}

/// An obstacle that the keeper has met at each try for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lasting {
    pub obstacle: Obstacle,
    /// The first of the tries in a row with this cause.
    pub since: Stamp,
    /// Number of tries.
    pub tries: u32,
}

/// The static hosts of a pool that a job cannot get, although it may have them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusableHosts {
    /// All hosts of the pool that the job may have.
    pub of: u32,
    /// Hosts that only an operator, or a cleaning, returns to service.
    pub out_of_service: u32,
    /// Hosts that the keeper cannot log in to.
    pub unreachable: u32,
    /// The reason why the first of them is unusable: a sentence with its name.
    pub first: String,
    /// Further hosts, which stay with other trust domains.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bound: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Obstacle {
    /// The sentence about an instance.
    pub fn sentence(&self, instance: &InstanceId) -> String {
        let Self { cause, at, detail } = self;
        match cause {
            Cause::NoAddress => format!("{instance} cannot be contacted: {detail}"),
            Cause::Silent => format!("{instance} does not respond at {at}: {detail}"),
            Cause::TurnedAway => {
                format!("{instance} closes connections to {at} before its SSH greeting: {detail}")
            }
            Cause::NoGreeting => {
                format!("{instance} accepts connections to {at}, but sends no SSH greeting within {detail}")
            }
            Cause::NoHostKey => {
                format!("{instance} at {at} greets, but presents no host key within {detail}")
            }
            Cause::OtherKey => format!("{instance} at {at} presents another host key: {detail}"),
            Cause::LoginDenied => format!("{instance} at {at} denies the login: {detail}"),
            Cause::SlowLogin => format!("{instance} at {at} does not complete the login within {detail}"),
            Cause::SlowShell => {
                format!("{instance} at {at} accepts the login, but runs no command within {detail}")
            }
            Cause::NoStage => format!("{instance} at {at} accepts the login, but begins no stage: {detail}"),
            Cause::Cut => format!("{instance} at {at} ended the connection during the check: {detail}"),
            Cause::RunnerHost => format!("the runner host cannot connect to {instance} at {at}: {detail}"),
        }
    }

    /// True if an instance that boots usually meets it for a while.
    pub fn is_usual(&self) -> bool {
        matches!(self.cause, Cause::NoAddress | Cause::Silent)
    }
}

impl Lasting {
    /// The next try met an obstacle, at the earliest at `since`.
    #[must_use]
    pub fn next(before: Option<&Self>, obstacle: Obstacle, since: Stamp) -> Self {
        match before.filter(|before| before.obstacle.cause == obstacle.cause) {
            Some(before) => {
                let tries = before.tries.saturating_add(1);
                Self { obstacle, since: before.since, tries }
            }
            None => Self { obstacle, since, tries: 1 },
        }
    }

    /// The obstacle, if it is what a job really waits for. Of a booting instance, it is not if that is usual.
    pub fn of(&self, instance: &Instance, now: Stamp) -> Option<&Obstacle> {
        let shows_at_once = match self.obstacle.cause {
            Cause::NoAddress | Cause::Silent => instance.is_static(),
            Cause::TurnedAway | Cause::LoginDenied | Cause::RunnerHost => {
                instance.is_static() || now.since(self.since) >= GRACE
            }
            Cause::NoGreeting
            | Cause::NoHostKey
            | Cause::OtherKey
            | Cause::SlowLogin
            | Cause::SlowShell
            | Cause::NoStage
            | Cause::Cut => true,
        };
        let awaits = match instance.phase {
            Phase::Launching | Phase::Checking => true,
            Phase::Ready => instance.unreachable.is_some(),
            Phase::Suspended { .. } => instance.phase.is_resuming(),
            Phase::Cleaning | Phase::OutOfService { .. } | Phase::Draining { .. } => false,
        };
        (shows_at_once && awaits).then_some(&self.obstacle)
    }

    /// The pause until the next try after a denied login or the like: 2, 4 and 8 times
    /// [`probe_interval`](crate::policy::Timing::probe_interval), which is 1 s by default. Servers penalize an address that
    /// is denied often.
    pub fn pause(&self, probe_interval: Duration) -> Duration {
        probe_interval.saturating_mul(2 << self.tries.saturating_sub(1).min(2))
    }
}

impl UnusableHosts {
    /// True if no host is left that could become free.
    pub fn is_all(&self) -> bool {
        self.out_of_service.saturating_add(self.unreachable) >= self.of
    }

    /// True if no host is left, and none returns by itself.
    pub fn is_all_out_of_service(&self) -> bool {
        self.out_of_service >= self.of
    }
}

/// Begins with *no* or *all*, as a reason to wait.
impl fmt::Display for UnusableHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, out_of_service, unreachable, first, bound } = self;
        let unusable = out_of_service.saturating_add(*unreachable);
        match (of, self.is_all(), unreachable) {
            (1, true, _) if *bound > 0 => write!(f, "the only host for this job is unusable: {first}"),
            (1, true, _) => write!(f, "the pool's only host is unusable: {first}"),
            (_, true, 0) if *bound > 0 => {
                write!(f, "all {of} hosts for this job are out of service: {first}")
            }
            (_, true, _) if *bound > 0 => write!(f, "all {of} hosts for this job are unusable: {first}"),
            (_, true, 0) => write!(f, "all {of} hosts of the pool are out of service: {first}"),
            (_, true, _) => write!(f, "all {of} hosts of the pool are unusable: {first}"),
            (_, false, _) => {
                let are = if unusable == 1 { "is" } else { "are" };
                write!(f, "no static host is free, and {unusable} of {of} {are} unusable: {first}")
            }
        }
    }
}

/// The sentence about why a static host is out of service, with what is known of its last jobs.
pub fn out_of_service(host: &Instance, reason: &str) -> String {
    let of = host.domain.as_ref().filter(|domain| !domain.is_of_all());
    let of = of.map_or(String::new(), |domain| format!(", last used by {},", domain.name()));
    format!("{}{of} is out of service: {reason}", host.id)
}

#[cfg(feature = "samples")]
pub mod samples;

#[cfg(test)]
mod tests {
    use super::samples::each;
    use super::*;
    use crate::notation::{NOW, ago, world};

    #[test]
    fn each_cause_has_a_sentence() {
        for (obstacle, sentence) in each() {
            assert_eq!(obstacle.sentence(&InstanceId::new("h1")), sentence);
            let json = serde_json::to_string(&obstacle).unwrap();
            assert_eq!(serde_json::from_str::<Obstacle>(&json).unwrap(), obstacle);
        }
    }

    fn shown(line: &str, cause: Cause, met: Duration) -> bool {
        let state = world(line).state;
        let instance = state.instances.values().next().unwrap();
        let obstacle = Obstacle { cause, at: String::new(), detail: String::new() };
        Lasting { obstacle, since: ago(met), tries: 1 }.of(instance, NOW).is_some()
    }

    #[test]
    fn a_boot_shows_what_is_unusual_and_a_static_host_shows_all() {
        let young = Duration::from_secs(4);
        let old = Duration::from_secs(5);
        for (cause, boots_young, boots_old) in [
            (Cause::NoAddress, false, false),
            (Cause::Silent, false, false),
            (Cause::TurnedAway, false, true),
            (Cause::LoginDenied, false, true),
            (Cause::RunnerHost, false, true),
            (Cause::SlowLogin, true, true),
            (Cause::SlowShell, true, true),
            (Cause::OtherKey, true, true),
        ] {
            assert_eq!(shown("booting 9s", cause, young), boots_young, "{cause:?}");
            assert_eq!(shown("booting 9s", cause, old), boots_old, "{cause:?}");
            assert!(shown("hosts | static checking 9s", cause, young), "{cause:?}");
            assert!(!shown("idle 9s", cause, old), "{cause:?}");
        }
    }

    #[test]
    fn the_same_cause_lasts_and_is_tried_less_often() {
        let obstacle = |cause| Obstacle { cause, at: String::new(), detail: String::new() };
        let mut lasting = Lasting::next(None, obstacle(Cause::LoginDenied), ago(Duration::from_secs(30)));
        let second = Duration::from_secs(1);
        let mut pauses = vec![lasting.pause(second).as_secs()];
        for _ in 0..3 {
            lasting = Lasting::next(Some(&lasting), obstacle(Cause::LoginDenied), NOW);
            pauses.push(lasting.pause(second).as_secs());
        }
        assert_eq!((pauses, NOW.since(lasting.since).as_secs()), (vec![2, 4, 8, 8], 30));
        let other = Lasting::next(Some(&lasting), obstacle(Cause::SlowLogin), NOW);
        assert_eq!((other.pause(second).as_secs(), other.since, other.tries), (2, NOW, 1));
    }

    #[test]
    fn hosts_that_cannot_be_used_are_counted_and_the_first_is_explained() {
        for (of, out_of_service, unreachable, text) in [
            (1, 1, 0, "the pool's only host is unusable: why"),
            (2, 2, 0, "all 2 hosts of the pool are out of service: why"),
            (2, 1, 1, "all 2 hosts of the pool are unusable: why"),
            (3, 1, 1, "no static host is free, and 2 of 3 are unusable: why"),
            (3, 0, 1, "no static host is free, and 1 of 3 is unusable: why"),
        ] {
            let hosts = UnusableHosts { of, out_of_service, unreachable, first: "why".to_owned(), bound: 0 };
            assert_eq!(hosts.to_string(), text);
            assert_eq!(hosts.is_all(), out_of_service + unreachable == of);
            assert_eq!(hosts.is_all_out_of_service(), out_of_service == of);
        }
    }
}
