//! What the provider listed, and how far it can be trusted.

use super::ids::{Candidate, Generation, InstanceId, OwnerId, PoolName};
use super::time::Stamp;
use serde::{Deserialize, Serialize};
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
    /// What more there is to say, in a few words: how it was booted; of one that has ended, why.
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
    pub candidates: Arc<[Candidate]>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { launches: true, idempotent_launch: true, boots_here: None, candidates: Arc::default() }
    }
}
