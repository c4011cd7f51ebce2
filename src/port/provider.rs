//! Makes, lists and terminates instances.
//!
//! No waiting, no retrying, no policy. Every difference between providers that matters to a decision is a
//! capability. The contract suite in tests/contract/provider.rs says when a provider is done.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::core::endpoint::Endpoint;
use crate::core::failure::{ErrorClass, Failure};
use crate::core::ids::{InstanceId, OfferingName, PoolName};
use crate::core::inventory::{Capabilities, Listing, Resource, ResourceKind, Resources, Tags};
use crate::port::finding::Finding;

/// One launch attempt, complete: a repeat after an unknown answer is the same, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRequest {
    pub instance: InstanceId,
    /// Instance id and attempt number: the provider's idempotency token.
    pub token: String,
    pub tags: Tags,
    /// Which of `Capabilities::offerings` to launch; `None` where there are none. Committed before the call, so it may be
    /// one of an earlier configuration: a provider that knows it no more says `Invalid`.
    pub offering: Option<OfferingName>,
    pub keys: InstanceKeys,
    /// The instance ends itself this long after its boot, where the provider can see to that: a manager that is gone for
    /// good costs no more than that. `None`: it runs until somebody ends it.
    pub lifetime: Option<Duration>,
}

/// The keys an instance starts with.
#[derive(Clone, PartialEq, Eq)]
pub struct InstanceKeys {
    /// The one key that may log in, in OpenSSH form.
    pub authorized_key: String,
    /// The host key it shall answer with: private, OpenSSH PEM.
    pub host_key: String,
    /// Its public half, in OpenSSH form.
    pub host_key_public: String,
}

impl fmt::Debug for InstanceKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { authorized_key, host_key: _, host_key_public } = self;
        write!(f, "InstanceKeys {{ {authorized_key}, host key ***, {host_key_public} }}")
    }
}

/// A failed provider call.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{failure}")]
pub struct ProviderError {
    pub failure: Failure,
}

impl ProviderError {
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { failure: Failure { class, message: message.into() } }
    }

    pub fn class(&self) -> &ErrorClass {
        &self.failure.class
    }
}

/// What a pool asks of its provider at most: an examination measures quotas and addresses against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    pub max_instances: u32,
    /// Instances on record: what they take of a quota, they take already.
    pub recorded: u32,
    /// No instance lives longer; `None`: for as long as it is good.
    pub max_lifetime: Option<Duration>,
}

#[async_trait(?Send)]
pub trait Provider {
    /// Starts an instance and returns when the provider has accepted it, not when it runs. Same token again: the
    /// same instance, never a second one (`Capabilities::idempotent_launch`). `Unknown` when no answer came.
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError>;

    /// Asks for deletion and returns at once. Called until it answers `NotFound`.
    async fn terminate(&self, id: &InstanceId) -> Result<(), ProviderError>;

    /// Everything with our pool's tag, half-made and ending ones included, of any owner.
    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError>;

    /// How to reach an instance; `NotFound` if there is none, `Transient` while it has no address yet.
    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError>;

    /// What the instance wrote while booting, newest last, for the job's author when a boot fails.
    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError>;

    /// Everything of our pool, of any owner, that bills or counts against a quota: instances, and what outlives one
    /// whose termination was cut off. What is being deleted need not be named.
    ///
    /// Asked now and then by a person, never by a pass: it may take several calls, and seconds.
    async fn resources(&self, pool: &PoolName) -> Result<Resources, ProviderError> {
        Ok(self.list(pool).await?.into())
    }

    /// Asks for the deletion of one of `resources` and returns at once. Called until it answers `NotFound`.
    ///
    /// What is still in use by a living instance is refused (`Transient`), not taken from it.
    async fn delete(&self, resource: &Resource) -> Result<(), ProviderError> {
        match (resource.kind, &resource.instance) {
            (ResourceKind::Instance, Some(id)) => self.terminate(id).await,
            (kind, _) => {
                let problem = format!(
                    "this provider deletes instances only, and `{}` is no such: {kind}",
                    resource.name
                );
                Err(ProviderError::new(ErrorClass::Invalid, problem))
            }
        }
    }

    /// What can be found out by asking: would a launch be allowed (a dry run), is the image there, are addresses and
    /// quota left for `demand`, does its clock agree with ours? Launches nothing, changes nothing, and costs nothing.
    ///
    /// May take as long as it needs: `doctor` gives up after a time of its own. What its table alone says wrong is
    /// left to the provider's `doctor`. Codes begin with the kind, and stand in its doctor.rs.
    async fn examine(&self, _demand: &Demand) -> Vec<Finding> {
        Vec::new()
    }

    fn capabilities(&self) -> Capabilities;
}
