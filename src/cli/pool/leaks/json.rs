//! Orphaned resources, for scripts.
//!
//! Field names are stable: a field may be added, none is renamed or removed within a major version. Moments are
//! RFC 3339 in UTC; fields that end in `_s` are whole seconds.

use serde::Serialize;

use super::{Deletion, Seen};
use crate::cli::doctor::boot::scratch::Unfinished;
use crate::cli::when::rfc3339;
use crate::core::inventory::Resource;
use crate::core::orphan::{Ownership, instance_of};

/// One pool.
#[derive(Debug, Serialize)]
pub(super) struct PoolJson {
    pool: String,
    at: String,
    /// How many of `resources` are orphaned.
    orphaned: usize,
    /// How many have this owner's tag but were never launched from here. While there are any, nothing is deleted.
    unknown_generation: usize,
    /// All resources of the provider, recorded ones included.
    resources: Vec<ResourceJson>,
    /// With `--terminate`, what was deleted; null without it. `resources` is then the state before.
    deletion: Option<DeletionJson>,
}

#[derive(Debug, Serialize)]
struct ResourceJson {
    /// `instance`, `volume`, or another word of the provider's.
    kind: String,
    /// The provider's own id.
    name: String,
    /// The instance that it is or was created for, by Greenroom's name.
    instance: Option<String>,
    /// `orphaned`, `unknown-generation`, `young`, `held`, `recorded`, `another-owner`, `no-tags`.
    ownership: &'static str,
    reason: String,
    owner: Option<String>,
    generation: Option<String>,
    created: Option<String>,
    age_s: Option<u64>,
    detail: Option<String>,
}

#[derive(Debug, Serialize)]
struct DeletionJson {
    /// Nothing was deleted; `gone` lists what would be.
    dry_run: bool,
    /// Names of deleted resources.
    gone: Vec<String>,
    stays: Vec<StaysJson>,
}

#[derive(Debug, Serialize)]
struct StaysJson {
    name: String,
    reason: String,
}

/// An interrupted `doctor --boot`, with the instances that it recorded.
#[derive(Debug, Serialize)]
pub(super) struct BootJson {
    directory: String,
    /// Null: nothing was launched yet.
    pool: Option<String>,
    instances: Vec<String>,
}

impl BootJson {
    pub(super) fn of(left: &Unfinished) -> Self {
        Self {
            directory: left.path().display().to_string(),
            pool: left.pool.as_ref().map(ToString::to_string),
            instances: left.instances.iter().map(ToString::to_string).collect(),
        }
    }
}

pub(super) fn json(seen: &Seen, deletion: Option<&Deletion>) -> PoolJson {
    let resources = seen.found.iter().map(|(resource, ownership)| resource_json(seen, resource, *ownership));
    PoolJson {
        pool: seen.pool.to_string(),
        at: rfc3339(seen.at),
        orphaned: seen.orphans().len(),
        unknown_generation: seen.that_are(|ownership| ownership == Ownership::Stranger).count(),
        resources: resources.collect(),
        deletion: deletion.map(ended),
    }
}

fn resource_json(seen: &Seen, resource: &Resource, ownership: Ownership) -> ResourceJson {
    let tags = resource.tags.as_ref();
    ResourceJson {
        kind: resource.kind.to_string(),
        name: resource.name.clone(),
        instance: instance_of(resource).map(|id| id.to_string()),
        ownership: ownership.word(),
        reason: seen.why(resource, ownership),
        owner: tags.map(|tags| tags.owner.to_string()),
        generation: tags.map(|tags| tags.generation.to_string()),
        created: resource.created.map(rfc3339),
        age_s: resource.created.map(|at| seen.at.since(at).as_secs()),
        detail: resource.detail.clone(),
    }
}

fn ended(deletion: &Deletion) -> DeletionJson {
    let stays =
        |(resource, why): &(Resource, String)| StaysJson { name: resource.name.clone(), reason: why.clone() };
    DeletionJson {
        dry_run: deletion.dry,
        gone: deletion.gone.iter().map(|resource| resource.name.clone()).collect(),
        stays: deletion.stays.iter().map(stays).collect(),
    }
}
