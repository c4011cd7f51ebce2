//! The resources of a provider: what `pool leaks` shows, and its `--json`.
//!
//! Field names are stable: a field may be added, none is renamed or removed within a major version. Moments are
//! RFC 3339 in UTC; fields that end in `_s` are whole seconds.

use std::collections::BTreeSet;
use std::path;
use std::time::Duration;

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::{Resource, ResourceKind};
use greenroom_core::orphan::{Ownership, instance_of};
use greenroom_core::time::Stamp;
use serde::Serialize;

use crate::cli::fields;

/// One pool.
#[derive(Debug, Serialize)]
pub(super) struct PoolView {
    pub(super) pool: PoolName,
    /// When the resources were listed.
    #[serde(serialize_with = "fields::moment")]
    pub(super) at: Stamp,
    /// How many of `resources` are orphaned.
    pub(super) orphaned: usize,
    /// How many have this owner's tag but were never launched from here: a copy of this state is in use, or a part of it is
    /// lost. While there are any, nothing is deleted, as in a pass.
    pub(super) unknown_generation: usize,
    /// How many have this owner's tags but were created by no launch: copies that a person made. They are never touched.
    pub(super) copied: usize,
    /// All resources of the provider, recorded ones included.
    pub(super) resources: Vec<ResourceView>,
    /// With `--terminate`, what was deleted; null without it. `resources` is then the state before.
    pub(super) deletion: Option<DeletionView>,
}

#[derive(Debug, Serialize)]
pub(super) struct ResourceView {
    /// `instance`, `volume`, or another word of the provider's.
    #[serde(serialize_with = "fields::text")]
    pub(super) kind: ResourceKind,
    /// The provider's own id.
    pub(super) name: String,
    /// The instance that it is or was created for, by Greenroom's name.
    pub(super) instance: Option<InstanceId>,
    /// `orphaned`, `unknown-generation`, `copied`, `young`, `held`, `recorded`, `another-owner`, `no-tags`.
    pub(super) ownership: Ownership,
    /// Its relation to the record, in one sentence.
    pub(super) reason: String,
    owner: Option<OwnerId>,
    generation: Option<Generation>,
    #[serde(serialize_with = "fields::moment")]
    created: Option<Stamp>,
    #[serde(serialize_with = "fields::seconds")]
    pub(super) age_s: Option<Duration>,
    pub(super) detail: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct DeletionView {
    /// Nothing was deleted; `gone` lists what would be.
    pub(super) dry_run: bool,
    /// Names of deleted resources.
    pub(super) gone: Vec<String>,
    pub(super) stays: Vec<StaysView>,
}

#[derive(Debug, Serialize)]
pub(super) struct StaysView {
    pub(super) name: String,
    pub(super) reason: String,
}

/// An interrupted `doctor --boot`, with the instances that it recorded.
#[derive(Debug, Serialize)]
pub(super) struct BootView<'a> {
    #[serde(serialize_with = "fields::text")]
    pub(super) directory: path::Display<'a>,
    /// Null: nothing was launched yet.
    pub(super) pool: Option<&'a PoolName>,
    pub(super) instances: &'a [InstanceId],
}

impl PoolView {
    /// `boots`: the owners of the test boots of `doctor --boot`.
    pub(super) fn of(
        pool: PoolName,
        at: Stamp,
        found: Vec<(Resource, Ownership)>,
        boots: &BTreeSet<OwnerId>,
    ) -> Self {
        let count = |is: fn(Ownership) -> bool| found.iter().filter(|(_, ownership)| is(*ownership)).count();
        Self {
            pool,
            at,
            orphaned: count(|ownership| matches!(ownership, Ownership::Orphaned(_))),
            unknown_generation: count(|ownership| ownership == Ownership::Stranger),
            copied: count(|ownership| ownership == Ownership::Copied),
            resources: found.into_iter().map(|one| ResourceView::of(one, at, boots)).collect(),
            deletion: None,
        }
    }

    /// How many are orphaned, or may be.
    pub(super) fn left(&self) -> usize {
        self.orphaned + self.unknown_generation
    }

    /// True if nothing is orphaned, as far as can be determined.
    pub(super) fn is_clean(&self) -> bool {
        self.orphaned == 0 && self.unknown_generation == 0 && self.copied == 0
    }
}

impl ResourceView {
    fn of((resource, ownership): (Resource, Ownership), at: Stamp, boots: &BTreeSet<OwnerId>) -> Self {
        let instance = instance_of(&resource);
        let Resource { kind, name, tags, created, detail, .. } = resource;
        let (owner, generation) = tags.map(|tags| (tags.owner, tags.generation)).unzip();
        let reason = match (ownership, &owner) {
            (Ownership::Foreign, Some(owner)) if boots.contains(owner) => {
                "a `doctor --boot` launched it: that one or the next terminates it".to_owned()
            }
            (Ownership::Foreign, Some(owner)) => format!("{ownership}, `{owner}`"),
            _ => ownership.to_string(),
        };
        let age_s = created.map(|created| at.since(created));
        Self { kind, name, instance, ownership, reason, owner, generation, created, age_s, detail }
    }
}
