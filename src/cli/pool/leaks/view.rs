//! The resources of a provider: what `pool leaks` shows, as text and as `--json`.
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
use crate::cli::ui::{Rows, plural, wrapped};
use crate::cli::when::whole;

/// The resources of one pool.
#[derive(Debug, Serialize)]
pub(super) struct PoolView {
    pub(super) pool: PoolName,
    /// The moment when the resources were listed.
    #[serde(serialize_with = "fields::moment")]
    pub(super) at: Stamp,
    /// The number of orphaned resources among `resources`.
    pub(super) orphaned: usize,
    /// The number of resources with this owner's tag that were never launched from here: a copy of this state is in
    /// use, or a part of it is lost. While there are any, nothing is deleted, as in a pass.
    pub(super) unknown_generation: usize,
    /// The number of resources with this owner's tags that no launch created: copies that a person made. They are never
    /// touched.
    pub(super) copied: usize,
    /// All resources of the provider, recorded ones included.
    pub(super) resources: Vec<ResourceView>,
    /// The deletion that `--terminate` asked for; null without it. `resources` is then the state before.
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
    /// The relation of the resource to the record, in one sentence.
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
    /// True if nothing was deleted; `gone` then lists the resources that would be.
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
    /// The pool that was booted; null: nothing was launched yet.
    pub(super) pool: Option<&'a PoolName>,
    pub(super) instances: &'a [InstanceId],
}

impl PoolView {
    /// The view of a check. `boots`: the owners of the test boots of `doctor --boot`.
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

    /// The number of resources that are orphaned, or may be.
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

/// All resources: orphaned ones first, then those that are not counted; recorded ones as a number.
pub(super) fn found(seen: &PoolView, width: usize) -> String {
    let mut text = head(seen);
    text.push_str(&table(seen, width, |ownership| matches!(ownership, Ownership::Orphaned(_))));
    let others =
        table(seen, width, |ownership| !matches!(ownership, Ownership::Orphaned(_) | Ownership::Recorded));
    if !others.is_empty() {
        text.push_str("\nnot counted, and left alone:\n");
        text.push_str(&others);
    }
    if seen.unknown_generation > 0 {
        let error = "error: a copy of this state directory is in use, or a part of the directory is lost: nothing of this \
                     pool is deleted while such resources exist";
        let help =
            "help: stop the keeper of the copy; if there is none, delete these resources at the provider";
        text.push_str(&alarm(error, help, width));
    }
    if seen.copied > 0 {
        let error = "error: resources bear this owner's tags, but Greenroom did not launch them: copies of an instance, as \
                     the console's `Launch more like this` makes them. They cost money, and Greenroom never touches them";
        let help = "help: delete them at the provider, or remove their tags `greenroom-…`";
        text.push_str(&alarm(error, help, width));
    }
    text
}

fn alarm(error: &str, help: &str, width: usize) -> String {
    format!("\n{}{}", wrapped(error, width, "  ", "    "), wrapped(help, width, "  ", "    "))
}

/// The result in one line.
pub(super) fn head(seen: &PoolView) -> String {
    let recorded = seen.resources.iter().filter(|one| one.ownership == Ownership::Recorded).count();
    let left = match seen.orphaned {
        0 => "no orphaned resources".to_owned(),
        count => plural(count, "orphaned resource"),
    };
    format!("pool {}: {left}, {recorded} recorded\n", seen.pool)
}

fn table(seen: &PoolView, width: usize, is: impl Fn(Ownership) -> bool) -> String {
    let mut rows = Rows::new(&["KIND", "NAME", "INSTANCE", "AGE"]);
    for one in seen.resources.iter().filter(|one| is(one.ownership)) {
        let instance = one.instance.as_ref().map_or("-".to_owned(), ToString::to_string);
        let age = one.age_s.map_or("-".to_owned(), |age| whole(age).to_string());
        rows.row(vec![one.kind.to_string(), one.name.clone(), instance, age], vec![sentence(one)]);
    }
    if rows.is_empty() { String::new() } else { rows.render(width) }
}

/// A sentence about a resource, with the provider's detail.
fn sentence(one: &ResourceView) -> String {
    match &one.detail {
        Some(detail) => format!("{} ({detail})", one.reason),
        None => one.reason.clone(),
    }
}

/// `instance i-0a1b2c3d (linux-7f3a01c2-12)`.
pub(super) fn named(resource: &Resource) -> String {
    let Resource { kind, name, .. } = resource;
    match instance_of(resource) {
        Some(id) if id.as_str() != name => format!("{kind} {name} ({id})"),
        _ => format!("{kind} {name}"),
    }
}
