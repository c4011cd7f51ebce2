//! A job's standing request for capacity, and its place in the queue.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{AttemptName, TrustDomain};
use super::job::JobFacts;
use super::time::{Stamp, millis};

/// Where a job stands in the queue. Lower comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// A request that waits, or that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    pub ticket: Ticket,
    pub attempt: AttemptName,
    pub job: JobFacts,
    pub domain: TrustDomain,
    /// When this attempt asked.
    pub requested_at: Stamp,
    /// How long this attempt may wait, what earlier attempts of the job waited taken off.
    #[serde(with = "millis")]
    pub remaining_timeout: Duration,
}

impl Reservation {
    pub fn deadline(&self) -> Stamp {
        self.requested_at.plus(self.remaining_timeout)
    }
}

/// What remains of a job whose attempt ended: its place, for as long as a retry may come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    pub ticket: Ticket,
    pub ended_at: Stamp,
    /// What is left of its `acquire_timeout`.
    #[serde(with = "millis")]
    pub remaining_timeout: Duration,
}
