//! Orphans: classifies the provider's resources by the record.
//!
//! An instance is classified by the same rows of the table as in a pass; a resource of an instance, by its instance.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::ids::{InstanceId, OwnerId};
use super::instance::Phase;
use super::inventory::{Resource, ResourceKind, Status, Tags};
use super::plan::table::{self, Age, Unrecorded, Verdict};
use super::pool::PoolState;
use super::time::Stamp;
use crate::plan::listing::KnownLaunches;

/// A resource's relation to the record. Serialised as one word, for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ownership {
    /// Orphaned: it costs money, and no keeper manages it.
    Orphaned(#[serde(skip)] OrphanReason),
    /// A resource of this owner, but of a generation or number that is unknown here: another keeper works with a copy of
    /// this state, or part of the state is lost. Must not be touched.
    #[serde(rename = "unknown-generation")]
    Stranger,
    /// A resource with this owner's tags that no launch created: a copy that a person made. Must not be touched.
    Copied,
    /// Orphaned once it is older than [`reap_grace`](crate::policy::Timing::reap_grace).
    Young,
    /// The resource's instance has no record, but an open attempt names it: a job may be running on it.
    Held,
    /// A resource of a recorded instance, which the keeper manages.
    Recorded,
    /// Another owner's.
    #[serde(rename = "another-owner")]
    Foreign,
    /// A resource without tags: its owner is unknown.
    #[serde(rename = "no-tags")]
    Untagged,
}

/// The reason why a resource is orphaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OrphanReason {
    /// An instance without a record.
    Unrecorded,
    /// The instance that it was created for has no record.
    InstanceUnrecorded,
    /// The resource's instance is recorded, but no longer exists.
    InstanceGone,
}

/// The facts by which resources are classified.
#[derive(Debug, Clone, Copy)]
pub struct Knowledge<'a> {
    /// Read after the resources, so that it has the record of each instance launched in the meantime.
    pub launches: KnownLaunches<'a>,
    /// Read before them, so that it has the record of each instance terminated in the meantime.
    pub before: &'a PoolState,
    /// Recorded instances that are missing from the resources, and for which `endpoint` answered
    /// [`NotFound`](crate::failure::ErrorClass::NotFound).
    pub denied: &'a BTreeSet<InstanceId>,
    /// The limit [`reap_grace`](crate::policy::Timing::reap_grace).
    pub grace: Duration,
    pub now: Stamp,
}

/// Classifies one resource.
pub fn judge(resource: &Resource, known: &Knowledge<'_>) -> Ownership {
    let Knowledge { launches, before, denied, .. } = known;
    let Some(id) = instance_of(resource) else { return Ownership::Untagged };
    let is_instance = resource.kind == ResourceKind::Instance;
    let why = match launches.recorded.instance(&id) {
        Some(instance) if !is_instance && denied.contains(&id) && may_be_gone(&instance.phase) => {
            if !instance.holders.is_empty() {
                return Ownership::Recorded;
            }
            OrphanReason::InstanceGone
        }
        Some(_) => return Ownership::Recorded,
        None if before.instance(&id).is_some() => return Ownership::Recorded,
        None if is_instance => OrphanReason::Unrecorded,
        None => OrphanReason::InstanceUnrecorded,
    };
    // The creation time comes from another clock: one in the future gives no age. Without it, the resource counts as old:
    // a launch is recorded before it is requested.
    let is_late = resource.created.is_none_or(|created| known.now.since(created) >= known.grace);
    let age = if is_late { Age::Late } else { Age::Young };
    let kind = launches.classify(&id, resource.tags.as_ref());
    match kind {
        Unrecorded::Ours if table::unrecorded(kind, Status::Running, age).verdict == Verdict::Reap => {
            Ownership::Orphaned(why)
        }
        Unrecorded::Ours => Ownership::Young,
        Unrecorded::OursHeld => Ownership::Held,
        Unrecorded::Stranger => Ownership::Stranger,
        Unrecorded::Foreign => Ownership::Foreign,
        Unrecorded::Static => Ownership::Untagged,
    }
}

/// Classifies a resource of the pool's that no launch created: one that bears tags, or one in a group that is the pool's alone.
pub fn judge_copy(copy: &Resource, owner: &OwnerId) -> Ownership {
    match &copy.tags {
        Some(tags) if tags.owner == *owner => Ownership::Copied,
        Some(_) => Ownership::Foreign,
        None => Ownership::Untagged,
    }
}

