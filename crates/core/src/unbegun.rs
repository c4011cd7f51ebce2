//! Failures that jobs met and that make an instance suspect, and what follows: nothing yet, the keeper's own check, or out
//! of use.
//!
//! A job may have broken the instance for itself, and what a container or an image writes is no evidence. So the keeper
//! checks what the jobs met, by means of its own, before the instance leaves service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{AttemptName, TrustDomain};

/// A row longer than this decides nothing more.
const ENOUGH: usize = 2;

/// The kind of failure that a job met on its instance, and so of the keeper's check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// The instance answered, and did not begin a stage.
    #[default]
    Stages,
    /// The instance's engine did not prepare or start a container.
    Engine,
    /// The instance's engine did not prepare or start a container in a network of its own.
    Network,
}

impl CheckKind {
    pub const ALL: [Self; 3] = [Self::Stages, Self::Engine, Self::Network];

    /// True for the kind that records without one mean.
    pub fn is_stages(&self) -> bool {
        *self == Self::Stages
    }

    /// True if a stage that begins on the instance itself ends the row of this kind.
    pub fn ends_with_a_stage(self) -> bool {
        self == Self::Stages
    }

    /// True if what another job does on the instance meanwhile may fail the keeper's check.
    pub fn is_disturbed_by_jobs(self) -> bool {
        match self {
            Self::Stages => false,
            Self::Engine | Self::Network => true,
        }
    }
}

/// The object of the verb *check* in a sentence about the keeper.
impl fmt::Display for CheckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stages => "that stages begin",
            Self::Engine => "that containers start",
            Self::Network => "that containers start in a network",
        })
    }
}

/// Jobs in a row that met such a thing. What ends the row depends on the kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbegun {
    /// The jobs in their order, the first few of each kind.
    pub jobs: Vec<UnbegunJob>,
    /// The last reason.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnbegunJob {
    pub attempt: AttemptName,
    pub domain: TrustDomain,
    #[serde(default, skip_serializing_if = "CheckKind::is_stages")]
    pub kind: CheckKind,
}

/// The consequence of a row for the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// The row proves nothing yet: the job may have broken the instance for itself.
    Nothing,
    /// The instance gets no job until the keeper has checked it.
    Check,
    /// The jobs share nothing but the instance.
    OutOfUse,
}

impl Unbegun {
    /// The row after one more job; `None`: nothing changes, because the job has been counted, or the row is long enough.
    pub fn with(
        row: Option<&Self>,
        attempt: &AttemptName,
        domain: &TrustDomain,
        (kind, reason): (CheckKind, &str),
    ) -> Option<Self> {
        let mut jobs = row.map(|row| row.jobs.clone()).unwrap_or_default();
        let of_kind = jobs.iter().filter(|job| job.kind == kind);
        if of_kind.clone().count() >= ENOUGH || of_kind.clone().any(|job| job.attempt == *attempt) {
            return None;
        }
        jobs.push(UnbegunJob { attempt: attempt.clone(), domain: domain.clone(), kind });
        Some(Self { jobs, reason: reason.to_owned() })
    }

    /// The row without its jobs of one kind; `None`: nothing is left.
    pub fn without(self, kind: CheckKind) -> Option<Self> {
        let jobs: Vec<UnbegunJob> = self.jobs.into_iter().filter(|job| job.kind != kind).collect();
        (!jobs.is_empty()).then_some(Self { jobs, ..self })
    }

    /// True if it has a job of this kind.
    pub fn has(&self, kind: CheckKind) -> bool {
        self.jobs.iter().any(|job| job.kind == kind)
    }

    /// The consequence of the jobs of one kind.
    pub fn consequence(&self, kind: CheckKind) -> Consequence {
        let jobs: Vec<&UnbegunJob> = self.jobs.iter().filter(|job| job.kind == kind).collect();
        let Some(first) = jobs.first() else { return Consequence::Nothing };
        let domains_differ = jobs.iter().any(|job| job.domain != first.domain);
        match kind {
            CheckKind::Stages if domains_differ => Consequence::OutOfUse,
            // Two jobs of one domain may share a fault.
            CheckKind::Stages if jobs.len() >= ENOUGH => Consequence::Check,
            CheckKind::Stages => Consequence::Nothing,
            // Images and registries of any number of domains may do the same thing. Only the keeper's check tells.
            CheckKind::Engine | CheckKind::Network => Consequence::Check,
        }
    }

    /// The check that the keeper has to make before the instance gets a job.
    pub fn check(&self) -> Option<CheckKind> {
        CheckKind::ALL.into_iter().find(|kind| self.consequence(*kind) == Consequence::Check)
    }
}

