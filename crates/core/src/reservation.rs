//! A job's standing request for capacity, and its place in the queue.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{AttemptName, TrustDomain};
use super::job::JobFacts;
use super::order::RefusedOrder;
use super::own_launch::OwnLaunches;
use super::time::{ManagerId, Stamp, millis};

/// A job's place in the queue. Lower comes first.
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
    /// When this attempt requested it.
    pub requested_at: Stamp,
    /// How long this attempt may wait, less the time that earlier attempts of the job waited.
    #[serde(with = "millis")]
    pub remaining_timeout: Duration,
    /// The provider refused to make its order: nothing is launched for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedOrder>,
    /// The refused launches of the instance that it ordered.
    #[serde(default, skip_serializing_if = "OwnLaunches::is_unused")]
    pub own: OwnLaunches,
}

impl Reservation {
    /// The manager whose attempt it is: the one that recorded the request.
    pub fn manager(&self) -> ManagerId {
        self.requested_at.manager
    }

    pub fn deadline(&self) -> Stamp {
        self.requested_at.plus(self.remaining_timeout)
    }
}

/// The queue place of a job whose attempt ended, kept as long as a retry may come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    pub ticket: Ticket,
    pub ended_at: Stamp,
    /// The rest of its `acquire_timeout`.
    #[serde(with = "millis")]
    pub remaining_timeout: Duration,
}