/// The recorded instances that are missing although resources of theirs exist. The caller checks them with `endpoint`.
pub fn possibly_gone(found: &[Resource], recorded: &PoolState) -> BTreeSet<InstanceId> {
    let of_kind = |is_instance: bool| {
        let those = found.iter().filter(move |one| (one.kind == ResourceKind::Instance) == is_instance);
        those.filter_map(instance_of).collect::<BTreeSet<InstanceId>>()
    };
    let there = of_kind(true);
    let is_known = |id: &InstanceId| recorded.instance(id).is_some_and(|known| may_be_gone(&known.phase));
    of_kind(false).into_iter().filter(|id| !there.contains(id) && is_known(id)).collect()
}

/// True if an instance in this phase may be gone. One that is being launched may still appear, and a drained one is deleted
/// together with its resources.
fn may_be_gone(phase: &Phase) -> bool {
    match phase {
        Phase::Ready | Phase::Suspended { .. } | Phase::Cleaning | Phase::OutOfService { .. } => true,
        Phase::Launching | Phase::Checking | Phase::Draining { .. } => false,
    }
}

/// The instance that it is or was created for: as the provider reports it, or by its tags.
pub fn instance_of(resource: &Resource) -> Option<InstanceId> {
    let launched = |tags: &Tags| InstanceId::launched(&tags.pool, &tags.generation, tags.number);
    resource.instance.clone().or_else(|| resource.tags.as_ref().map(launched))
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Orphaned(OrphanReason::Unrecorded) => "it has no record",
            Self::Orphaned(OrphanReason::InstanceUnrecorded) => "its instance has no record",
            Self::Orphaned(OrphanReason::InstanceGone) => "its instance is gone",
            Self::Stranger => "it has this owner's tag, but was never launched from this state directory",
            Self::Copied => "it has this owner's tags, but no launch of Greenroom created it",
            Self::Young => "it is younger than `reap_grace`: its launch may be in progress",
            Self::Held => "an open attempt of a job names it",
            Self::Recorded => "recorded",
            Self::Foreign => "it has another owner",
            Self::Untagged => "it has no tags of Greenroom",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Generation, OwnerId, PoolName};
    use crate::notation::{NOW, World, ago, generation, span, world};
    use crate::plan::Observed;

    /// `volume 3 1h`: created for launch 3 an hour ago. With `ageless`, `nameless` (the provider reports no instance),
    /// `them` (another owner), `untagged`, `elsewhen` (an unknown generation).
    fn resource(text: &str) -> Resource {
        let words: Vec<&str> = text.split_whitespace().collect();
        let has = |word: &str| words.contains(&word);
        let kind = match words[0] {
            "instance" => ResourceKind::Instance,
            "volume" => ResourceKind::Volume,
            _ => ResourceKind::Other("address"),
        };
        let number = words[1].parse().unwrap();
        let generation = if has("elsewhen") { Generation::new("x") } else { generation() };
        let owner = OwnerId::new(if has("them") { "them" } else { "us" });
        let tags = Tags { pool: PoolName::new("p"), owner, generation, number };
        let instance = InstanceId::launched(&tags.pool, &tags.generation, number);
        Resource {
            kind,
            name: format!("{}-{number}", words[0]),
            instance: (!has("nameless")).then_some(instance),
            tags: (!has("untagged")).then_some(tags),
            created: (!has("ageless")).then(|| ago(span(words[2]))),
            detail: None,
        }
    }

    /// Nine launches so far, `reap_grace` is five minutes.
    fn judged(mut seen: World, before: &World, resource: &Resource) -> Ownership {
        seen.state.generations.insert(generation(), 9);
        let Observed { owner, generations, attempts, denied, .. } = &seen.observed;
        let launches = KnownLaunches { recorded: &seen.state, owner, generations, attempts };
        let denied = denied.keys().cloned().collect();
        let known =
            Knowledge { launches, before: &before.state, denied: &denied, grace: span("5m"), now: NOW };
        judge(resource, &known)
    }

    /// After `;;` instances that were recorded before the provider was called.
    fn ownership(recorded: &str, text: &str) -> Ownership {
        let (recorded, before) = recorded.split_once(";;").unwrap_or((recorded, ""));
        judged(world(recorded), &world(before), &resource(text))
    }

    #[test]
    fn whatever_the_provider_has_stands_in_one_way_to_the_record() {
        use Ownership::{Foreign, Orphaned, Recorded, Stranger, Untagged, Young};
        let rows = [
            ("", "instance 3 1h", Orphaned(OrphanReason::Unrecorded)),
            ("", "instance 3 5m", Orphaned(OrphanReason::Unrecorded)),
            ("", "instance 3 299s", Young),
            ("", "instance 3 1h ageless", Orphaned(OrphanReason::Unrecorded)),
            ("", "instance 3 1h nameless", Orphaned(OrphanReason::Unrecorded)),
            ("", "instance 9 1h", Orphaned(OrphanReason::Unrecorded)),
            ("", "instance 10 1h", Stranger),
            ("", "instance 3 1h elsewhen", Stranger),
            ("", "instance 3 1s elsewhen", Stranger),
            ("", "instance 3 1h them", Foreign),
            ("", "instance 10 1h them", Foreign),
            ("", "instance 3 1h untagged", Untagged),
            ("", "instance 3 1h untagged nameless", Untagged),
            ("idle 1h", "instance 1 1h", Recorded),
            ("requested 10s", "instance 1 1h", Recorded),
            ("draining 1h denied", "instance 1 1h", Recorded),
            // It was terminated and forgotten during the provider's call.
            (";; draining 1h", "instance 1 1h", Recorded),
            ("", "volume 3 1h", Orphaned(OrphanReason::InstanceUnrecorded)),
            ("", "volume 3 1h nameless", Orphaned(OrphanReason::InstanceUnrecorded)),
            ("", "address 3 1h", Orphaned(OrphanReason::InstanceUnrecorded)),
            ("", "volume 3 10s", Young),
            ("", "volume 3 1h them", Foreign),
            ("", "volume 3 1h untagged", Untagged),
            ("", "volume 10 1h", Stranger),
            ("idle 1h", "volume 1 1h", Recorded),
            ("idle 1h", "volume 1 1h untagged", Recorded),
            // One list without an instance proves nothing; `endpoint` has to deny it.
            ("idle 1h missing 1m", "volume 1 1h", Recorded),
            ("idle 1h denied", "volume 1 1h", Orphaned(OrphanReason::InstanceGone)),
            ("idle 1h denied", "volume 1 1m", Young),
            ("idle 1h denied", "volume 1 1h them", Foreign),
            ("out-of-service 1h denied", "volume 1 1h", Orphaned(OrphanReason::InstanceGone)),
            ("held 1h by 7 denied", "volume 1 1h", Recorded),
            ("requested 1m denied", "volume 1 1h", Recorded),
            ("draining 1h denied", "volume 1 1h", Recorded),
            (";; draining 1h", "volume 1 1h", Recorded),
        ];
        for (recorded, text, expected) in rows {
            assert_eq!(ownership(recorded, text), expected, "given `{recorded}` and `{text}`");
        }
    }

    #[test]
    fn what_an_open_attempt_names_is_in_use() {
        let instance = Resource { instance: Some(InstanceId::new("u1")), ..resource("instance 3 1h") };
        let volume = Resource { kind: ResourceKind::Volume, ..instance.clone() };
        for resource in [instance, volume] {
            let ownership = |text| judged(world(text), &world(""), &resource);
            assert_eq!(ownership("orphan 1h named 7"), Ownership::Held);
            assert_eq!(ownership("orphan 1h user 7"), Ownership::Held);
            assert!(matches!(ownership("orphan 1h"), Ownership::Orphaned(_)));
        }
    }

    #[test]
    fn only_what_is_ours_and_not_in_use_is_ever_left_over() {
        let recorded = [
            "",
            "idle 1h",
            "held 1h by 7",
            "requested 1m",
            "draining 1h",
            "idle 1h denied",
            "held 1h by 7 denied",
        ];
        for text in [
            "instance 1 9h them",
            "volume 1 9h them",
            "volume 1 9h elsewhen",
            "instance 99 9h",
            "volume 99 9h",
        ] {
            for recorded in recorded {
                assert!(
                    !matches!(ownership(recorded, text), Ownership::Orphaned(_)),
                    "given `{recorded}` and `{text}`"
                );
            }
        }
    }

    #[test]
    fn an_instance_is_doubtful_when_something_of_it_is_there_and_it_is_not() {
        let seen = world("idle 1h; idle 1h; requested 1m; draining 1h; idle 1h");
        let found: Vec<Resource> = [
            "instance 1 1h",
            "volume 1 1h",
            "volume 2 1h nameless",
            "volume 3 1m",
            "volume 4 1h",
            "volume 8 1h",
        ]
        .map(resource)
        .into();
        let doubtful = possibly_gone(&found, &seen.state);
        assert_eq!(doubtful, BTreeSet::from([InstanceId::new("p-g-2")]));
    }

    #[test]
    fn a_resource_of_no_launch_has_another_owner_only_if_its_tags_say_so() {
        let us = OwnerId::new("us");
        for (text, expected) in [
            ("instance 3 1h", Ownership::Copied),
            ("instance 3 1h them", Ownership::Foreign),
            ("instance 3 1h untagged nameless", Ownership::Untagged),
        ] {
            assert_eq!(judge_copy(&resource(text), &us), expected, "{text}");
        }
    }
}
