//! Decides whether an attempt is over.
//!
//! Facts about an attempt's directory, lease and runner come from the host; this module decides whether they mean the
//! end. Every unknown counts in the job's favour.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

use super::ids::InstanceId;
use super::job::JobFacts;
use super::policy::Timing;
use super::time::{BootId, Stamp};

/// The existence of something, as far as this process can observe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Presence {
    There,
    Gone,
    /// Another mount or process namespace, or no permission.
    Unknown,
}

/// The facts that the host observed of one attempt's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptSeen {
    /// `None`: the file `job` cannot be read. Such an attempt may belong to any pool.
    pub job: Option<JobFacts>,
    /// The instance that its file `assignment` names, if any.
    pub instance: Option<InstanceId>,
    /// The reason why one of the two files cannot be read.
    pub unreadable: Option<String>,
    pub begun: Stamp,
    /// The mark `closed` ([`Closed`]).
    pub closed: Option<Closed>,
    /// The mark `used`: the first `run` has started.
    pub used: bool,
    /// True if a call holds the lease.
    pub lease_held: bool,
    /// The last time written into the lease.
    pub lease_at: Stamp,
    pub runner: Presence,
    pub tmpdir: Presence,
    /// The boot in which it began.
    pub boot: BootId,
}

/// The reason why an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// `cleanup` came.
    CleanedUp,
    /// A later attempt of the same job replaced it.
    Superseded,
    /// `prepare` released it: canceled, timed out, or its runner is gone.
    GivenBack,
    /// The runner host was rebooted.
    Rebooted,
    /// The runner is gone and no `cleanup` came.
    RunnerGone,
    /// The attempt's TMPDIR is gone and no `cleanup` came.
    TmpdirGone,
    /// No call has used it for longer than any call pauses.
    Unused,
    /// The attempt exceeded its job's timeout.
    Overrun,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CleanedUp => "cleaned up",
            Self::Superseded => "replaced by a later attempt of the job",
            Self::GivenBack => "released by `prepare`",
            Self::Rebooted => "the runner host was rebooted",
            Self::RunnerGone => "the runner is gone",
            Self::TmpdirGone => "its temporary directory is gone",
            Self::Unused => "unused for too long",
            Self::Overrun => "it exceeded its job's timeout",
        })
    }
}

/// The mark `closed` of an attempt: it takes no more calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    pub at: Stamp,
    /// `None`: the mark was truncated and has no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<End>,
}

impl Closed {
    pub fn new(at: Stamp, how: End) -> Self {
        Self { at, how: Some(how) }
    }

    /// The reason why the attempt ended, for the record. Most marks are set by `cleanup`.
    pub fn end(self) -> End {
        self.how.unwrap_or(End::CleanedUp)
    }
}

/// The sentence for a call that comes too late, or that closing the attempt stopped.
impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.how {
            Some(End::CleanedUp) => f.write_str("`cleanup` has already ended this attempt"),
            Some(End::Superseded) => f.write_str("a newer attempt of this job has superseded this one"),
            Some(other) => write!(f, "this attempt has already ended: {other}"),
            None => f.write_str("this attempt has already ended"),
        }
    }
}

/// The reason why the attempt is over, if it is: the first reason that applies.
pub fn over(seen: &AttemptSeen, timing: &Timing, now: Stamp) -> Option<End> {
    if let Some(closed) = seen.closed {
        return Some(closed.end());
    }
    if seen.boot != now.boot {
        return Some(End::Rebooted);
    }
    if !seen.lease_held {
        if seen.runner == Presence::Gone {
            return Some(End::RunnerGone);
        }
        if seen.tmpdir == Presence::Gone {
            return Some(End::TmpdirGone);
        }
        let cannot_judge = seen.runner == Presence::Unknown || seen.tmpdir == Presence::Unknown;
        if cannot_judge && now.since(seen.lease_at) >= timing.lease_free_timeout {
            return Some(End::Unused);
        }
    }
    (now.since(seen.begun) >= longest(seen, timing)).then_some(End::Overrun)
}

