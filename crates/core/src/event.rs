//! Events: the only way to change the state.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::ids::{AttemptName, Generation, InstanceId, Location, OfferingName, TrustDomain};
use super::images::FoundImage;
use super::instance::{Answer, DrainReason, Release};
use super::job::JobFacts;
use super::job_end::JobEnd;
use super::order::{Ordered, RefusedOrder};
use super::policy::{Lifetime, Policy};
use super::time::{Stamp, millis};
use super::unbegun::CheckKind;

/// Something that happened, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub at: Stamp,
    #[serde(flatten)]
    pub change: Change,
}

/// The change that an [`Event`] records. The journal uses the variants' names: a renamed variant needs a new format version.
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
    /// The provider's offerings differ from the recorded ones; the preferred one first.
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
        /// The offering to launch; `None`: the provider has no offerings.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offering: Option<OfferingName>,
        /// The location of the launch, as far as the provider's list tells.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        location: Option<Location>,
        /// The instance's lifetime; `None`: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lifetime: Option<Lifetime>,
        /// The job that it is launched for; `None`: any job of the pool may get it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ordered: Option<Arc<Ordered>>,
    },
    /// Outcome of launch attempt `attempt`.
    LaunchAnswered {
        instance: InstanceId,
        attempt: u32,
        answer: Answer,
    },
    /// The first connection to it succeeded, or the first one since it was resumed.
    Reached {
        instance: InstanceId,
        endpoint: Endpoint,
    },
    /// The instance's ready command passed, at its first boot or after it was resumed. Or the instance responds again,
    /// after it had become unreachable.
    BecameReady {
        instance: InstanceId,
    },
    /// Intent: the call that suspends it follows.
    SuspendIntended {
        instance: InstanceId,
    },
    /// A list shows it as suspended: it is in the tier *stopped*.
    Suspended {
        instance: InstanceId,
    },
    /// Intent: the call that resumes it follows. It is probed before it is ready again.
    ResumeIntended {
        instance: InstanceId,
    },
    /// A static host was found in the provider's list.
    Adopted {
        instance: InstanceId,
        endpoint: Endpoint,
        capacity: u32,
        uses_left: Option<u32>,
    },
    /// The capacity of a static host differs from the recorded one.
    Resized {
        instance: InstanceId,
        capacity: u32,
    },
    /// The endpoint of a static host differs from the recorded one: the operator has changed it.
    Readdressed {
        instance: InstanceId,
        endpoint: Endpoint,
    },
    /// A ready instance became unreachable: it gets no job until it has been reached again.
    BecameUnreachable {
        instance: InstanceId,
        reason: String,
    },
    /// A job requests capacity.
    Requested {
        attempt: AttemptName,
        job: JobFacts,
        domain: TrustDomain,
        #[serde(with = "millis")]
        acquire_timeout: Duration,
    },
    /// A slot was granted to the job.
    Granted {
        attempt: AttemptName,
        instance: InstanceId,
    },
    /// A waiting request ended without a slot.
    Withdrawn {
        attempt: AttemptName,
        how: super::attempt::End,
    },
    /// The provider refused to make what the waiting job ordered.
    OrderRefused {
        attempt: AttemptName,
        #[serde(flatten)]
        refused: RefusedOrder,
    },
    /// The job found its instance unusable before it used it: the request returns to its place in the queue.
    Rejected {
        attempt: AttemptName,
        message: String,
    },
    /// The attempt's instance answered, and did not begin a stage of the job, or not its containers.
    StageNotBegun {
        attempt: AttemptName,
        reason: String,
        #[serde(default, skip_serializing_if = "CheckKind::is_stages")]
        kind: CheckKind,
    },
    /// Stages or containers, as `kind` says, begin again on an instance where they had not begun for the jobs before.
    StageBegun {
        instance: InstanceId,
        #[serde(default, skip_serializing_if = "CheckKind::is_stages")]
        kind: CheckKind,
    },
    /// The attempt's job failed within seconds in a stage that comes before its own script.
    FailedEarly {
        attempt: AttemptName,
        reason: String,
    },
    /// The check between two jobs found the instance fit for the next one.
    Rechecked {
        instance: InstanceId,
    },
    /// The attempt's job ended, as its calls saw it. It is kept for people; one that passed clears its instance of early
    /// failures.
    JobEnded {
        attempt: AttemptName,
        #[serde(flatten)]
        end: JobEnd,
    },
    /// The attempt released its slot.
    Released {
        attempt: AttemptName,
        release: Release,
    },
    /// The last call of a closing attempt exited: its slot is free.
    SlotFreed {
        attempt: AttemptName,
    },
    /// The instance has these images.
    ImagesFound {
        instance: InstanceId,
        images: Vec<FoundImage>,
        /// The job that needed them; `None`: the keeper pulled them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<AttemptName>,
    },
    /// The instance no longer has these images.
    ImagesRemoved {
        instance: InstanceId,
        images: Vec<Arc<str>>,
    },
    CleaningBegun {
        instance: InstanceId,
    },
    Cleaned {
        instance: InstanceId,
        /// The instance's images that are still there.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        images: Vec<Arc<str>>,
    },
    OutOfService {
        instance: InstanceId,
        reason: String,
    },
    /// The operator returned an instance to service.
    ReturnedToService {
        instance: InstanceId,
    },
    /// The operator released a static host from its trust domain. It is cleaned, with its cache, before another job comes.
    Unbound {
        instance: InstanceId,
    },
    /// Never for a static host, which can only be taken out of service, cleaned, or forgotten.
    DrainingBegun {
        instance: InstanceId,
        reason: DrainReason,
    },
    /// A complete list that was requested at this time lacks it.
    MissingFromList {
        instance: InstanceId,
        begun: Stamp,
    },
    /// A list of this location shows it, and its record names another one or none.
    Located {
        instance: InstanceId,
        location: Location,
    },
    /// The instance is listed again.
    ListedAgain {
        instance: InstanceId,
    },
    /// The instance no longer exists at the provider: its record is dropped.
    Forgotten {
        instance: InstanceId,
    },
    /// The operator dropped the record of an instance whose provider no longer answers. It may still exist.
    RecordDropped {
        instance: InstanceId,
        /// The reason why the provider could not list its instances.
        problem: String,
    },
    /// The operator drained the pool: no grants, no launches, every instance is drained.
    PoolDrained,
    /// The operator resumed the pool. Also ends a pause after failed launches or suspensions, and makes all offerings
    /// available.
    PoolResumed,
}

impl Change {
    /// The event with its time.
    pub fn at(self, at: Stamp) -> Event {
        Event { at, change: self }
    }
}
