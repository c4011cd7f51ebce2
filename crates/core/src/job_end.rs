//! The end of a job, and the party who caused it.
//!
//! `run` notes the failure that decides, and `cleanup` combines it with the status that GitLab Runner reports. A variable of
//! the job may replace that status, so a failure that was noted wins.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::attempt::End;
use crate::text::clean_line;
use crate::time::{Pretty, millis};

/// A reason is cut to this length, in characters.
const REASON_LIMIT: usize = 500;
/// A runner notices the end of a job's time within this.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(5);

/// The result of a job, as far as its calls know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobResult {
    Passed,
    /// A script failed, or the job requested something impossible, or used up its instance.
    Failed,
    /// Canceled in GitLab, or its runner was stopped.
    Canceled,
    /// The job exceeded its own timeout.
    TimedOut,
    /// The job failed through no fault of its script.
    SystemFailed,
}

/// The party who caused the end of a job that did not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blame {
    /// The job: its script, its timeout, or what it requested or used up.
    Job,
    /// The user who canceled it.
    User,
    /// Greenroom, the instance, the provider or the runner host.
    System,
}

impl fmt::Display for JobResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::TimedOut => "timed out",
            Self::SystemFailed => "system failure",
        })
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "job",
            Self::User => "user",
            Self::System => "system",
        })
    }
}

impl JobResult {
    pub fn blame(self) -> Option<Blame> {
        match self {
            Self::Passed => None,
            Self::Failed | Self::TimedOut => Some(Blame::Job),
            Self::Canceled => Some(Blame::User),
            Self::SystemFailed => Some(Blame::System),
        }
    }
}

/// The recorded end of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    pub result: JobResult,
    /// The reason, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
}

impl JobEnd {
    pub fn new(result: JobResult, reason: &str) -> Self {
        let line = clean_line(reason.as_bytes(), REASON_LIMIT);
        Self { result, reason: (!line.is_empty()).then(|| line.into()) }
    }

    /// The end of a job by that of its attempt alone, for an attempt whose calls reported nothing.
    pub fn of_attempt(how: End) -> Option<Self> {
        let result = match how {
            End::CleanedUp | End::Superseded => return None,
            End::Overrun => JobResult::TimedOut,
            End::GivenBack | End::Rebooted | End::RunnerGone | End::TmpdirGone | End::Unused => {
                JobResult::SystemFailed
            }
        };
        Some(Self::new(result, &how.to_string()))
    }
}

/// The note of a `run` about a stage that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "failure", rename_all = "kebab-case")]
pub enum StageFailure {
    /// The script exited with this status.
    Exited { stage: String, status: i32 },
    /// A signal killed the script.
    Killed { stage: String, signal: String },
    /// The job requested something that its instance does not offer.
    Impossible { reason: String },
    /// The job used up its instance's memory or disk, which ended the instance.
    UsedUp { reason: String },
    /// GitLab Runner stopped the stage.
    Stopped { stage: String },
    /// Greenroom could not run the stage, or lost the instance.
    System {
        reason: String,
        /// The stage; `None`: it was noted by an earlier version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stage: Option<String>,
    },
}

impl StageFailure {
    /// True if a later failure of the same attempt does not replace this one. A stage of GitLab Runner's own may be repeated,
    /// and succeed then.
    pub fn outweighs(&self, later: &Self) -> bool {
        match self {
            Self::Exited { stage, .. } | Self::Killed { stage, .. } => {
                is_script(stage) && !matches!(later, Self::Stopped { .. })
            }
            Self::Impossible { .. } | Self::UsedUp { .. } | Self::Stopped { .. } => true,
            Self::System { .. } => false,
        }
    }

    /// True if the success of this stage after it shows that GitLab Runner repeated the stage.
    pub fn ends_with_success_of(&self, succeeded: &str) -> bool {
        match self {
            Self::Exited { stage, .. } | Self::Killed { stage, .. } => stage == succeeded,
            Self::System { stage, .. } => stage.as_deref() == Some(succeeded),
            Self::Impossible { .. } | Self::UsedUp { .. } | Self::Stopped { .. } => false,
        }
    }

    fn end(&self) -> JobEnd {
        match self {
            Self::Exited { stage, status } => {
                JobEnd::new(JobResult::Failed, &format!("`{stage}` exited with status {status}"))
            }
            Self::Killed { stage, signal } => {
                JobEnd::new(JobResult::Failed, &format!("`{stage}` was killed by SIG{signal}"))
            }
            Self::Impossible { reason } | Self::UsedUp { reason } => JobEnd::new(JobResult::Failed, reason),
            Self::Stopped { stage } => {
                JobEnd::new(JobResult::Canceled, &format!("GitLab Runner stopped `{stage}`"))
            }
            Self::System { reason, .. } => JobEnd::new(JobResult::SystemFailed, reason),
        }
    }
}

/// True for a script of the job that decides its result. That of `after_script` does not count.
fn is_script(stage: &str) -> bool {
    stage == "build_script" || stage.starts_with("step_")
}