// Jobs that failed on an instance before their own scripts began: nothing yet, used last, or replaced.
//
// Jobs of one project may share a fault, and while no job passes anywhere, the cause is elsewhere, such as GitLab's own
// server. So the instance is judged by jobs of two projects, and by those that pass on other instances.

/// A failure within this is early. It is less than the timeouts of what the runner's own stages wait for.
pub const EARLY_WITHIN: Duration = Duration::from_secs(10);
/// A row longer than this decides nothing more.
const ENOUGH_EARLY: usize = 2;

/// Jobs in a row that failed early, the first of each project. A job that passes there ends the row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyFailures {
    /// The jobs in their order, the first few.
    pub jobs: Vec<EarlyFailure>,
    /// The failure that the last one met.
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
        self.jobs.len() >= ENOUGH_EARLY
    }

    /// And others pass elsewhere, so the cause is there.
    pub fn is_proven(&self) -> bool {
        self.is_suspect() && self.pass_elsewhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row after jobs such as `a1 b2`: attempt 1 of domain a, then attempt 2 of domain b.
    fn row(kind: CheckKind, row: Option<Unbegun>, jobs: &str) -> Option<Unbegun> {
        jobs.split_whitespace().fold(row, |row, job| {
            let domain = TrustDomain::new(&job[..1]);
            let attempt = AttemptName::new(job);
            Unbegun::with(row.as_ref(), &attempt, &domain, (kind, "exit status 97")).or(row)
        })
    }

    fn after(kind: CheckKind, jobs: &str) -> Consequence {
        row(kind, None, jobs).map_or(Consequence::Nothing, |row| row.consequence(kind))
    }

    #[test]
    fn two_domains_convict_and_two_jobs_of_one_domain_raise_doubts() {
        for (jobs, expected) in [
            ("", Consequence::Nothing),
            ("a1", Consequence::Nothing),
            ("a1 a1 a1", Consequence::Nothing),
            ("a1 a2", Consequence::Check),
            ("a1 b2", Consequence::OutOfUse),
            ("a1 a1 b2", Consequence::OutOfUse),
            ("a1 a2 a3", Consequence::Check),
            ("a1 b2 b3", Consequence::OutOfUse),
        ] {
            assert_eq!(after(CheckKind::Stages, jobs), expected, "{jobs}");
        }
    }

    #[test]
    fn no_number_of_containers_convicts_without_the_keepers_check() {
        for kind in [CheckKind::Engine, CheckKind::Network] {
            for jobs in ["a1", "a1 a2", "a1 b2", "a1 b2 c3"] {
                assert_eq!(after(kind, jobs), Consequence::Check, "{kind:?} {jobs}");
            }
        }
    }

    #[test]
    fn each_kind_has_a_row_of_its_own() {
        let stages = row(CheckKind::Stages, None, "a1");
        let both = row(CheckKind::Engine, stages.clone(), "b2").unwrap();
        assert_eq!(both.consequence(CheckKind::Stages), Consequence::Nothing, "they met different things");
        assert_eq!(both.check(), Some(CheckKind::Engine));
        assert_eq!(both.clone().without(CheckKind::Engine).map(|row| row.jobs), stages.map(|row| row.jobs));
        let engine = both.without(CheckKind::Stages).unwrap();
        assert!(engine.has(CheckKind::Engine) && !engine.has(CheckKind::Stages));
        assert_eq!(engine.without(CheckKind::Engine), None);
    }

    #[test]
    fn a_record_without_a_kind_is_about_stages() {
        let old = r#"{"jobs":[{"attempt":"a1","domain":"a"}],"reason":"exit status 97"}"#;
        let row: Unbegun = serde_json::from_str(old).unwrap();
        assert!(row.has(CheckKind::Stages));
        assert_eq!(serde_json::to_string(&row).unwrap(), old);
    }

    /// The row after jobs such as `a1 b2`: attempt 1 of project a, then attempt 2 of project b.
    fn early_row(jobs: &str) -> Option<EarlyFailures> {
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
            let row = early_row(jobs);
            assert_eq!(row.as_ref().map(|row| &*row.reason), reason, "{jobs}");
            assert_eq!(row.as_ref().is_some_and(EarlyFailures::is_suspect), suspect, "{jobs}");
            assert!(!row.as_ref().is_some_and(EarlyFailures::is_proven), "{jobs}");
            let elsewhere = row.map(|row| EarlyFailures { pass_elsewhere: true, ..row });
            assert_eq!(elsewhere.is_some_and(|row| row.is_proven()), suspect, "{jobs}");
        }
    }
}
