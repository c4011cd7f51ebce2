//! The recorded state of one pool.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::availability::Availability;
use super::counters::Counters;
use super::failure::Failure;
use super::former::FormerHost;
use super::ids::{AttemptName, Generation, InstanceId, JobKey, Location};
use super::instance::Instance;
use super::policy::Policy;
use super::reservation::{QueuePlace, Reservation, Ticket};
use super::time::Stamp;
use super::warm::RecentImages;

/// The recorded state of a pool. Only `apply` (core/apply.rs) changes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolState {
    /// Events applied since the pool began.
    pub revision: u64,
    /// The last valid policy, which the runner's calls use.
    pub policy: Option<Arc<Policy>>,
    #[serde(with = "as_list")]
    pub instances: BTreeMap<InstanceId, Arc<Instance>>,
    /// Requests without an instance, first come first.
    #[serde(with = "tickets")]
    pub waiting: BTreeMap<Ticket, Arc<Reservation>>,
    /// Requests with an instance.
    pub granted: BTreeMap<AttemptName, Grant>,
    /// Places of jobs whose attempt ended without a slot.
    #[serde(with = "places")]
    pub places: BTreeMap<JobKey, QueuePlace>,
    pub next_ticket: Ticket,
    /// Every generation that ever began here, with the highest number launched in it.
    pub generations: BTreeMap<Generation, u32>,
    pub launches: LaunchHealth,
    /// The record of recent suspensions; a failed resume counts as one.
    #[serde(default, skip_serializing_if = "LaunchHealth::is_unused")]
    pub suspensions: LaunchHealth,
    /// The offerings and their availability.
    #[serde(default, skip_serializing_if = "Availability::is_empty")]
    pub availability: Availability,
    /// Where instances were last launched or listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// Static hosts that were forgotten, the last one at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_hosts: Vec<FormerHost>,
    /// The images of the last jobs, if the pool learns what to pull in advance.
    #[serde(default, skip_serializing_if = "RecentImages::is_empty")]
    pub recent_images: RecentImages,
    /// What has happened since the pool began, for metrics.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub counters: Arc<Counters>,
    /// The reason and time of the operator's drain.
    pub drained: Option<Stamp>,
    /// When the operator last resumed the pool: calls that failed before are repeated without their back-off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Stamp>,
    /// The store loses nothing in a reboot or a power failure. The store says so each time; it is not recorded.
    #[serde(skip)]
    pub survives_reboot: bool,
}

/// A slot given to an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub instance: InstanceId,
    pub reservation: Arc<Reservation>,
}

/// The record of recent launches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchHealth {
    /// Failures since the last instance that became ready. Concurrent refusals count once.
    pub failures: u32,
    pub last: Option<(Stamp, Failure)>,
    /// Intents of the last minute, oldest first, for the rate limit.
    pub recent: Vec<Stamp>,
    /// The same for instances that jobs have ordered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent_ordered: Vec<Stamp>,
    /// Milliseconds from intent to ready of the last instances, newest last.
    pub boot_ms: Vec<u64>,
}

impl LaunchHealth {
    fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    /// Notes an intent for the rate limit.
    pub(super) fn count_intent(&mut self, ordered: bool, at: Stamp) {
        let recent = if ordered { &mut self.recent_ordered } else { &mut self.recent };
        recent.retain(|then| at.since(*then) < Duration::from_mins(1));
        recent.push(at);
    }

    /// How long an instance usually takes to become ready: the median of the last ones.
    pub fn usual_boot(&self) -> Option<Duration> {
        let mut sorted = self.boot_ms.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|ms| Duration::from_millis(*ms))
    }
}

impl PoolState {
    /// True if a grant after `recorded` may be missing: the runner host was rebooted since then, and the store may have
    /// lost its last transactions.
    pub fn may_have_forgotten(&self, recorded: Stamp, now: Stamp) -> bool {
        !self.survives_reboot && recorded.boot != now.boot
    }

    /// The location of the first instance that is not `here`.
    pub fn location_outside(&self, here: &Location) -> Option<&Location> {
        self.instances.values().find(|instance| instance.is_outside(here))?.location.as_ref()
    }

    /// The images that its idle instances should have, the most important one first.
    pub fn warm_images<'a>(&self, policy: &'a Policy) -> Cow<'a, [Arc<str>]> {
        policy.warm.images(&self.recent_images)
    }

    pub fn instance(&self, id: &InstanceId) -> Option<&Instance> {
        self.instances.get(id).map(AsRef::as_ref)
    }

    /// Instances in any phase.
    pub fn alive(&self) -> u32 {
        u32::try_from(self.instances.len()).unwrap_or(u32::MAX)
    }

    /// Slots taken by jobs.
    pub fn in_use(&self) -> u32 {
        self.instances.values().map(|i| u32::try_from(i.holders.len()).unwrap_or(u32::MAX)).sum()
    }

    /// The waiting request of an attempt.
    pub fn waiting_for(&self, attempt: &AttemptName) -> Option<&Reservation> {
        self.waiting.values().find(|r| r.attempt == *attempt).map(AsRef::as_ref)
    }

    /// Attempts of a job that wait or hold, other than `but`.
    pub fn other_attempts<'a>(
        &'a self,
        job: &'a JobKey,
        but: &'a AttemptName,
    ) -> impl Iterator<Item = &'a AttemptName> + 'a {
        let waiting = self.waiting.values().map(AsRef::as_ref);
        let granted = self.granted.values().map(|g| g.reservation.as_ref());
        // The number first: it differs between nearly all of them.
        let same = move |r: &&Reservation| r.job.key.id == job.id && r.job.key == *job;
        waiting.chain(granted).filter(same).filter(move |r| r.attempt != *but).map(|r| &r.attempt)
    }
}

impl Default for Ticket {
    fn default() -> Self {
        Ticket(1)
    }
}

fn is_empty(counters: &Arc<Counters>) -> bool {
    counters.is_empty()
}

/// Instances as a list; each contains its ID.
mod as_list {
    use super::{Arc, BTreeMap, Deserialize, Instance, InstanceId};
    use serde::{Deserializer, Serializer};

    type Map = BTreeMap<InstanceId, Arc<Instance>>;

    pub(super) fn serialize<S: Serializer>(map: &Map, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map.values())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Map, D::Error> {
        let list = Vec::<Arc<Instance>>::deserialize(from)?;
        Ok(list.into_iter().map(|i| (i.id.clone(), i)).collect())
    }
}

/// Waiting requests as a list; each contains its ticket.
mod tickets {
    use super::{Arc, BTreeMap, Deserialize, Reservation, Ticket};
    use serde::{Deserializer, Serializer};

    type Map = BTreeMap<Ticket, Arc<Reservation>>;

    pub(super) fn serialize<S: Serializer>(map: &Map, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map.values())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Map, D::Error> {
        let list = Vec::<Arc<Reservation>>::deserialize(from)?;
        Ok(list.into_iter().map(|r| (r.ticket, r)).collect())
    }
}

/// Places as pairs, because a job's key cannot be a JSON key.
mod places {
    use super::{BTreeMap, Deserialize, JobKey, QueuePlace};
    use serde::{Deserializer, Serializer};

    type Map = BTreeMap<JobKey, QueuePlace>;

    pub(super) fn serialize<S: Serializer>(map: &Map, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Map, D::Error> {
        Ok(Vec::<(JobKey, QueuePlace)>::deserialize(from)?.into_iter().collect())
    }
}
