//! What the provider has and the record lacks: which of it is left over, and which of it is none of our business.
//!
//! An instance is judged by the same rows of the table as in a pass; what was made for one goes by its instance.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::ids::InstanceId;
use super::instance::Phase;
use super::inventory::{Resource, ResourceKind, Status, Tags};
use super::plan::classify::KnownLaunches;
use super::plan::table::{self, Age, Unrecorded, Verdict};
use super::pool::PoolState;
use super::time::Stamp;

/// How a resource stands to the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ownership {
    /// Left over: it bills, and nobody sees to it.
    Orphaned(OrphanReason),
    /// Our owner's, but of a generation or number that was never given here: somebody works with a copy of this state, or
    /// a part of the state is lost. Not to be touched.
    Stranger,
    /// Left over if it were older than `reap_grace`.
    Young,
    /// No record knows its instance, but an open attempt names it: a job may be on it.
    Held,
    /// Of a recorded instance: the keeper sees to it.
    Recorded,
    /// Another owner's.
    Foreign,
    /// Without tags nobody can say whose it is.
    Untagged,
}

/// Why something is left over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OrphanReason {
    /// An instance that no record knows (any more).
    Unrecorded,
    /// No record knows the instance that it was made for.
    InstanceUnrecorded,
    /// Its instance is recorded, and gone without it.
    InstanceGone,
}

/// What resources are judged by.
#[derive(Debug, Clone, Copy)]
pub struct Knowledge<'a> {
    /// Read after the resources: what was launched meanwhile has its record.
    pub makings: KnownLaunches<'a>,
    /// Read before them: what was terminated meanwhile had one.
    pub before: &'a PoolState,
    /// Recorded instances that are not among the resources, and that `endpoint` denied.
    pub denied: &'a BTreeSet<InstanceId>,
    /// `reap_grace`.
    pub grace: Duration,
    pub now: Stamp,
}

/// Judges one resource.
pub fn judge(resource: &Resource, known: &Knowledge<'_>) -> Ownership {
    let Knowledge { makings, before, denied, .. } = known;
    let Some(id) = instance_of(resource) else { return Ownership::Untagged };
    let is_instance = resource.kind == ResourceKind::Instance;
    let why = match makings.recorded.instance(&id) {
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
    // A birthday comes from another clock: one that lies ahead is no age. Without one, it is as old as can be: a
    // launch has its record before it is asked for.
    let is_late = resource.created.is_none_or(|created| known.now.since(created) >= known.grace);
    let age = if is_late { Age::Late } else { Age::Young };
    let whose = makings.classify(&id, resource.tags.as_ref());
    match whose {
        Unrecorded::Ours if table::unrecorded(whose, Status::Running, age).verdict == Verdict::Reap => {
            Ownership::Orphaned(why)
        }
        Unrecorded::Ours => Ownership::Young,
        Unrecorded::OursHeld => Ownership::Held,
        Unrecorded::Stranger => Ownership::Stranger,
        Unrecorded::Foreign => Ownership::Foreign,
        Unrecorded::Fixed => Ownership::Untagged,
    }
}

/// The recorded instances that are doubtful: something of theirs is there, and they are not. `endpoint` is to be asked.
pub fn possibly_gone(found: &[Resource], recorded: &PoolState) -> BTreeSet<InstanceId> {
    let of_kind = |is_instance: bool| {
        let those = found.iter().filter(move |one| (one.kind == ResourceKind::Instance) == is_instance);
        those.filter_map(instance_of).collect::<BTreeSet<InstanceId>>()
    };
    let there = of_kind(true);
    let is_known = |id: &InstanceId| recorded.instance(id).is_some_and(|known| may_be_gone(&known.phase));
    of_kind(false).into_iter().filter(|id| !there.contains(id) && is_known(id)).collect()
}

/// One that is being launched may yet come, and one that is drained takes with it what is its own.
fn may_be_gone(phase: &Phase) -> bool {
    match phase {
        Phase::Ready | Phase::Cleaning | Phase::OutOfService { .. } => true,
        Phase::Launching | Phase::Checking | Phase::Draining { .. } => false,
    }
}

/// The instance that it is or was made for: by the provider's word, or by its tags.
pub fn instance_of(resource: &Resource) -> Option<InstanceId> {
    let launched = |tags: &Tags| InstanceId::launched(&tags.pool, &tags.generation, tags.number);
    resource.instance.clone().or_else(|| resource.tags.as_ref().map(launched))
}

impl Ownership {
    /// A word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Orphaned(_) => "orphaned",
            Self::Stranger => "unknown-generation",
            Self::Young => "young",
            Self::Held => "held",
            Self::Recorded => "recorded",
            Self::Foreign => "another-owner",
            Self::Untagged => "no-tags",
        }
    }
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Orphaned(OrphanReason::Unrecorded) => "it has no record",
            Self::Orphaned(OrphanReason::InstanceUnrecorded) => "its instance has no record",
            Self::Orphaned(OrphanReason::InstanceGone) => "its instance is gone",
            Self::Stranger => "it has this owner's tag, but was never launched from this state directory",
            Self::Young => "it is younger than `reap_grace`: its launch may be in progress",
            Self::Held => "an open attempt of a job names it",
            Self::Recorded => "recorded",
            Self::Foreign => "it has another owner",
            Self::Untagged => "it has no tags of Greenroom",
        })
    }
}

#[cfg(test)]
mod tests;
