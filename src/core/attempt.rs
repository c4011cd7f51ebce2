//! When is an attempt over?
//!
//! Facts about an attempt's directory, lease and runner come from the host; whether they mean the end is decided
//! here. Every unknown counts in the job's favour.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

use super::ids::InstanceId;
use super::job::JobFacts;
use super::policy::Timing;
use super::time::{BootId, Stamp};

/// Something that can be seen, cannot be seen, or cannot be judged from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sight {
    There,
    Gone,
    /// Another mount or process namespace, or no right to look.
    Unknown,
}

/// What the host saw of one attempt's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptSeen {
    pub job: JobFacts,
    /// The instance its `job` file names, if it was told one.
    pub instance: Option<InstanceId>,
    pub begun: Stamp,
    /// The mark `closed`.
    pub closed: Option<Stamp>,
    /// The mark `used`: the first `run` came.
    pub used: bool,
    /// Does some call hold the lease?
    pub lease_held: bool,
    /// The last time written into the lease.
    pub lease_at: Stamp,
    pub runner: Sight,
    pub tmpdir: Sight,
    /// The boot in which it began.
    pub boot: BootId,
}

/// Why an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// `cleanup` came.
    CleanedUp,
    /// A later attempt of the same job took its place.
    Superseded,
    /// `prepare` gave it back: cancelled, timed out, or its runner went away.
    GivenBack,
    /// The machine was rebooted.
    Rebooted,
    /// The runner is gone and no `cleanup` came.
    RunnerGone,
    /// The attempt's TMPDIR is gone and no `cleanup` came.
    TmpdirGone,
    /// Nothing used it for so long that nobody can.
    Unused,
    /// It outlived its job's timeout.
    Overrun,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CleanedUp => "cleaned up",
            Self::Superseded => "a later attempt of the job took its place",
            Self::GivenBack => "given back",
            Self::Rebooted => "the machine was rebooted",
            Self::RunnerGone => "the runner is gone",
            Self::TmpdirGone => "its temporary directory is gone",
            Self::Unused => "unused for too long",
            Self::Overrun => "it outlived its job's timeout",
        })
    }
}

/// Is the attempt over, and why? The first reason that applies, in the order of the design.
pub fn over(seen: &AttemptSeen, timing: &Timing, now: Stamp) -> Option<End> {
    if seen.closed.is_some() {
        return Some(End::CleanedUp);
    }
    if seen.boot != now.boot {
        return Some(End::Rebooted);
    }
    if !seen.lease_held {
        if seen.runner == Sight::Gone {
            return Some(End::RunnerGone);
        }
        if seen.tmpdir == Sight::Gone {
            return Some(End::TmpdirGone);
        }
        let cannot_judge = seen.runner == Sight::Unknown || seen.tmpdir == Sight::Unknown;
        if cannot_judge && now.since(seen.lease_at) >= timing.lease_unused {
            return Some(End::Unused);
        }
    }
    (now.since(seen.begun) >= longest(seen, timing)).then_some(End::Overrun)
}

/// How long an attempt may last at all.
fn longest(seen: &AttemptSeen, timing: &Timing) -> Duration {
    seen.job.timeout.saturating_add(timing.overrun)
}

/// When the passage of time alone may next end this attempt.
pub fn next_look(seen: &AttemptSeen, timing: &Timing) -> Stamp {
    let overrun = seen.begun.plus(longest(seen, timing));
    let cannot_judge = seen.runner == Sight::Unknown || seen.tmpdir == Sight::Unknown;
    if cannot_judge && !seen.lease_held {
        let unused = seen.lease_at.plus(timing.lease_unused);
        return if overrun.reached(unused) { unused } else { overrun };
    }
    overrun
}