/// The `CI_JOB_STATUS` that GitLab Runner reports to `cleanup`. It is `running` if the job never came to `after_script`. A
/// variable of the job of this name comes instead, so it only tells what no call of Greenroom's saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunnerStatus {
    Running,
    Success,
    Failed,
    Canceled,
    TimedOut,
}

impl RunnerStatus {
    /// `None`: a value that no runner sets.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "running" => Self::Running,
            "success" => Self::Success,
            "failed" => Self::Failed,
            "canceled" => Self::Canceled,
            "timedout" => Self::TimedOut,
            _ => return None,
        })
    }
}

/// The end of an attempt that `cleanup` ends; `None`: unknown. `used`: a stage has begun. `lasted`: since the attempt
/// began. `timeout`: of the job.
pub fn judge(
    status: Option<RunnerStatus>,
    noted: Option<&StageFailure>,
    used: bool,
    (lasted, timeout): (Duration, Duration),
) -> Option<JobEnd> {
    let late = lasted.saturating_add(TIMEOUT_MARGIN) >= timeout;
    match (status, noted) {
        (Some(RunnerStatus::TimedOut), Some(StageFailure::Stopped { stage })) => {
            let why = format!("`{stage}` exceeded its timeout");
            Some(JobEnd::new(JobResult::TimedOut, &why))
        }
        (_, Some(StageFailure::Stopped { .. })) if late => {
            let why = format!("the job exceeded its timeout of {}", Pretty(timeout));
            Some(JobEnd::new(JobResult::TimedOut, &why))
        }
        (Some(RunnerStatus::Canceled), None) => Some(JobEnd::new(JobResult::Canceled, "")),
        (_, Some(failure)) => Some(failure.end()),
        (Some(RunnerStatus::Failed), None) => Some(JobEnd::new(JobResult::Failed, "")),
        (Some(RunnerStatus::Success) | None, None) if used => Some(JobEnd::new(JobResult::Passed, "")),
        (Some(RunnerStatus::TimedOut), None) => Some(JobEnd::new(JobResult::TimedOut, "")),
        (Some(RunnerStatus::Running | RunnerStatus::Success) | None, None) => None,
    }
}

// The table at the end of a job's log, for pools with `summary = true`.

/// One row: a part of the job, and how long it took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryRow {
    /// `waited`, `booted`, `pulled`, `containers`, or a stage of GitLab Runner.
    pub part: String,
    #[serde(with = "millis")]
    pub took: Duration,
    /// More about it, such as how the stage ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl SummaryRow {
    pub fn new(part: impl Into<String>, took: Duration, detail: impl Into<String>) -> Self {
        Self { part: part.into(), took, detail: detail.into() }
    }
}

