//! Launches, lists and terminates instances.
//!
//! A provider does not wait, retry or decide. Every difference between providers that matters to a decision is a capability
//! ([`Capabilities`]). A provider is done when it passes the contract in crates/harness/src/provider.rs.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::{InstanceId, OfferingName, PoolName};
use greenroom_core::images::FoundImage;
use greenroom_core::inventory::{Capabilities, Listing, Notice, Resource, ResourceKind, Resources, Tags};
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::order::{LaunchOrder, RefusedOrder};
use greenroom_core::report::ApiCalls;

use crate::finding::Finding;

/// One launch, complete: a repeat after an unknown answer is identical, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRequest {
    pub instance: InstanceId,
    /// Instance id and attempt number: the provider's idempotency token.
    pub token: String,
    pub tags: Tags,
    /// One of [`Capabilities::offerings`]; `None` if there are none. Committed before the call, so it may stem from an
    /// earlier configuration: a provider that no longer has it answers [`ErrorClass::Invalid`].
    pub offering: Option<OfferingName>,
    pub keys: InstanceKeys,
    /// The instance shuts itself down this long after its boot, if the provider supports that. It bounds the cost of a
    /// runner host that is lost permanently. `None`: it runs until it is terminated.
    pub lifetime: Option<Duration>,
    /// The order of the job that the launch is for; `None`: the pool's own kind of instance. Only where
    /// [`Capabilities::orders`] says so.
    pub order: Option<LaunchOrder>,
}

/// The keys an instance starts with.
#[derive(Clone, PartialEq, Eq)]
pub struct InstanceKeys {
    /// The only key that may log in, in OpenSSH format.
    pub authorized_key: String,
    /// The host key that the instance presents: private, OpenSSH PEM.
    pub host_key: String,
    /// The public half of the host key, in OpenSSH format.
    pub host_key_public: String,
}

impl InstanceKeys {
    /// The secret lines of the private host key, for the search for leaks. The first and the last line of a PEM text are the same
    /// in all keys.
    pub fn secret_lines(&self) -> impl Iterator<Item = &str> {
        self.host_key.lines().filter(|line| !line.starts_with("-----") && !line.is_empty())
    }
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

    /// The error as a refusal of a job's order; `None` if its class is not [`ErrorClass::Order`].
    pub fn refused_order(&self) -> Option<RefusedOrder> {
        self.failure.refused_order()
    }
}

/// The most that a pool requests from its provider: [`Provider::examine`] compares quotas and addresses with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    pub max_instances: u32,
    /// Recorded instances, which already count against quotas.
    pub recorded: u32,
    /// Upper limit of an instance's age; `None`: unlimited.
    pub max_lifetime: Option<Duration>,
    /// Instances that are to be kept suspended.
    pub idle_stopped: u32,
}

/// The answer to a termination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// The instance still exists, or may exist, and the provider has accepted its termination.
    Requested,
    /// The instance no longer exists: the provider has removed it, or shows it as terminated.
    Gone,
}

impl Termination {
    /// The answer as the result of [`Provider::delete`].
    pub fn of_resource(self, name: &str) -> Result<(), ProviderError> {
        match self {
            Self::Requested => Ok(()),
            Self::Gone => Err(ProviderError::new(ErrorClass::NotFound, format!("`{name}` is gone"))),
        }
    }
}

fn cannot_suspend(id: &InstanceId) -> ProviderError {
    ProviderError::new(ErrorClass::Invalid, format!("this provider cannot suspend instances, such as `{id}`"))
}

/// A kind of instances: the adapter that launches, lists and terminates those of one pool.
///
/// # What an implementation promises
///
/// * **Answers.** Each call makes its requests once. It neither waits for their effect nor repeats them, and decides nothing: a
///   difference that matters to a decision is a field of [`Capabilities`]. [`launch`](Self::launch) returns when the request is
///   accepted, [`terminate`](Self::terminate) when the termination is; lists and [`endpoint`](Self::endpoint) show the rest.
/// * **Errors.** The class of a [`ProviderError`] tells whether the request was carried out. A call without an answer is
///   [`ErrorClass::Unknown`], never a guess. Every other class is definite: a launch that failed so has created nothing in this
///   call; [`ErrorClass::created_nothing`] tells about earlier ones. An id that the provider does not know, of
///   whatever form, is [`ErrorClass::NotFound`]; for [`terminate`](Self::terminate), also [`Termination::Gone`].
/// * **Repetition.** The token of a [`LaunchRequest`] yields one instance, however often it arrives, and also after a call
///   whose answer was lost. A repeat neither restarts nor changes an instance that has stopped. Another token never takes over an
///   instance. A provider that cannot promise this says so ([`Capabilities::idempotent_launch`]), and gets no repeat.
/// * **Tags.** Every instance carries the [`Tags`] of its request from its creation on, so a launch that is interrupted
///   anywhere leaves nothing that a list does not show.
/// * **Lists.** A [`Listing`] that is complete has every instance of the pool, of any owner, and says so only then. It names the
///   time at which the call began. The same holds for [`Resources`].
/// * **Concurrency.** Calls overlap, also those about one instance and those with one token: they take turns where
///   the provider needs that. Another process may hold another object for the same pool at the same time.
/// * **No memory.** A new object has the same answers about the same instances: a keeper may die at any moment. A cache may
///   save calls, and nothing else.
/// * **Deadlines.** The engine drops the future of a call that has taken two minutes; that of a launch gets `launch_timeout`
///   in addition. A dropped call counts as no answer: its requests may still be carried out.
///
/// # What a caller may rely on
///
/// A caller may rely on these, and on nothing else. An instance that a list lacks, or that [`terminate`](Self::terminate) does not
/// find, may still exist; only [`Termination::Gone`], or lists and [`endpoint`](Self::endpoint) together, prove that it does not.
/// A caller repeats [`terminate`](Self::terminate), [`suspend`](Self::suspend) and [`resume`](Self::resume) until a list shows
/// their effect.
///
/// The contract in crates/harness/src/provider.rs tests every provider.
#[async_trait(?Send)]
pub trait Provider {
    /// Starts an instance and returns when the provider has accepted it, not when it runs. The same token yields the
    /// same instance, never a second one ([`Capabilities::idempotent_launch`]).
    ///
    /// [`ErrorClass::Unknown`] if no answer arrived. A repeat fails with [`ErrorClass::NoCapacity`] or
    /// [`ErrorClass::Quota`] only if no earlier call created the instance. [`ErrorClass::Order`] if the request's order
    /// cannot be made: its message is one sentence for the author of the job.
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError>;

