//! What a cloud is asked: one call each, no decision.

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::machine::{Handle, Machine};
use super::offerings::Offering;
use crate::core::inventory::Resource;
use crate::core::time::Stamp;
use crate::port::finding::Finding;
use crate::port::provider::{Demand, LaunchRequest, ProviderError};

/// One look at all machines of a pool.
#[derive(Debug, Clone, Default)]
pub struct Machines {
    pub all: Vec<Machine>,
    /// Was nothing cut off? A zone that could not be asked makes it false.
    pub complete: bool,
}

/// What a pool has beside machines.
#[derive(Debug, Clone, Default)]
pub struct ResourceList {
    pub all: Vec<Resource>,
    /// Was nothing cut off?
    pub complete: bool,
}

/// What a cloud answers to a creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    pub handle: Handle,
    /// Is it certain that there is a place for it? Some clouds say yes first, and look for one then.
    pub capacity_confirmed: bool,
}

/// What became of an order that was accepted before there was a place for it.
#[derive(Debug, Clone)]
pub enum LaunchStatus {
    /// Nobody says.
    Unknown,
    /// A place is being looked for.
    Pending,
    Confirmed,
    Refused(ProviderError),
}

/// A cloud's interface, as far as one pool needs it. Errors are `Unknown` where no answer came to a call that makes
/// something; the cloud's own retries are off, for the engine decides about those.
#[async_trait(?Send)]
pub trait Api {
    /// All that a creation says, complete: kept before the call, so that a repeat says the same.
    type LaunchSpec: Serialize + DeserializeOwned;

    /// What a launch will say. Asks nobody.
    fn launch_spec(
        &self,
        request: &LaunchRequest,
        offering: &Offering,
    ) -> Result<Self::LaunchSpec, ProviderError>;

    /// Makes one machine. The same order again finds the same machine, never a second one.
    async fn create(&self, spec: &Self::LaunchSpec) -> Result<Created, ProviderError>;

    /// Everything with the pool's tag, of any owner; what has ended too, as long as the cloud tells of it.
    async fn machines(&self) -> Result<Machines, ProviderError>;

    /// What became of an order that was accepted, and whose machine no list has, or has as ending. Asked again and again, and for many orders
    /// at once.
    async fn launch_status(&self, _spec: &Self::LaunchSpec) -> Result<LaunchStatus, ProviderError> {
        Ok(LaunchStatus::Unknown)
    }

    /// Asks for the end of a machine, with its disks.
    async fn delete(&self, machine: &Handle) -> Result<(), ProviderError>;

    /// What it wrote on its console.
    async fn console(&self, machine: &Handle) -> Result<String, ProviderError>;

    /// Everything else with the pool's tag that bills or counts, of any owner: disks. Their ages are
    /// seen from `now`.
    async fn resources(&self, now: Stamp) -> Result<ResourceList, ProviderError>;

    /// Asks for the deletion of one of them; `NotFound` when it is gone, `Transient` as long as a machine uses it.
    async fn delete_resource(&self, resource: &Resource) -> Result<(), ProviderError>;

    /// What can be found out without launching, for `doctor`.
    async fn examine(&self, demand: &Demand) -> Vec<Finding>;
}
