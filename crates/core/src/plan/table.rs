//! Recorded × observed: the numbered table.
//!
//! Lists every combination. ARCHITECTURE.md prints it, and a test compares the two.

use crate::instance::DrainReason;
use crate::inventory::Status;

/// The recorded side of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recorded {
    /// Launch intended, no answer known.
    Requested,
    /// The provider refused the launch.
    Refused,
    /// The provider accepted the launch.
    Booting,
    /// Reachable, ready command not passed.
    Checking,
    /// Ready, no job.
    Idle,
    /// Booting, or ready without a job, but recorded in an earlier boot.
    Stale,
    /// Not draining, with jobs, or named by an open attempt.
    Held,
    /// Not draining, and an open attempt that it was not granted to has run there.
    Unaccounted,
    Cleaning,
    OutOfService,
    /// The suspension is requested.
    Suspending,
    /// In the tier *stopped*.
    Stopped,
    /// The resumption is requested.
    Resuming,
    /// Draining, with jobs, or named by an open attempt.
    Draining,
    /// Draining, without jobs.
    Terminating,
}

/// The observed side of a recorded instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Observation {
    /// Booting or rebooting; a static host also when it is stopping.
    Starting,
    Running,
    Suspended,
    Stopping,
    /// A complete list lacks it, which alone proves nothing.
    Missing,
    /// Two complete lists far enough apart lack it, and `endpoint` denies it.
    Absent,
    /// No complete list that could show it.
    Unknown,
    /// The list is of another location than the instance's.
    Elsewhere,
}

/// The age of the present state of affairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Age {
    Young,
    /// Launches: past [`relaunch_after`](crate::policy::Timing::relaunch_after).
    Due,
    /// Launches: past [`launch_timeout`](crate::policy::Timing::launch_timeout). Suspending, resuming: past
    /// [`suspend_timeout`](crate::policy::Timing::suspend_timeout),
    /// [`resume_timeout`](crate::policy::Timing::resume_timeout). Unrecorded: past
    /// [`reap_grace`](crate::policy::Timing::reap_grace).
    Late,
}

/// A listed instance without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unrecorded {
    /// A static host.
    Static,
    /// An instance of this owner, with a known generation, a known number.
    Ours,
    /// An instance of this owner, with a known generation, a known number, and an open attempt's directory names it.
    OursHeld,
    /// An instance of this owner, but with an unknown generation or number.
    Stranger,
    /// Another owner.
    Foreign,
}

/// The consequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Wait,
    /// Repeat the launch, with the same token.
    LaunchAgain,
    Probe,
    Keep,
    /// Keep it, but assign no job to it.
    HoldBack,
    /// In use, but seems to be gone: its job decides.
    Suspect,
    /// Drain it, or clean it if it is a static host.
    Refresh,
    /// The instance's record lacks a job: assign no further one; when that job has ended, drain it, or clean a static host.
    LastJob,
    Clean,
    Suspend,
    /// Record that it is suspended.
    Record,
    Resume,
    /// The instance was not suspended, or is not ready again, in time: drain it.
    GiveUp,
    /// For a static host: drop the record.
    Drain(DrainReason),
    Terminate,
    Forget,
    Adopt,
    Leave,
    Reap,
    /// Touch nothing; report that another keeper works with a copy of this state.
    Alarm,
    Ignore,
}

/// A row of the table that applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub number: u8,
    pub verdict: Verdict,
}

