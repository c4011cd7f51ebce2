//! What the provider listed, and how far it can be trusted.

use super::ids::{Generation, InstanceId, OfferingName, OwnerId, PoolName};
use super::time::Stamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The tags on everything we create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tags {
    pub pool: PoolName,
    pub owner: OwnerId,
    pub generation: Generation,
    /// Counts launches within the generation, from 1.
    pub number: u32,
}

/// What a provider says an instance is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Asked for, booting, or rebooting.
    Starting,
    Running,
    /// Stopping, stopped, failed, or being deleted.
    Stopping,
}

/// One instance in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub id: InstanceId,
    /// `None` for a fixed host: it is the operator's, not our making.
    pub tags: Option<Tags>,
    pub status: Status,
    /// When the provider made it, if it says so.
    pub created: Option<Stamp>,
    /// What more there is to say, in a few words: how it was booted; of one that has ended, how, as what follows its name
    /// (`was reclaimed by EC2`), or nothing.
    pub detail: Option<String>,
    /// What a fixed host has that others of its pool may not have; `None` for what we made.
    pub fixed: Option<Fixed>,
}

/// What a provider says of a fixed host beside its status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fixed {
    /// Jobs at once; `None`: the pool's `capacity_per_instance`.
    pub capacity: Option<u32>,
    /// Why it cannot be used now, and what helps.
    pub problem: Option<String>,
}

/// One answer of `list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// When the call began; what happened later may be missing.
    pub begun: Stamp,
    /// False if anything was cut off. An incomplete list proves no absence.
    pub complete: bool,
    /// Sorted by id.
    pub instances: Vec<Listed>,
}

/// What kind of thing a provider keeps for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    Instance,
    Volume,
    /// By its word for people, in lower case: `address`, `snapshot`.
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

/// One thing that bills, or counts against a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub kind: ResourceKind,
    /// The provider's own id for it, unique in its pool, as its console and its tools show it: `i-0a1b2c3d`.
    pub name: String,
    /// The instance that it is, or was made for, where the provider knows; tags say as much.
    pub instance: Option<InstanceId>,
    /// `None`: not of our making, or it cannot carry tags.
    pub tags: Option<Tags>,
    /// When the provider made it, if it says so.
    pub created: Option<Stamp>,
    /// What more there is to say, in a few words: its type and zone, how large it is.
    pub detail: Option<String>,
}

/// Everything that a provider keeps for a pool, in one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// When the first call began; what happened later may be missing.
    pub begun: Stamp,
    /// False if anything was cut off: then there may be more of it.
    pub complete: bool,
    pub found: Vec<Resource>,
}

impl From<Listing> for Resources {
    /// The instances that were made for us; the operator's own hosts are no resources.
    fn from(Listing { begun, complete, instances }: Listing) -> Self {
        let made = instances.into_iter().filter(|listed| listed.tags.is_some());
        let resource = |Listed { id, tags, created, detail, .. }: Listed| Resource {
            kind: ResourceKind::Instance,
            name: id.to_string(),
            instance: Some(id),
            tags,
            created,
            detail,
        };
        Self { begun, complete, found: made.map(resource).collect() }
    }
}

/// What `plan` may know about a provider's powers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Can instances be made and thrown away? Fixed hosts cannot: they are adopted and cleaned.
    pub launches: bool,
    /// Does the same launch token make no second instance? If not, an unanswered launch is waited for.
    pub idempotent_launch: bool,
    /// Do instances boot on this very machine, and how many at once before one takes the other's time? Refilling
    /// then yields to jobs that wait, and asking how far an instance has come costs nothing. `None`: elsewhere.
    pub boots_here: Option<u32>,
    /// The ways in which it can launch, the preferred one first; each launch names one. Empty: there is one way only.
    pub offerings: Arc<[OfferingName]>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { launches: true, idempotent_launch: true, boots_here: None, offerings: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_the_instances_that_bill_and_no_host_of_the_operators() {
        let at = crate::core::notation::NOW;
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
            fixed: None,
        };
        let instances = vec![listed("linux-3f9a-1", Some(tags.clone())), listed("mac-1", None)];
        let resources = Resources::from(Listing { begun: at, complete: false, instances });
        let made = Resource {
            kind: ResourceKind::Instance,
            name: "linux-3f9a-1".to_owned(),
            instance: Some(InstanceId::new("linux-3f9a-1")),
            tags: Some(tags),
            created: Some(at),
            detail: None,
        };
        assert_eq!(resources, Resources { begun: at, complete: false, found: vec![made] });
    }
}
