//! The port of a cloud's API, [`Api`]: one call each, no decisions.

use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Forward;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{Location, OwnerId};
use greenroom_core::inventory::Resource;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::time::Stamp;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, ProviderError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::machine::{Handle, Machine, MachineId};
use super::offerings::Offering;

/// One list of a pool's machines.
#[derive(Debug, Clone)]
pub struct Machines<Id = Handle> {
    pub all: Vec<Machine<Id>>,
    /// False if machines may be missing, because a zone could not be listed.
    pub complete: bool,
    /// The account and the region, or the project; `None`: unknown now.
    pub location: Option<Location>,
}

/// A disk with a pool's tags.
#[derive(Debug, Clone)]
pub struct Disk<Id = Handle> {
    pub resource: Resource,
    /// The machine that uses it.
    pub attached: Option<Id>,
}

/// A pool's disks.
#[derive(Debug, Clone)]
pub struct Disks<Id = Handle> {
    pub all: Vec<Disk<Id>>,
    /// False if some may be missing.
    pub complete: bool,
}

/// A cloud's answer to a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created<Id = Handle> {
    pub handle: Id,
    /// True if the cloud has capacity for it. Some clouds accept a launch before they look for capacity.
    pub capacity_confirmed: bool,
}

/// The way to a machine, as far as the API reports more than the table and the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    pub address: Option<String>,
    pub port: Option<u16>,
    /// The host key that the machine made itself; `None`: it has that of its launch.
    pub host_key: Option<String>,
    /// The port-forward that leads to it; `None`: its address does.
    pub forward: Option<Forward>,
}

/// The result of a termination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Requested,
    /// The machine no longer exists, although a list may still show it.
    Gone,
}

/// Status of a launch that the cloud accepted before it found capacity.
#[derive(Debug, Clone)]
pub enum LaunchStatus {
    /// The cloud reports nothing.
    Unknown,
    /// The cloud is still looking for capacity.
    Pending,
    Confirmed,
    Refused(ProviderError),
}

/// A cloud's API, as far as one pool needs it. A call that creates something returns [`ErrorClass::Unknown`] if no answer came.
/// The library's own retries are off, because the engine decides about retries.
#[async_trait(?Send)]
pub trait Api {
    /// Everything that a launch call sends, stored before the call so that a repeat is identical.
    type LaunchSpec: Serialize + DeserializeOwned;

    /// The identifier of a machine.
    type MachineId: MachineId;

    /// The launch spec of a request. Makes no call.
    fn launch_spec(
        &self,
        request: &LaunchRequest,
        offering: &Offering,
    ) -> Result<Self::LaunchSpec, ProviderError>;

    /// The form in which machines show the token of the launch that created them.
    fn shown_token(&self, owner: &OwnerId, token: &str) -> String;

    /// True if it launches machines that jobs order.
    fn makes_orders(&self) -> bool {
        false
    }

    /// The interval at which a list has to look for notices.
    fn notice_interval(&self) -> Duration;

    /// The notice in the answers of a machine's metadata service, in the words of the list's notices. The answers come from the
    /// machine, and may be forged.
    fn announced(&self, answers: &MetadataAnswers) -> Option<&'static str>;

    /// The time after the last call for a launch in which a list may lack its machine, and other calls may deny it: clouds
    /// usually show new machines seconds late.
    fn list_lag(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// The account that the cloud throttles, if only its answers show it. Pools with the same one share its API back-off.
    fn account(&self) -> Option<String> {
        None
    }

    /// True if a repeated [`create`](Api::create) finds the machine of the first one. If false, it is repeated only when lists
    /// prove that there is no machine.
    fn repeats_find_the_machine(&self) -> bool {
        true
    }

    /// Creates one machine. A repeat with the same spec never creates a second one, unless
    /// [`repeats_find_the_machine`](Api::repeats_find_the_machine) is false.
    async fn create(&self, spec: &Self::LaunchSpec) -> Result<Created<Self::MachineId>, ProviderError>;

    /// All machines with the pool's tag, of any owner, including terminated ones that the cloud still lists.
    async fn machines(&self) -> Result<Machines<Self::MachineId>, ProviderError>;

    /// Status of an accepted launch whose machine is not listed, or listed as stopped or terminating. Polled, for many launches
    /// concurrently.
    async fn launch_status(&self, _spec: &Self::LaunchSpec) -> Result<LaunchStatus, ProviderError> {
        Ok(LaunchStatus::Unknown)
    }

    /// True if it is time to ask for the status of an accepted launch whose machine is listed without capacity: some clouds
    /// keep it so for ever.
    fn is_overdue(&self, _machine: &Machine<Self::MachineId>) -> bool {
        false
    }

    /// The interval at which the capacity of an accepted launch is polled.
    fn capacity_interval(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// The way to a running machine.
    async fn access(&self, _machine: &Machine<Self::MachineId>) -> Result<Access, ProviderError> {
        Ok(Access::default())
    }

    /// Requests the termination of a machine, with its disks.
    async fn delete(&self, machine: &Self::MachineId) -> Result<(), ProviderError>;

    /// Terminates a machine like [`delete`](Api::delete), for an API that knows when the machine is gone.
    async fn end(&self, machine: &Self::MachineId) -> Result<Ended, ProviderError> {
        self.delete(machine).await.map(|()| Ended::Requested)
    }

    /// The console output of a machine.
    async fn console(&self, machine: &Self::MachineId) -> Result<String, ProviderError>;

    /// All other resources with the pool's tag that bill or count against a quota, of any owner. Their ages are relative
    /// to `now`.
    async fn disks(&self, now: Stamp) -> Result<Disks<Self::MachineId>, ProviderError>;

    /// True if a resource itself shows that a launch created it.
    fn is_of_launch(&self, _resource: &Resource) -> bool {
        false
    }

    /// Requests the deletion of a resource: [`ErrorClass::NotFound`] if it is gone, [`ErrorClass::Transient`] while a machine
    /// uses it.
    async fn delete_resource(&self, resource: &Resource) -> Result<(), ProviderError>;

    /// Checks for `doctor`, without launching anything.
    async fn examine(&self, demand: &Demand) -> Vec<Finding>;
}

/// The kind of a call, which decides the class of some errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// A call that creates something: "not found" concerns something that the request names.
    Create,
    /// A call that reads or deletes something: a repeat does no harm.
    Existing,
}

impl CallKind {
    /// The class of a call without an answer, which the cloud may have carried out.
    pub fn unanswered(self) -> ErrorClass {
        match self {
            Self::Create => ErrorClass::Unknown,
            Self::Existing => ErrorClass::Transient,
        }
    }
}
