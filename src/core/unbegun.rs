//! Whose fault it is that stages do not begin: jobs in a row of which an instance began no stage.

use serde::{Deserialize, Serialize};

use super::ids::{AttemptName, TrustDomain};

/// A row longer than this decides nothing more.
const ENOUGH: usize = 2;

/// Jobs in a row that met an instance which answered, and did not begin a stage of theirs. Any stage that begins ends the
/// row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbegun {
    /// In their order, the first few.
    pub jobs: Vec<UnbegunJob>,
    /// The last reason that the connector gave.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnbegunJob {
    pub attempt: AttemptName,
    pub domain: TrustDomain,
}

/// What a row means for the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// One job proves nothing: it may have broken the instance for itself.
    Nothing,
    /// Two jobs of one domain may share a fault. The instance gets no job until the keeper's own stage has begun there.
    Check,
    /// Two domains share nothing but the instance.
    OutOfUse,
}

impl Unbegun {
    /// The row after one more job; `None`: nothing changes, because the job has been counted, or the row is long enough.
    pub fn with(
        row: Option<&Self>,
        attempt: &AttemptName,
        domain: &TrustDomain,
        reason: &str,
    ) -> Option<Self> {
        let mut jobs = row.map(|row| row.jobs.clone()).unwrap_or_default();
        if jobs.len() >= ENOUGH || jobs.iter().any(|job| job.attempt == *attempt) {
            return None;
        }
        jobs.push(UnbegunJob { attempt: attempt.clone(), domain: domain.clone() });
        Some(Self { jobs, reason: reason.to_owned() })
    }

    pub fn consequence(&self) -> Consequence {
        let Some(first) = self.jobs.first() else { return Consequence::Nothing };
        if self.jobs.iter().any(|job| job.domain != first.domain) {
            Consequence::OutOfUse
        } else if self.jobs.len() >= ENOUGH {
            Consequence::Check
        } else {
            Consequence::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows from jobs in a row, such as `a1 b2`: attempt 1 of domain a, then attempt 2 of domain b.
    fn after(jobs: &str) -> Consequence {
        let mut row: Option<Unbegun> = None;
        for job in jobs.split_whitespace() {
            let (domain, attempt) = (TrustDomain::new(&job[..1]), AttemptName::new(job));
            row = Unbegun::with(row.as_ref(), &attempt, &domain, "exit status 97").or(row);
        }
        row.map_or(Consequence::Nothing, |row| row.consequence())
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
            assert_eq!(after(jobs), expected, "{jobs}");
        }
    }
}