    /// Requests termination and returns immediately. Called until it answers [`Termination::Gone`], or until lists and
    /// [`endpoint`](Self::endpoint) prove that the instance is absent. [`ErrorClass::NotFound`] if the provider does not
    /// find it, which alone proves nothing.
    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError>;

    /// Requests that a running instance is suspended, and returns immediately: a list shows when it is. Repeated until
    /// then; one that is suspending or suspended is `Ok`. Only where [`Capabilities::suspends`] says so.
    async fn suspend(&self, id: &InstanceId) -> Result<(), ProviderError> {
        Err(cannot_suspend(id))
    }

    /// Requests that a suspended instance is resumed, and returns immediately. Repeated until it responds; one that is
    /// resuming or running is `Ok`. Its address may be another one afterwards.
    async fn resume(&self, id: &InstanceId) -> Result<(), ProviderError> {
        Err(cannot_suspend(id))
    }

    /// The operator has removed a cause of failures: calls that the provider itself puts off are made at once.
    fn forget_failures(&self) {}

    /// The problem that the provider itself finds with a running instance, beyond its status; `None`: nothing, or it has no
    /// check of its own. An error: it did not answer, which says nothing about the instance.
    async fn heartbeat(&self, _id: &InstanceId) -> Result<Option<String>, ProviderError> {
        Ok(None)
    }

    /// All instances with the pool's tag, of any owner, including those that are being created or terminated.
    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError>;

    /// The [`Endpoint`] at which an instance is reached; [`ErrorClass::NotFound`] if it does not exist,
    /// [`ErrorClass::Transient`] while it has no address yet, or while the provider may not show it yet.
    /// [`ErrorClass::Order`] if it was launched for a job, and what that job ordered turns out not to be possible: its
    /// message is one sentence for the author of the job.
    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError>;

    /// The keeper has tried to log in at the last [`endpoint`](Self::endpoint) of an instance, which denied that or not.
    /// After a denial: what the provider knows of its cause, to follow the error in a sentence.
    fn login_tried(&self, _id: &InstanceId, _denied: bool) -> Option<String> {
        None
    }

    /// Images of containers that an instance had when it came up.
    async fn images(&self, _id: &InstanceId) -> Result<Vec<FoundImage>, ProviderError> {
        Ok(Vec::new())
    }

    /// The instance's console output during its boot, newest last, for the job log when a boot fails. At most 64 KiB,
    /// without the private key of [`InstanceKeys`]. Empty while the provider has none yet.
    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError>;

    /// All resources of the pool, of any owner, that cost money or count against a quota: instances, and whatever outlives
    /// an interrupted termination. Resources that are being deleted may be omitted. The name is unique within its kind.
    ///
    /// Called for an operator, never by a pass: it may take several calls, and seconds.
    async fn resources(&self, pool: &PoolName) -> Result<Resources, ProviderError> {
        Ok(self.list(pool).await?.into())
    }

    /// Requests the deletion of one of [`resources`](Self::resources) and returns immediately. Called until it answers
    /// [`ErrorClass::NotFound`].
    ///
    /// Refuses ([`ErrorClass::Transient`]) to delete a resource that a living instance uses.
    async fn delete(&self, resource: &Resource) -> Result<(), ProviderError> {
        match (resource.kind, &resource.instance) {
            (ResourceKind::Instance, Some(id)) => self.terminate(id).await?.of_resource(&resource.name),
            (kind, _) => {
                let problem = format!(
                    "this provider can delete only instances, and `{}` is not an instance ({kind})",
                    resource.name
                );
                Err(ProviderError::new(ErrorClass::Invalid, problem))
            }
        }
    }

    /// Findings that need calls to the provider: whether a launch would be allowed (a dry run), whether the image exists,
    /// whether addresses and quotas suffice for `demand`, and whether the clocks agree. Launches and changes nothing, and
    /// costs nothing.
    ///
    /// May take as long as it needs: `doctor` has a timeout of its own. The provider's `doctor` reports mistakes in the
    /// table alone. Codes begin with the kind, and are listed in its doctor.rs.
    async fn examine(&self, _demand: &Demand) -> Vec<Finding> {
        Vec::new()
    }

    /// The event that these answers of an instance's metadata service announce. The instance may have forged them, so that
    /// only fixed words, and none of its own, may reach a message.
    fn announced(&self, _answers: &MetadataAnswers) -> Option<Notice> {
        None
    }

    fn capabilities(&self) -> Capabilities;

    /// The calls to a cloud's API since this provider was built; `None`: it calls none.
    fn api_calls(&self) -> Option<ApiCalls> {
        None
    }
}
