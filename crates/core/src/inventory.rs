//! The provider's list, and how far it can be trusted.

use super::ids::{Generation, InstanceId, Location, OfferingName, OwnerId, PoolName};
use super::order::RefusedOrder;
use super::own_key::OwnKey;
use super::time::Stamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The tags on everything that Greenroom creates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tags {
    pub pool: PoolName,
    pub owner: OwnerId,
    pub generation: Generation,
    /// Counts launches within the generation, from 1.
    pub number: u32,
}

/// The state of an instance, as the provider reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Requested, booting, or rebooting.
    Starting,
    Running,
    /// Suspended by a call: it may be resumed.
    Suspended,
    /// Stopping, stopped, failed, or being deleted.
    Stopping,
}

/// One instance in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub id: InstanceId,
    /// `None` for a static host, which Greenroom did not create.
    pub tags: Option<Tags>,
    pub status: Status,
    /// Time at which the provider created the instance, if reported.
    pub created: Option<Stamp>,
    /// Short details: how it was booted. For a terminated instance: why, to follow its name in a sentence (`was
    /// reclaimed by EC2`), or nothing.
    pub detail: Option<String>,
    /// True if a job ended a terminated instance by using up its memory or disk.
    pub by_job: bool,
    /// The refusal of the order, if the instance was launched for a job whose order turned out not to be possible.
    pub refused: Option<RefusedOrder>,
    /// Properties of a static host; `None` for a launched instance.
    pub static_host: Option<StaticHost>,
    /// The provider's announcement that it will interrupt or end the instance.
    pub notice: Option<Notice>,
}

/// The announcement of what a provider is about to do to an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The end of a sentence that begins with the instance's name: `will be reclaimed by EC2 (spot)`.
    pub text: String,
    /// The earliest time at which it happens; `None`: at any moment.
    pub at: Option<Stamp>,
}

/// Properties of a static host, in addition to its status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StaticHost {
    /// Concurrent jobs; `None`: the pool's [`capacity_per_instance`](crate::policy::Policy::capacity_per_instance).
    pub capacity: Option<u32>,
    /// The reason why the host cannot be used now, and the fix.
    pub problem: Option<String>,
}

/// One answer of `list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Time at which the call began; later changes may be missing.
    pub begun: Stamp,
    /// False if anything may be missing. An incomplete list does not prove absence.
    pub complete: bool,
    /// The location that was listed; `None`: unknown now. A list proves nothing about instances of another location.
    pub location: Option<Location>,
    /// Sorted by id.
    pub instances: Vec<Listed>,
    /// Copies as in [`Resources::copies`]; instances only.
    pub copies: Vec<Resource>,
}

impl Listing {
    /// A complete list without instances.
    pub fn empty(begun: Stamp, location: Option<Location>) -> Self {
        Self { begun, complete: true, location, instances: Vec::new(), copies: Vec::new() }
    }
}

/// The kind of a provider's resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    Instance,
    Volume,
    /// A kind by its name for people, in lower case: `address`, `snapshot`.
    Other(&'static str),
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Instance => "instance",
            Self::Volume => "volume",
            Self::Other(word) => word,
        })
    }
}

/// A resource that costs money or counts against a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub kind: ResourceKind,
    /// The provider's own ID for it, unique in its pool, as the provider's console and tools show it: `i-0a1b2c3d`.
    pub name: String,
    /// The instance that it is, or was created for, if the provider reports it; the tags contain the same.
    pub instance: Option<InstanceId>,
    /// `None`: Greenroom did not create it, or it cannot carry tags.
    pub tags: Option<Tags>,
    /// Time at which the provider created the resource, if reported.
    pub created: Option<Stamp>,
    /// Short details: its type and zone, its size.
    pub detail: Option<String>,
}

/// All resources of a pool, in one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// Time at which the first call began; later changes may be missing.
    pub begun: Stamp,
    /// False if the list may be incomplete.
    pub complete: bool,
    /// The location of the list, as [`Listing::location`].
    pub location: Option<Location>,
    pub found: Vec<Resource>,
    /// Resources with the pool's tags that no launch created, such as copies that a person made in the cloud's console.
    /// Greenroom never touches them.
    pub copies: Vec<Resource>,
}

impl From<Listing> for Resources {
    /// Launched instances; static hosts are not resources.
    fn from(Listing { begun, complete, location, instances, copies }: Listing) -> Self {
        let made = instances.into_iter().filter(|listed| listed.tags.is_some());
        let resource = |Listed { id, tags, created, detail, .. }: Listed| Resource {
            kind: ResourceKind::Instance,
            name: id.to_string(),
            instance: Some(id),
            tags,
            created,
            detail,
        };
        Self { begun, complete, location, found: made.map(resource).collect(), copies }
    }
}

/// The capabilities of a provider that [`plan`](crate::plan::plan) reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// True if instances can be launched and terminated. Static hosts are adopted and cleaned instead.
    pub launches: bool,
    /// True if a repeated launch token never creates a second instance. If false, an unanswered launch is awaited.
    pub idempotent_launch: bool,
    /// The number of instances that can boot on the runner host concurrently without slowing each other down.
    /// Refilling then yields to waiting jobs, and probing a booting instance costs nothing. `None`: they boot elsewhere.
    pub boots_here: Option<u32>,
    /// Interval at which to list instances for the sake of notices; `None`: the provider has none.
    pub notice_interval: Option<Duration>,
    /// The provider's answer to whether it can suspend and resume instances.
    pub suspends: Suspends,
    /// True if the provider can make an instance of what a job orders.
    pub orders: bool,
    /// The offerings, the preferred one first; each launch names one. Empty: the provider has only one way to launch.
    pub offerings: Arc<[OfferingName]>,
    /// The reason why the provider's plugin makes a key for logins, if it does so instead of using the pool's.
    pub own_key: Option<OwnKey>,
}

/// A provider's answer to whether it can suspend instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspends {
    No,
    /// The provider has not answered yet.
    Unknown,
    Yes,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            launches: true,
            idempotent_launch: true,
            boots_here: None,
            notice_interval: None,
            suspends: Suspends::No,
            orders: false,
            offerings: Arc::default(),
            own_key: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_the_instances_that_bill_and_no_host_of_the_operators() {
        let at = crate::notation::NOW;
        let tags = Tags {
            pool: PoolName::new("linux"),
            owner: OwnerId::new("o"),
            generation: Generation::new("3f9a"),
            number: 1,
        };
        let listed = |id: &str, tags: Option<Tags>| Listed {
            id: InstanceId::new(id),
            tags,
            status: Status::Running,
            created: Some(at),
            detail: None,
            by_job: false,
            refused: None,
            static_host: None,
            notice: None,
        };
        let instances = vec![listed("linux-3f9a-1", Some(tags.clone())), listed("mac-1", None)];
        let resources = Resources::from(Listing {
            begun: at,
            complete: false,
            location: None,
            instances,
            copies: vec![],
        });
        let made = Resource {
            kind: ResourceKind::Instance,
            name: "linux-3f9a-1".to_owned(),
            instance: Some(InstanceId::new("linux-3f9a-1")),
            tags: Some(tags),
            created: Some(at),
            detail: None,
        };
        let expected =
            Resources { begun: at, complete: false, location: None, found: vec![made], copies: vec![] };
        assert_eq!(resources, expected);
    }

    #[test]
    fn a_kind_of_resource_is_a_word_of_its_own() {
        let words = [ResourceKind::Instance, ResourceKind::Volume, ResourceKind::Other("address")];
        assert_eq!(words.map(|kind| kind.to_string()), ["instance", "volume", "address"]);
    }
}