/// The table as text: number, recorded, observed, when, verdict. Checked against the code and the documentation.
pub const ROWS: &[(u8, &str, &str, &str, &str)] = &[
    (1, "requested", "missing, absent, unknown", "young; unknown also due", "wait"),
    (2, "requested", "missing, absent", "due", "launch again, same token"),
    (3, "requested, booting, resuming", "starting, running", "not late", "probe"),
    (4, "booting", "missing, unknown", "not late", "probe"),
    (5, "booting, checking", "absent", "any", "drain: vanished; forget a static host"),
    (6, "requested, booting, checking", "stopping, suspended", "any", "drain: stopped"),
    (7, "requested, booting, checking", "all others", "late", "drain: never ready"),
    (8, "checking", "starting, running, missing, unknown", "not late", "probe"),
    (9, "refused", "missing, absent, unknown", "any", "wait: scale decides"),
    (10, "refused", "starting, running, stopping, suspended", "any", "drain: launched after refusal"),
    (11, "idle", "running, missing, unknown", "any", "keep"),
    (12, "idle", "starting", "any", "hold back: it reboots; a static host is probed until it is back"),
    (13, "idle, stale, cleaning", "stopping", "any", "drain: stopped"),
    (
        14,
        "idle, stale, cleaning, out of service, suspending, stopped, resuming",
        "absent",
        "any",
        "drain: vanished; forget a static host",
    ),
    (
        15,
        "stale",
        "starting, running, suspended, missing, unknown",
        "any",
        "refresh: drain it, or clean a static host",
    ),
    (16, "held", "starting, running, missing, unknown", "any", "keep"),
    (17, "held, unaccounted", "stopping, suspended, absent", "any", "suspect: its job decides"),
    (18, "cleaning", "running, missing, unknown", "any", "clean"),
    (19, "cleaning", "starting", "any", "wait"),
    (20, "out of service", "starting, running, stopping, suspended, missing, unknown", "any", "keep"),
    (21, "draining", "any", "any", "wait for its jobs"),
    (
        22,
        "terminating",
        "starting, running, stopping, suspended, missing, unknown",
        "any",
        "terminate (again)",
    ),
    (23, "terminating", "absent", "any", "forget"),
    (24, "no record, static host", "running", "any", "adopt"),
    (25, "no record, static host", "starting, stopping, suspended", "any", "leave"),
    (
        26,
        "no record, ours",
        "starting, running, stopping, suspended",
        "young, due",
        "leave: its record may be on its way",
    ),
    (27, "no record, ours", "starting, running, stopping, suspended", "late", "reap"),
    (28, "no record, ours, an open attempt names it", "any", "any", "leave"),
    (
        29,
        "no record, our owner, generation or number unknown",
        "any",
        "any",
        "alarm: touch nothing, stop reaping",
    ),
    (30, "no record, another owner", "any", "any", "ignore"),
    (
        31,
        "unaccounted",
        "starting, running, missing, unknown",
        "any",
        "last job: when it has ended, drain the instance, or clean a static host",
    ),
    (32, "any other", "elsewhere", "any other", "leave: no list or call can show it"),
    (33, "idle, cleaning", "suspended", "any", "drain: stopped"),
    (34, "stopped, resuming", "stopping", "any", "drain: stopped"),
    (35, "suspending, stopped", "starting, running", "not late; stopped any", "suspend (again)"),
    (36, "suspending", "stopping, missing, unknown", "not late", "wait"),
    (37, "suspending", "suspended", "any", "record that it is stopped"),
    (38, "stopped", "suspended, missing, unknown", "any", "keep"),
    (39, "resuming", "suspended, missing, unknown", "not late", "resume (again), and probe"),
    (40, "suspending, resuming", "all others", "late", "give up: drain it"),
];

