//! The recorded state of one pool.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::availability::Availability;
use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::ids::{AttemptName, Generation, InstanceId, JobKey, Location, TrustDomain};
use crate::images::RecentImages;
use crate::instance::{Instance, Phase};
use crate::job::{QueuePlace, Reservation, Ticket};
use crate::policy::Policy;
use crate::time::Stamp;

/// The recorded state of a pool. Only [`apply`](Self::apply) changes it.
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
    /// The location in which instances were last launched or listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// Static hosts that were forgotten, the last one at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_hosts: Vec<FormerHost>,
    /// The images of the last jobs, if the pool learns what to pull in advance.
    #[serde(default, skip_serializing_if = "RecentImages::is_empty")]
    pub recent_images: RecentImages,
    /// The counts of what has happened since the pool began, for metrics.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub counters: Arc<Counters>,
    /// The reason and time of the operator's drain.
    pub drained: Option<Stamp>,
    /// Time at which the operator last resumed the pool: calls that failed before are repeated without their back-off.
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
    /// Intents of the last minute for instances that jobs have ordered, oldest first.
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

    /// The time that an instance usually takes to become ready: the median of the last ones.
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

// What the record of a static host leaves when it is forgotten: the host still has what its jobs left.

/// A static host that is no longer in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerHost {
    pub id: InstanceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<TrustDomain>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Stamp>,
    /// The reason why the host was out of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_service: Option<String>,
}

impl FormerHost {
    fn of(host: &Instance) -> Self {
        let out_of_service = match &host.phase {
            Phase::OutOfService { reason } => Some(reason.clone()),
            Phase::Launching
            | Phase::Checking
            | Phase::Ready
            | Phase::Suspended { .. }
            | Phase::Cleaning
            | Phase::Draining { .. } => None,
        };
        let id = host.id.clone();
        let endpoint = host.endpoint.clone();
        let domain = host.domain.clone();
        Self { id, endpoint, domain, released: host.released, out_of_service }
    }

    /// Gives the record of a host that returns what it had. No job comes before a cleaning, whatever it was.
    pub(super) fn restore(self, host: &mut Instance) {
        host.phase = match self.out_of_service {
            Some(reason) => Phase::OutOfService { reason },
            None => Phase::Cleaning,
        };
        host.domain = self.domain;
        host.released = self.released;
    }
}

/// True for the same account on the same machine. A machine may have got another name or another address.
fn is_same_account(a: &Endpoint, b: &Endpoint) -> bool {
    a.user == b.user && ((a.address == b.address && a.port == b.port) || a.host_key == b.host_key)
}

impl PoolState {
    /// Remembers a static host whose record is dropped, in place of an earlier one with its name.
    pub(super) fn remember(&mut self, host: &Instance) {
        let is_new = host.phase == Phase::Checking && host.ready.is_none();
        if host.is_static() && !is_new {
            self.former_hosts.retain(|former| former.id != host.id);
            self.former_hosts.push(FormerHost::of(host));
        }
    }

    /// The host that returns under this name or at this endpoint. A machine counts more than a name.
    pub fn former_host(&self, id: &InstanceId, endpoint: &Endpoint) -> Option<&FormerHost> {
        let same =
            |former: &&FormerHost| former.endpoint.as_ref().is_some_and(|at| is_same_account(at, endpoint));
        let mut hosts = self.former_hosts.iter();
        hosts.clone().find(same).or_else(|| hosts.find(|former| former.id == *id))
    }

    pub(super) fn take_former(&mut self, id: &InstanceId, endpoint: &Endpoint) -> Option<FormerHost> {
        let id = self.former_host(id, endpoint)?.id.clone();
        let place = self.former_hosts.iter().position(|former| former.id == id)?;
        Some(self.former_hosts.remove(place))
    }

    /// The recorded host that has this account and is no longer listed: it got another name, and may have jobs.
    pub fn renamed_host(&self, endpoint: &Endpoint) -> Option<&Instance> {
        let same = |host: &&Instance| host.endpoint.as_ref().is_some_and(|at| is_same_account(at, endpoint));
        let hosts = self.instances.values().map(AsRef::as_ref);
        let mut unlisted = hosts.filter(|host| host.is_static() && host.missing.is_some());
        unlisted.find(same)
    }
}