/// The rows under each other, without a header. A boot is a part of the wait, and a pull one of `containers`: both are
/// indented.
pub fn table(rows: &[SummaryRow]) -> String {
    let name = |row: &SummaryRow| match row.part.as_str() {
        "booted" | "pulled" => format!("  {}", row.part),
        part => part.to_owned(),
    };
    let cells: Vec<(String, String)> =
        rows.iter().map(|row| (name(row), Pretty(row.took).to_string())).collect();
    let parts = cells.iter().map(|(part, _)| part.chars().count()).max().unwrap_or(0);
    let times = cells.iter().map(|(_, took)| took.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for ((part, took), row) in cells.iter().zip(rows) {
        // Writing to a string cannot fail.
        write!(text, "  {part:parts$}  {took:>times$}  {}", row.detail).ok();
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn judged(status: &str, noted: Option<&StageFailure>, lasted: Duration) -> String {
        let end = judge(RunnerStatus::parse(status), noted, true, (lasted, HOUR));
        end.map_or("unknown".to_owned(), |end| match &end.reason {
            Some(reason) => format!("{} ({reason})", end.result),
            None => end.result.to_string(),
        })
    }

    fn exited(stage: &str) -> StageFailure {
        StageFailure::Exited { stage: stage.to_owned(), status: 7 }
    }

    fn stopped() -> StageFailure {
        StageFailure::Stopped { stage: "build_script".to_owned() }
    }

    fn lost() -> StageFailure {
        StageFailure::System {
            reason: "instance linux-1 was reclaimed".to_owned(),
            stage: Some("build_script".to_owned()),
        }
    }

    fn used_up() -> StageFailure {
        StageFailure::UsedUp { reason: "instance linux-1 ran out of its 4Gi of memory".to_owned() }
    }

    #[test]
    fn the_end_follows_from_the_runners_status_and_the_noted_failure() {
        let short = Duration::from_mins(1);
        for (status, noted, lasted, expected) in [
            ("success", None, short, "passed"),
            ("", None, short, "passed"),
            ("success", Some(lost()), short, "system failure (instance linux-1 was reclaimed)"),
            ("success", Some(exited("build_script")), short, "failed (`build_script` exited with status 7)"),
            ("failed", Some(exited("build_script")), short, "failed (`build_script` exited with status 7)"),
            ("failed", None, short, "failed"),
            ("failed", Some(lost()), short, "system failure (instance linux-1 was reclaimed)"),
            ("running", Some(exited("get_sources")), short, "failed (`get_sources` exited with status 7)"),
            ("running", Some(lost()), short, "system failure (instance linux-1 was reclaimed)"),
            ("running", Some(used_up()), short, "failed (instance linux-1 ran out of its 4Gi of memory)"),
            ("failed", Some(used_up()), short, "failed (instance linux-1 ran out of its 4Gi of memory)"),
            ("success", Some(used_up()), short, "failed (instance linux-1 ran out of its 4Gi of memory)"),
            ("running", None, short, "unknown"),
            ("canceled", Some(stopped()), short, "canceled (GitLab Runner stopped `build_script`)"),
            ("canceled", None, short, "canceled"),
            ("timedout", Some(stopped()), short, "timed out (`build_script` exceeded its timeout)"),
            ("running", Some(stopped()), short, "canceled (GitLab Runner stopped `build_script`)"),
            ("running", Some(stopped()), HOUR, "timed out (the job exceeded its timeout of 1h)"),
            ("running", Some(exited("build_script")), HOUR, "failed (`build_script` exited with status 7)"),
        ] {
            assert_eq!(judged(status, noted.as_ref(), lasted), expected, "{status} {noted:?} {lasted:?}");
        }
        for claimed in [None, Some(RunnerStatus::Success)] {
            assert_eq!(judge(claimed, None, false, (short, HOUR)), None, "no stage has begun");
        }
        assert_eq!(RunnerStatus::parse("won"), None);
    }

    #[test]
    fn each_result_has_a_responsible_party_unless_the_job_passed() {
        let blame = |result: JobResult| result.blame().map_or("-".to_owned(), |party| party.to_string());
        assert_eq!(
            [
                JobResult::Passed,
                JobResult::Failed,
                JobResult::TimedOut,
                JobResult::Canceled,
                JobResult::SystemFailed
            ]
            .map(blame),
            ["-", "job", "job", "user", "system"]
        );
    }

    #[test]
    fn an_attempt_that_reported_nothing_is_told_by_its_end() {
        let told = |how| JobEnd::of_attempt(how).map(|end| end.result);
        assert_eq!(told(End::CleanedUp), None);
        assert_eq!(told(End::Superseded), None);
        assert_eq!(told(End::Overrun), Some(JobResult::TimedOut));
        assert_eq!(told(End::RunnerGone), Some(JobResult::SystemFailed));
    }

    #[test]
    fn the_failure_of_the_script_is_kept() {
        let script = exited("build_script");
        let upload = exited("upload_artifacts_on_failure");
        let after = lost();
        assert!(script.outweighs(&upload) && script.outweighs(&after) && stopped().outweighs(&upload));
        assert!(!upload.outweighs(&script) && !after.outweighs(&script));
        assert!(
            used_up().outweighs(&lost()) && !lost().outweighs(&used_up()) && script.outweighs(&used_up())
        );
    }

    #[test]
    fn a_stage_that_is_repeated_and_succeeds_leaves_no_failure() {
        assert!(exited("get_sources").ends_with_success_of("get_sources"));
        assert!(lost().ends_with_success_of("build_script") && !lost().ends_with_success_of("get_sources"));
        for lasting in [used_up(), stopped()] {
            assert!(!lasting.ends_with_success_of("build_script"));
        }
        let old: StageFailure = serde_json::from_str(r#"{"failure":"system","reason":"lost"}"#).unwrap();
        assert!(!old.ends_with_success_of("build_script"));
    }

    /// Statuses that a job can claim for itself by a variable.
    #[test]
    fn no_claimed_status_hides_a_failure_that_was_seen() {
        let failures = [lost(), used_up(), exited("build_script"), exited("get_sources")];
        let claims = [
            None,
            Some(RunnerStatus::Success),
            Some(RunnerStatus::Failed),
            Some(RunnerStatus::Canceled),
            Some(RunnerStatus::TimedOut),
            Some(RunnerStatus::Running),
        ];
        for failure in &failures {
            let seen = judge(None, Some(failure), true, (Duration::ZERO, HOUR));
            for claim in claims {
                assert_eq!(judge(claim, Some(failure), true, (Duration::ZERO, HOUR)), seen, "{claim:?}");
            }
        }
    }

    #[test]
    fn a_reason_is_one_clean_line() {
        let end = JobEnd::new(JobResult::Failed, "no\x1b[31m image\nat all");
        assert_eq!(end.reason.as_deref(), Some("no image at all"));
    }

    #[test]
    fn each_part_has_its_time_beside_it() {
        let ms = Duration::from_millis;
        let rows = [
            SummaryRow::new("waited", ms(24_700), "booted on demand"),
            SummaryRow::new("booted", ms(23_900), "linux-7f3a-2"),
            SummaryRow::new("get_sources", ms(1_200), ""),
            SummaryRow::new("build_script", ms(125_000), "exit status 7"),
        ];
        let expected = "  \
  waited        24.7 s  booted on demand
    booted      23.9 s  linux-7f3a-2
  get_sources    1.2 s
  build_script   2m 5s  exit status 7
";
        assert_eq!(table(&rows), expected.trim_start_matches('\n'));
        assert_eq!(table(&[]), "");
    }
}
