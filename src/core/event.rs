//! Events: the only way state changes.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::ids::{AttemptName, Generation, InstanceId, OfferingName, TrustDomain};
use super::instance::{Answer, DrainReason, Release};
use super::job::JobFacts;
use super::policy::Policy;
use super::time::{Stamp, millis};

/// Something that happened, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub at: Stamp,
    #[serde(flatten)]
    pub change: Change,
}

/// What happened. Written to the journal as it stands here: a renamed variant needs a new format version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Change {
    /// The keeper read a valid configuration that differs from the recorded one.
    PolicySet {
        policy: Arc<Policy>,
    },
    /// A keeper started; its launches carry this generation.
    GenerationBegun {
        generation: Generation,
    },
    /// The provider can launch in these ways, the preferred one first, and in others than are recorded.
    OfferingsChanged {
        offerings: Vec<OfferingName>,
    },
    /// Intent: the launch call follows. A higher `attempt` of a recorded instance repeats a refused launch.
    LaunchIntended {
        instance: InstanceId,
        generation: Generation,
        number: u32,
        attempt: u32,
        capacity: u32,
        uses_left: Option<u32>,
        /// In which of its ways the provider is to launch; `None`: it has one only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offering: Option<OfferingName>,
    },
    /// Outcome of launch attempt `attempt`.
    LaunchAnswered {
        instance: InstanceId,
        attempt: u32,
        answer: Answer,
    },
    /// It let us in for the first time.
    Reached {
        instance: InstanceId,
        endpoint: Endpoint,
    },
    /// Its ready command passed.
    BecameReady {
        instance: InstanceId,
    },
    /// A fixed host, found in the provider's list.
    Adopted {
        instance: InstanceId,
        endpoint: Endpoint,
        capacity: u32,
        uses_left: Option<u32>,
    },
    /// A fixed host is found to have room for another number of jobs than is recorded.
    Resized {
        instance: InstanceId,
        capacity: u32,
    },
    /// A fixed host is reached in another way than is recorded: the operator has changed it.
    Readdressed {
        instance: InstanceId,
        endpoint: Endpoint,
    },
    /// A fixed host that was ready cannot be used: it gets no job until it has been reached again.
    BecameUnreachable {
        instance: InstanceId,
        reason: String,
    },
    /// A job asks for capacity.
    Requested {
        attempt: AttemptName,
        job: JobFacts,
        domain: TrustDomain,
        #[serde(with = "millis")]
        acquire_timeout: Duration,
    },
    /// A slot is the job's.
    Granted {
        attempt: AttemptName,
        instance: InstanceId,
    },
    /// A waiting request ended without a slot.
    Withdrawn {
        attempt: AttemptName,
        how: super::attempt::End,
    },
    /// The job found its instance unusable before it used it: the request waits again at its old place.
    Rejected {
        attempt: AttemptName,
        message: String,
    },
    /// The attempt gave its slot back.
    Released {
        attempt: AttemptName,
        release: Release,
    },
    /// The last call of a lingering attempt ended.
    SlotFreed {
        attempt: AttemptName,
    },
    CleaningBegun {
        instance: InstanceId,
    },
    Cleaned {
        instance: InstanceId,
    },
    OutOfService {
        instance: InstanceId,
        reason: String,
    },
    /// The operator brings an instance that was set aside back.
    ReturnedToService {
        instance: InstanceId,
    },
    /// Never a fixed host: it cannot be thrown away, only set aside, cleaned, or forgotten when it is gone.
    DrainingBegun {
        instance: InstanceId,
        reason: DrainReason,
    },
    /// A complete list, begun then, lacks it.
    MissingFromList {
        instance: InstanceId,
        begun: Stamp,
    },
    /// It is in the list again.
    ListedAgain {
        instance: InstanceId,
    },
    /// It is gone at the provider; the record goes too.
    Forgotten {
        instance: InstanceId,
    },
    /// The operator stops the pool: no grants, no launches, every instance is drained.
    PoolDrained,
    /// The operator lets the pool work again; also ends a pause after failed launches, and no offering is passed over.
    PoolResumed,
}

impl Change {
    /// The event with its moment.
    pub fn at(self, at: Stamp) -> Event {
        Event { at, change: self }
    }
}
