//! The start of a job: the way in which it got its instance. One rule, for metrics, history, `explain` and the job log.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::AttemptName;
use super::instance::Instance;
use super::time::{Pretty, Stamp};

/// The way in which a job got its instance. Serialized as the names in a recorded state of format 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// The instance was idle when the job came.
    Warm,
    /// The job waited for the instance's boot.
    #[serde(rename = "boot")]
    Booted,
    /// The job waited until another job left the instance, or its cleaning ended.
    #[serde(rename = "queue")]
    Freed,
    /// The job waited until a stopped instance was resumed.
    Resumed,
}

impl Start {
    pub const ALL: [Self; 4] = [Self::Warm, Self::Booted, Self::Freed, Self::Resumed];

    /// The word in tables, in JSON and in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Booted => "booted",
            Self::Freed => "freed",
            Self::Resumed => "resumed",
        }
    }

    /// The rule. `ready`: when a launched instance became ready. `freed`: when a job or a cleaning last left room on it.
    /// If neither is known, a job that waited got what another one left.
    pub fn of(requested: Stamp, granted: Stamp, ready: Option<Stamp>, freed: Option<Stamp>) -> Self {
        // An idle slot is granted in the transaction of the request.
        if requested.reached(granted) {
            return Self::Warm;
        }
        let waited_for = |at: Option<Stamp>| at.is_some_and(|at| at.is_after(requested));
        match (waited_for(freed), waited_for(ready)) {
            (false, true) => Self::Booted,
            (false, false) if ready.or(freed).is_some() => Self::Warm,
            (true, _) | (false, false) => Self::Freed,
        }
    }

    /// The same start, or [`Resumed`](Self::Resumed) if the instance was stopped before it last became ready.
    #[must_use]
    pub fn after_resume(self, resumed: bool) -> Self {
        if resumed && self == Self::Booted { Self::Resumed } else { self }
    }

    /// Serializes the word instead of the recorded name.
    pub fn serialize_word<S: serde::Serializer>(start: &Option<Self>, to: S) -> Result<S::Ok, S::Error> {
        start.map(Self::word).serialize(to)
    }

    /// The start of a job that gets this instance.
    pub(super) fn on(instance: &Instance, requested: Stamp, granted: Stamp) -> Self {
        let is_launched = instance.launch.is_some();
        // A static host returns from cleaning to service after its job has left.
        let idle = instance.idle_since();
        let since = instance.since;
        let free = if since.is_after(idle) { since } else { idle };
        let freed = (instance.has_served() || !is_launched).then_some(free);
        let start = Self::of(requested, granted, instance.ready.filter(|_| is_launched), freed);
        start.after_resume(instance.resumed.is_some())
    }
}

/// The account of how one job got its instance, in the words of `explain` and the job log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartAccount {
    pub start: Start,
    /// The time for which the instance had been idle when the job requested one.
    pub idle_for: Duration,
    /// Number of other jobs on the instance.
    pub others: usize,
    /// Duration of the instance's last resume.
    pub resume_time: Duration,
}

impl StartAccount {
    /// The account by the instance as it was before or after the grant.
    pub fn of(instance: &Instance, attempt: &AttemptName, requested: Stamp, granted: Stamp) -> Self {
        Self {
            start: Start::on(instance, requested, granted),
            idle_for: requested.since(instance.idle_since()),
            others: instance.holders.keys().filter(|other| *other != attempt).count(),
            resume_time: instance.resume_time().unwrap_or_default(),
        }
    }
}

impl fmt::Display for StartAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.start, self.others) {
            (Start::Warm, 0) => write!(f, "warm, idle for {}", Pretty(self.idle_for)),
            (Start::Warm, 1) => f.write_str("warm, beside 1 other job"),
            (Start::Warm, others) => write!(f, "warm, beside {others} other jobs"),
            (Start::Booted, _) => f.write_str("booted on demand"),
            (Start::Freed, _) => f.write_str("freed while the job waited"),
            (Start::Resumed, _) => write!(f, "resumed a stopped instance in {}", Pretty(self.resume_time)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::{NOW, attempt, world};

    #[test]
    fn what_a_job_waited_for_decides() {
        let at = |seconds: u64| NOW.plus(Duration::from_secs(seconds));
        for (granted, ready, freed, expected) in [
            (10, Some(5), None, Start::Warm),
            (10, Some(5), Some(8), Start::Warm),
            (10, None, None, Start::Warm),
            (11, Some(5), None, Start::Warm),
            (20, Some(15), None, Start::Booted),
            (20, Some(5), Some(19), Start::Freed),
            (20, Some(12), Some(19), Start::Freed),
            (20, None, None, Start::Freed),
        ] {
            let start = Start::of(at(10), at(granted), ready.map(at), freed.map(at));
            assert_eq!(start, expected, "{granted} {ready:?} {freed:?}");
        }
    }

    #[test]
    fn the_words_follow_the_rule_and_do_not_count_the_job_itself() {
        for (line, expected) in [
            ("cap 1 | idle 3m", "warm, idle for 3m"),
            ("cap 3 | held 5m by 8", "warm, beside 1 other job"),
            ("cap 3 | held 5m by 7,8,9", "warm, beside 2 other jobs"),
        ] {
            let state = world(line).state;
            let instance = state.instances.values().next().unwrap();
            let account = StartAccount::of(instance, &attempt(7), NOW, NOW);
            assert_eq!(account.to_string(), expected, "{line}");
        }
        let resume_time = Duration::from_secs(4);
        let of = |start| StartAccount { start, idle_for: Duration::ZERO, others: 0, resume_time }.to_string();
        assert_eq!([of(Start::Booted), of(Start::Freed)], ["booted on demand", "freed while the job waited"]);
        assert_eq!(of(Start::Resumed), "resumed a stopped instance in 4 s");
    }
}