/// The row for a recorded instance.
pub fn recorded(recorded: Recorded, observation: Observation, age: Age) -> Row {
    use Observation as S;
    use Recorded as R;
    let (number, verdict) = match (recorded, observation, age) {
        (R::Requested, S::Missing | S::Absent | S::Unknown, Age::Young)
        | (R::Requested, S::Unknown, Age::Due) => (1, Verdict::Wait),
        (R::Requested, S::Missing | S::Absent, Age::Due) => (2, Verdict::LaunchAgain),
        (R::Requested | R::Booting | R::Resuming, S::Starting | S::Running, Age::Young | Age::Due) => {
            (3, Verdict::Probe)
        }
        (R::Booting, S::Missing | S::Unknown, Age::Young | Age::Due) => (4, Verdict::Probe),
        (R::Booting | R::Checking, S::Absent, _) => (5, Verdict::Drain(DrainReason::Vanished)),
        (R::Requested | R::Booting | R::Checking, S::Stopping | S::Suspended, _) => {
            (6, Verdict::Drain(DrainReason::Stopped))
        }
        (
            R::Requested,
            S::Starting | S::Running | S::Missing | S::Absent | S::Unknown | S::Elsewhere,
            Age::Late,
        )
        | (
            R::Booting | R::Checking,
            S::Starting | S::Running | S::Missing | S::Unknown | S::Elsewhere,
            Age::Late,
        ) => (7, Verdict::Drain(DrainReason::NeverReady)),
        (R::Checking, S::Starting | S::Running | S::Missing | S::Unknown, Age::Young | Age::Due) => {
            (8, Verdict::Probe)
        }
        (R::Refused, S::Missing | S::Absent | S::Unknown, _) => (9, Verdict::Wait),
        (R::Refused, S::Starting | S::Running | S::Stopping | S::Suspended, _) => {
            (10, Verdict::Drain(DrainReason::LaunchedAfterRefusal))
        }
        (R::Idle, S::Running | S::Missing | S::Unknown, _) => (11, Verdict::Keep),
        (R::Idle, S::Starting, _) => (12, Verdict::HoldBack),
        (R::Idle | R::Stale | R::Cleaning, S::Stopping, _) => (13, Verdict::Drain(DrainReason::Stopped)),
        (
            R::Idle | R::Stale | R::Cleaning | R::OutOfService | R::Suspending | R::Stopped | R::Resuming,
            S::Absent,
            _,
        ) => (14, Verdict::Drain(DrainReason::Vanished)),
        (R::Stale, S::Starting | S::Running | S::Suspended | S::Missing | S::Unknown, _) => {
            (15, Verdict::Refresh)
        }
        (R::Held, S::Starting | S::Running | S::Missing | S::Unknown, _) => (16, Verdict::Keep),
        (R::Held | R::Unaccounted, S::Stopping | S::Suspended | S::Absent, _) => (17, Verdict::Suspect),
        (R::Unaccounted, S::Starting | S::Running | S::Missing | S::Unknown, _) => (31, Verdict::LastJob),
        (R::Cleaning, S::Running | S::Missing | S::Unknown, _) => (18, Verdict::Clean),
        (R::Cleaning, S::Starting, _) => (19, Verdict::Wait),
        (
            R::OutOfService,
            S::Starting | S::Running | S::Stopping | S::Suspended | S::Missing | S::Unknown,
            _,
        ) => (20, Verdict::Keep),
        (R::Draining, _, _) => (21, Verdict::Wait),
        (
            R::Terminating,
            S::Starting | S::Running | S::Stopping | S::Suspended | S::Missing | S::Unknown,
            _,
        ) => (22, Verdict::Terminate),
        (R::Terminating, S::Absent, _) => (23, Verdict::Forget),
        (_, S::Elsewhere, _) => (32, Verdict::Leave),
        (R::Idle | R::Cleaning, S::Suspended, _) => (33, Verdict::Drain(DrainReason::Stopped)),
        (R::Stopped | R::Resuming, S::Stopping, _) => (34, Verdict::Drain(DrainReason::Stopped)),
        (R::Suspending, S::Starting | S::Running, Age::Young | Age::Due)
        | (R::Stopped, S::Starting | S::Running, _) => (35, Verdict::Suspend),
        (R::Suspending, S::Stopping | S::Missing | S::Unknown, Age::Young | Age::Due) => (36, Verdict::Wait),
        (R::Suspending, S::Suspended, _) => (37, Verdict::Record),
        (R::Stopped, S::Suspended | S::Missing | S::Unknown, _) => (38, Verdict::Keep),
        (R::Resuming, S::Suspended | S::Missing | S::Unknown, Age::Young | Age::Due) => (39, Verdict::Resume),
        (R::Suspending, S::Starting | S::Running | S::Stopping | S::Missing | S::Unknown, Age::Late)
        | (R::Resuming, S::Starting | S::Running | S::Suspended | S::Missing | S::Unknown, Age::Late) => {
            (40, Verdict::GiveUp)
        }
    };
    Row { number, verdict }
}

