//! Jobs that failed on an instance before their own scripts began: nothing yet, used last, or replaced.
//!
//! Jobs of one project may share a fault, and while no job passes anywhere, the cause is elsewhere, such as GitLab's own
//! server. So the instance is judged by jobs of two projects, and by those that pass on other instances.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::AttemptName;

/// A failure within this is early. It is less than the timeouts of what the runner's own stages wait for.
pub const WITHIN: Duration = Duration::from_secs(10);
/// A row longer than this decides nothing more.
const ENOUGH: usize = 2;

/// Jobs in a row that failed early, the first of each project. A job that passes there ends the row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyFailures {
    /// In their order, the first few.
    pub jobs: Vec<EarlyFailure>,
    /// What the last one met.
    pub reason: String,
    /// A job has passed on another instance since the first of these failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pass_elsewhere: bool,
}

/// A job of an [`EarlyFailures`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyFailure {
    pub attempt: AttemptName,
    /// The address of its project.
    pub project: Arc<str>,
}

impl EarlyFailures {
    /// The row after one more job; `None`: nothing changes, because its project is counted, or the row is long enough.
    pub fn with(row: Option<&Self>, attempt: &AttemptName, project: &str, reason: &str) -> Option<Self> {
        let mut row = row.cloned().unwrap_or_else(|| Self {
            jobs: Vec::new(),
            reason: String::new(),
            pass_elsewhere: false,
        });
        if row.is_suspect() || row.jobs.iter().any(|job| *job.project == *project) {
            return None;
        }
        row.jobs.push(EarlyFailure { attempt: attempt.clone(), project: project.into() });
        reason.clone_into(&mut row.reason);
        Some(row)
    }

    /// Jobs that share nothing but the instance failed: others get it last.
    pub fn is_suspect(&self) -> bool {
        self.jobs.len() >= ENOUGH
    }

    /// And others pass elsewhere, so the cause is there.
    pub fn is_proven(&self) -> bool {
        self.is_suspect() && self.pass_elsewhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row after jobs such as `a1 b2`: attempt 1 of project a, then attempt 2 of project b.
    fn row(jobs: &str) -> Option<EarlyFailures> {
        jobs.split_whitespace().fold(None, |row, job| {
            let attempt = AttemptName::new(job);
            EarlyFailures::with(row.as_ref(), &attempt, &job[..1], job).or(row)
        })
    }

    #[test]
    fn jobs_of_two_projects_raise_suspicion_and_those_that_pass_elsewhere_prove_it() {
        for (jobs, suspect, reason) in [
            ("", false, None),
            ("a1", false, Some("a1")),
            ("a1 a2 a3", false, Some("a1")),
            ("a1 b2", true, Some("b2")),
            ("a1 a2 b3", true, Some("b3")),
            ("a1 b2 c3", true, Some("b2")),
        ] {
            let row = row(jobs);
            assert_eq!(row.as_ref().map(|row| &*row.reason), reason, "{jobs}");
            assert_eq!(row.as_ref().is_some_and(EarlyFailures::is_suspect), suspect, "{jobs}");
            assert!(!row.as_ref().is_some_and(EarlyFailures::is_proven), "{jobs}");
            let elsewhere = row.map(|row| EarlyFailures { pass_elsewhere: true, ..row });
            assert_eq!(elsewhere.is_some_and(|row| row.is_proven()), suspect, "{jobs}");
        }
    }
}