/// The longest time that an attempt may last. An unknown timeout counts in the job's favour.
fn longest(seen: &AttemptSeen, timing: &Timing) -> Duration {
    let timeout = seen.job.as_ref().map_or(Duration::MAX, |job| job.timeout);
    timeout.saturating_add(timing.job_timeout_grace)
}

/// Time at which the passage of time alone may next end this attempt.
pub fn next_look(seen: &AttemptSeen, timing: &Timing) -> Stamp {
    let overrun = seen.begun.plus(longest(seen, timing));
    let cannot_judge = seen.runner == Presence::Unknown || seen.tmpdir == Presence::Unknown;
    if cannot_judge && !seen.lease_held {
        let unused = seen.lease_at.plus(timing.lease_free_timeout);
        return if overrun.reached(unused) { unused } else { overrun };
    }
    overrun
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::notation::{NOW, ago, cleaned, facts};

    const HOUR: Duration = Duration::from_hours(1);
    const PRESENCES: [Presence; 3] = [Presence::There, Presence::Gone, Presence::Unknown];

    fn seen(change: impl FnOnce(&mut AttemptSeen)) -> AttemptSeen {
        let mut seen = AttemptSeen {
            job: Some(facts(7, "a", HOUR)),
            instance: None,
            unreadable: None,
            begun: ago(Duration::from_mins(20)),
            closed: None,
            used: false,
            lease_held: false,
            lease_at: ago(Duration::from_mins(1)),
            runner: Presence::There,
            tmpdir: Presence::There,
            boot: NOW.boot,
        };
        change(&mut seen);
        seen
    }

    fn ends(change: impl FnOnce(&mut AttemptSeen)) -> Option<End> {
        over(&seen(change), &Timing::default(), NOW)
    }

    /// Every possible attempt: presences, lease, mark, boot, ages on both sides of each limit.
    fn every() -> Vec<AttemptSeen> {
        let mut all = Vec::new();
        let ages = [0, 599_999, 600_000, 4_499_999, 4_500_000].map(Duration::from_millis);
        for bits in 0..8_u8 {
            for (runner, tmpdir) in PRESENCES.into_iter().flat_map(|r| PRESENCES.map(|t| (r, t))) {
                for (begun, lease_at) in ages.into_iter().flat_map(|b| ages.map(|l| (ago(b), ago(l)))) {
                    all.push(seen(|s| {
                        s.runner = runner;
                        s.tmpdir = tmpdir;
                        s.begun = begun;
                        s.lease_at = lease_at;
                        s.lease_held = bits & 1 != 0;
                        s.closed = (bits & 2 != 0).then(|| cleaned(NOW));
                        s.boot = BootId(if bits & 4 != 0 { 6 } else { NOW.boot.0 });
                    }));
                }
            }
        }
        all
    }

    #[test]
    fn the_first_reason_that_applies_ends_an_attempt() {
        assert_eq!(ends(|_| ()), None);
        let closed = |how| Some(Closed { at: NOW, how });
        let after = |how| ends(|s| (s.closed, s.runner) = (closed(how), Presence::Gone));
        assert_eq!(after(Some(End::CleanedUp)), Some(End::CleanedUp));
        assert_eq!(after(Some(End::Superseded)), Some(End::Superseded));
        assert_eq!(after(None), Some(End::CleanedUp), "a mark that was cut short");
        assert_eq!(ends(|s| (s.boot, s.runner) = (BootId(6), Presence::Gone)), Some(End::Rebooted));
        assert_eq!(ends(|s| (s.runner, s.tmpdir) = (Presence::Gone, Presence::Gone)), Some(End::RunnerGone));
        assert_eq!(
            ends(|s| (s.runner, s.tmpdir) = (Presence::Unknown, Presence::Gone)),
            Some(End::TmpdirGone)
        );
        let long_ago = ago(HOUR * 9);
        assert_eq!(
            ends(|s| (s.runner, s.begun, s.lease_at) = (Presence::Unknown, long_ago, long_ago)),
            Some(End::Unused)
        );
        assert_eq!(ends(|s| s.begun = long_ago), Some(End::Overrun));
        assert_eq!(
            ends(|s| (s.begun, s.lease_held) = (long_ago, true)),
            Some(End::Overrun),
            "even with a lease"
        );
    }

    #[test]
    fn limits_are_met_to_the_millisecond() {
        let unused =
            |ms| ends(|s| (s.tmpdir, s.lease_at) = (Presence::Unknown, ago(Duration::from_millis(ms))));
        assert_eq!((unused(599_999), unused(600_000)), (None, Some(End::Unused)));
        let overrun = |ms| ends(|s| s.begun = ago(Duration::from_millis(ms)));
        assert_eq!((overrun(4_499_999), overrun(4_500_000)), (None, Some(End::Overrun)));
        assert_eq!(ends(|s| s.lease_at = ago(HOUR)), None, "a runner that can be seen is judged by sight");
    }

    #[test]
    fn every_unknown_counts_in_the_jobs_favour() {
        let timing = Timing::default();
        for seen in every() {
            let ended = over(&seen, &timing, NOW);
            for presence in [Presence::There, Presence::Unknown] {
                // An unknown presence never ends an attempt sooner than absence would.
                let mut kinder = seen.clone();
                kinder.runner = if seen.runner == Presence::Gone { presence } else { seen.runner };
                kinder.tmpdir = if seen.tmpdir == Presence::Gone { presence } else { seen.tmpdir };
                assert!(ended.is_some() || over(&kinder, &timing, NOW).is_none(), "{seen:?}");
            }
            let mut held = seen.clone();
            held.lease_held = true;
            assert!(ended.is_some() || over(&held, &timing, NOW).is_none(), "{seen:?}");
            let of_its_kind = match ended {
                Some(End::RunnerGone) => !seen.lease_held && seen.runner == Presence::Gone,
                Some(End::TmpdirGone) => !seen.lease_held && seen.tmpdir == Presence::Gone,
                Some(End::Unused) => {
                    let unknown = [seen.runner, seen.tmpdir].contains(&Presence::Unknown);
                    !seen.lease_held && unknown && NOW.since(seen.lease_at) >= timing.lease_free_timeout
                }
                Some(End::Rebooted) => seen.boot != NOW.boot,
                Some(End::CleanedUp) => seen.closed.is_some(),
                Some(End::Overrun) => NOW.since(seen.begun) >= HOUR + timing.job_timeout_grace,
                Some(End::Superseded | End::GivenBack) => false,
                None => seen.closed.is_none() && seen.boot == NOW.boot,
            };
            assert!(of_its_kind, "{ended:?} {seen:?}");
        }
    }

    #[test]
    fn the_next_look_is_when_time_alone_ends_it_and_never_past() {
        let timing = Timing::default();
        for seen in every() {
            if over(&seen, &timing, NOW).is_some() {
                continue;
            }
            let next = next_look(&seen, &timing);
            assert!(!NOW.reached(next), "{seen:?}");
            assert!(over(&seen, &timing, next).is_some(), "{seen:?}");
            let just_before = Stamp { uptime_ms: next.uptime_ms - 1, ..next };
            assert_eq!(over(&seen, &timing, just_before), None, "{seen:?}");
        }
    }

    #[test]
    fn a_timeout_without_end_overflows_nothing() {
        let endless =
            |s: &mut AttemptSeen| s.job = Some(JobFacts { timeout: Duration::MAX, ..facts(7, "a", HOUR) });
        assert_eq!(ends(endless), None);
        assert!(!NOW.reached(next_look(&seen(endless), &Timing::default())));
    }

    #[test]
    fn each_end_is_said_in_words_of_its_own() {
        let ends = golden::ends();
        let sentences: std::collections::BTreeSet<String> = ends.iter().map(End::to_string).collect();
        assert_eq!(sentences.len(), ends.len());
        let late = |how| Closed { at: NOW, how }.to_string();
        let late: std::collections::BTreeSet<String> =
            ends.iter().copied().map(Some).chain([None]).map(late).collect();
        assert_eq!(late.len(), ends.len() + 1);
        assert!(sentences.iter().all(|sentence| sentence.len() > 5));
    }
}
