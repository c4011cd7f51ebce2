//! Compares the provider's resources with the record, for `pool leaks`, and deletes orphans on request.
//!
//! Needs no keeper and disturbs none: it deletes only resources without a record.

use std::collections::BTreeSet;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::Location;
use greenroom_core::inventory::{Resource, ResourceKind};
use greenroom_core::orphan::{self, Knowledge, Ownership, instance_of};
use greenroom_core::plan::classify::KnownLaunches;
use greenroom_core::time::Pretty;
use greenroom_ports::provider::ProviderError;
use greenroom_ports::setup::PoolSetup;

use super::{Engine, EngineError};

/// Why the orphans are unknown.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("the provider cannot list its resources: {0}")]
    Provider(#[from] ProviderError),
    #[error("the provider's list is incomplete: there may be more resources")]
    Incomplete,
    #[error("the list is of {here}, but the pool has instances in {location}")]
    Elsewhere { location: Location, here: Location },
    #[error("{problem}")]
    Moved { problem: String },
    #[error(transparent)]
    Trouble(#[from] EngineError),
}

/// How the deletion of an orphan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// The provider no longer finds it.
    Gone,
    /// Why it still exists: a refusal that a retry does not change, or the time limit.
    Stays(String),
}

impl Engine {
    /// All of the provider's resources for the pool, each with its ownership.
    pub async fn resources(&self, setup: &PoolSetup) -> Result<Vec<(Resource, Ownership)>, LookError> {
        let identity = self.host.leadership.identity().await.map_err(EngineError::from)?;
        if let Some(problem) = identity.moved {
            return Err(LookError::Moved { problem });
        }
        // RACE: read before and after: a resource launched or terminated meanwhile has its record in one of the two.
        let before = self.store.load().await.map_err(EngineError::from)?;
        let resources = setup.provider.resources(&self.pool).await?;
        if !resources.complete {
            return Err(LookError::Incomplete);
        }
        let recorded = self.store.load().await.map_err(EngineError::from)?;
        if let Some(here) = resources.location
            && let Some(location) = recorded.location_outside(&here)
        {
            return Err(LookError::Elsewhere { location: location.clone(), here });
        }
        let mut denied = BTreeSet::new();
        for id in orphan::possibly_gone(&resources.found, &recorded) {
            if setup.provider.endpoint(&id).await.is_err_and(|e| *e.class() == ErrorClass::NotFound) {
                denied.insert(id);
            }
        }
        let attempts = self.host.attempts.attempts_of(&self.pool).await.map_err(EngineError::from)?;
        let launches = KnownLaunches {
            recorded: &recorded,
            owner: &identity.owner,
            generations: &identity.generations,
            attempts: &attempts,
        };
        let grace = setup.policy.timing.reap_grace;
        let known = Knowledge { launches, before: &before, denied: &denied, grace, now: self.now() };
        let classified = resources.found.into_iter().map(|one| {
            let ownership = orphan::judge(&one, &known);
            (one, ownership)
        });
        let copies = resources.copies.into_iter().map(|one| {
            let ownership = orphan::judge_copy(&one, &identity.owner);
            (one, ownership)
        });
        Ok(classified.chain(copies).collect())
    }

    /// Deletes orphans, instances first. Retries each until the provider no longer finds it, for `within` at most.
    /// `report` receives each result.
    pub async fn delete(
        &self,
        setup: &PoolSetup,
        orphans: Vec<Resource>,
        within: Duration,
        report: &mut dyn FnMut(&Resource, &Deleted),
    ) {
        let until = self.now().plus(within);
        let mut pending = orphans;
        pending.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        loop {
            let is_late = self.now().reached(until);
            let mut left: Vec<Resource> = Vec::new();
            for resource in pending {
                // A resource that an instance uses may be deleted together with it.
                let is_used = left.iter().any(|other| is_instance_of(other, &resource));
                let answer = if is_used { Ok(()) } else { self.delete_once(setup, &resource).await };
                match end(answer, is_late.then_some(within)) {
                    Some(end) => report(&resource, &end),
                    None => left.push(resource),
                }
            }
            if left.is_empty() {
                return;
            }
            pending = left;
            self.host.wakeups.pause(setup.policy.timing.probe_interval).await;
        }
    }

    async fn delete_once(&self, setup: &PoolSetup, resource: &Resource) -> Result<(), ProviderError> {
        if let (ResourceKind::Instance, Some(id)) = (resource.kind, &resource.instance) {
            self.connector.discard_keys(id).await;
        }
        setup.provider.delete(resource).await
    }
}

fn is_instance_of(instance: &Resource, other: &Resource) -> bool {
    let is_one = |resource: &Resource| resource.kind == ResourceKind::Instance;
    is_one(instance) && !is_one(other) && instance_of(instance) == instance_of(other)
}

/// `None`: retry. `late`: the time limit that has passed.
fn end(answer: Result<(), ProviderError>, late: Option<Duration>) -> Option<Deleted> {
    match (answer, late) {
        (Err(error), _) if *error.class() == ErrorClass::NotFound => Some(Deleted::Gone),
        (Err(error), None) if may_pass(error.class()) => None,
        (Err(error), _) => Some(Deleted::Stays(error.to_string())),
        (Ok(()), None) => None,
        (Ok(()), Some(within)) => Some(Deleted::Stays(format!("it still exists after {}", Pretty(within)))),
    }
}

/// True if the same call may succeed a moment later.
fn may_pass(class: &ErrorClass) -> bool {
    matches!(class, ErrorClass::Transient | ErrorClass::Throttled { .. } | ErrorClass::Unknown)
}