/// True for the rows of instances of this owner that no record knows, and that are not young.
pub fn is_orphan(row: u8) -> bool {
    matches!(row, 27 | 29)
}

/// The row for a listed instance without a record.
pub fn unrecorded(kind: Unrecorded, status: Status, age: Age) -> Row {
    let (number, verdict) = match (kind, status, age) {
        (Unrecorded::Static, Status::Running, _) => (24, Verdict::Adopt),
        (Unrecorded::Static, Status::Starting | Status::Stopping | Status::Suspended, _) => {
            (25, Verdict::Leave)
        }
        (Unrecorded::Ours, _, Age::Young | Age::Due) => (26, Verdict::Leave),
        (Unrecorded::Ours, _, Age::Late) => (27, Verdict::Reap),
        (Unrecorded::OursHeld, _, _) => (28, Verdict::Leave),
        (Unrecorded::Stranger, _, _) => (29, Verdict::Alarm),
        (Unrecorded::Foreign, _, _) => (30, Verdict::Ignore),
    };
    Row { number, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const RECORDED: [Recorded; 15] = [
        Recorded::Requested,
        Recorded::Refused,
        Recorded::Booting,
        Recorded::Checking,
        Recorded::Idle,
        Recorded::Stale,
        Recorded::Held,
        Recorded::Unaccounted,
        Recorded::Cleaning,
        Recorded::OutOfService,
        Recorded::Suspending,
        Recorded::Stopped,
        Recorded::Resuming,
        Recorded::Draining,
        Recorded::Terminating,
    ];
    const SIGHTS: [Observation; 8] = [
        Observation::Starting,
        Observation::Running,
        Observation::Suspended,
        Observation::Stopping,
        Observation::Missing,
        Observation::Absent,
        Observation::Unknown,
        Observation::Elsewhere,
    ];
    const AGES: [Age; 3] = [Age::Young, Age::Due, Age::Late];
    const UNRECORDED: [Unrecorded; 5] = [
        Unrecorded::Static,
        Unrecorded::Ours,
        Unrecorded::OursHeld,
        Unrecorded::Stranger,
        Unrecorded::Foreign,
    ];
    const STATUSES: [Status; 4] = [Status::Starting, Status::Running, Status::Suspended, Status::Stopping];

    fn every_recorded() -> Vec<(Recorded, Observation, Age, Row)> {
        let mut all = Vec::new();
        for r in RECORDED {
            for s in SIGHTS {
                all.extend(AGES.map(|a| (r, s, a, recorded(r, s, a))));
            }
        }
        all
    }

    fn every_unrecorded() -> Vec<(Unrecorded, Status, Age, Row)> {
        let mut all = Vec::new();
        for u in UNRECORDED {
            for s in STATUSES {
                all.extend(AGES.map(|a| (u, s, a, unrecorded(u, s, a))));
            }
        }
        all
    }

    #[test]
    fn every_row_is_reached_and_numbered_as_the_text_says() {
        let reached: BTreeSet<u8> = every_recorded()
            .iter()
            .map(|c| c.3.number)
            .chain(every_unrecorded().iter().map(|c| c.3.number))
            .collect();
        let written: BTreeSet<u8> = ROWS.iter().map(|r| r.0).collect();
        assert_eq!(reached, written);
        assert!(ROWS.windows(2).all(|w| w[0].0 + 1 == w[1].0), "numbered without gaps");
    }

    /// Parses the text of each row and compares it with the code, case by case.
    #[test]
    fn the_text_of_each_row_says_what_the_code_does() {
        let named = |list: &str, name: &str| {
            list.starts_with("any") || list.split(", ").any(|part| part == name) || list == "all others"
        };
        for (r, s, a, row) in every_recorded() {
            let (_, recorded, observed, when, verdict) = ROWS[usize::from(row.number) - 1];
            let r = spelled(&format!("{r:?}"));
            let s = format!("{s:?}").to_lowercase();
            assert!(named(recorded, &r), "row {}: {recorded} does not name {r}", row.number);
            assert!(named(observed, &s), "row {}: {observed} does not name {s}", row.number);
            let fits = match when {
                "any" | "any other" => true,
                "late" => a == Age::Late,
                "due" => a == Age::Due,
                "not late" => a != Age::Late,
                "not late; stopped any" => a != Age::Late || r == "stopped",
                "young; unknown also due" => a == Age::Young || (a == Age::Due && s == "unknown"),
                other => unreachable!("{other}"),
            };
            assert!(fits, "row {}: {when} does not name {a:?}", row.number);
            let spelled_verdict =
                spelled(&format!("{:?}", row.verdict).replace("Drain(", "Drain: ").replace(')', ""));
            assert!(
                verdict.starts_with(&spelled_verdict),
                "row {}: {verdict} is not {spelled_verdict}",
                row.number
            );
        }
    }

    fn spelled(camel: &str) -> String {
        let mut out = String::new();
        for c in camel.chars() {
            if c.is_uppercase() && !out.is_empty() && !out.ends_with(' ') {
                out.push(' ');
            }
            out.extend(c.to_lowercase());
        }
        out
    }

    #[test]
    fn what_rests_on_absence_never_follows_from_an_unknown_world() {
        for (r, s, a, row) in every_recorded() {
            if s != Observation::Absent {
                assert_ne!(row.verdict, Verdict::Forget, "{r:?} {s:?} {a:?}");
                assert_ne!(row.verdict, Verdict::Drain(DrainReason::Vanished), "{r:?} {s:?} {a:?}");
            }
            if s == Observation::Unknown {
                assert_ne!(row.verdict, Verdict::LaunchAgain, "{r:?} {a:?}");
            }
        }
    }

    #[test]
    fn an_instance_with_jobs_is_neither_drained_nor_terminated_nor_forgotten() {
        for (r, s, a, row) in every_recorded() {
            if matches!(r, Recorded::Held | Recorded::Unaccounted | Recorded::Draining) {
                let harmless =
                    [Verdict::Keep, Verdict::Suspect, Verdict::Wait, Verdict::LastJob, Verdict::Leave];
                assert!(harmless.contains(&row.verdict), "{r:?} {s:?} {a:?} {row:?}");
            }
        }
    }

    #[test]
    fn only_a_draining_instance_is_terminated_and_only_ours_are_reaped() {
        for (r, _, _, row) in every_recorded() {
            let ends = matches!(row.verdict, Verdict::Terminate | Verdict::Forget);
            assert!(!ends || r == Recorded::Terminating, "{r:?} {row:?}");
        }
        for (u, _, a, row) in every_unrecorded() {
            assert_eq!(row.verdict == Verdict::Reap, u == Unrecorded::Ours && a == Age::Late, "{u:?} {a:?}");
        }
    }

    #[test]
    fn a_gone_instance_is_on_its_way_out_whatever_it_was_doing() {
        for (r, s, a, row) in every_recorded() {
            if s == Observation::Absent && a == Age::Late {
                let stays = matches!(
                    r,
                    Recorded::Held | Recorded::Unaccounted | Recorded::Draining | Recorded::Refused
                );
                let goes = matches!(row.verdict, Verdict::Drain(_) | Verdict::Forget);
                assert_eq!(goes, !stays, "{r:?} {row:?}");
            }
        }
    }

    #[test]
    fn only_an_idle_instance_of_this_boot_is_kept_for_jobs() {
        for (r, s, a, row) in every_recorded() {
            if row.verdict == Verdict::Keep {
                assert!(
                    matches!(r, Recorded::Idle | Recorded::Held | Recorded::OutOfService | Recorded::Stopped),
                    "{r:?} {s:?} {a:?}"
                );
            }
        }
    }
}
