//! `pool leaks`: resources of the provider that have no record.

pub(in crate::cli) mod command;
mod json;
mod text;

use std::collections::BTreeSet;

use crate::core::ids::{OwnerId, PoolName};
use crate::core::inventory::Resource;
use crate::core::orphan::Ownership;
use crate::core::time::Stamp;

/// All resources of the provider for a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    pool: PoolName,
    /// When they were listed.
    at: Stamp,
    found: Vec<(Resource, Ownership)>,
    /// Owners of the test boots of `doctor --boot`.
    boots: BTreeSet<OwnerId>,
}

/// What was deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Deletion {
    /// Nothing was deleted: `gone` lists what would be.
    dry: bool,
    gone: Vec<Resource>,
    /// What is still there, and why.
    stays: Vec<(Resource, String)>,
}

impl Seen {
    fn that_are(&self, is: impl Fn(Ownership) -> bool) -> impl Iterator<Item = &(Resource, Ownership)> {
        self.found.iter().filter(move |(_, ownership)| is(*ownership))
    }

    /// Its relation to the record, in one sentence.
    fn why(&self, resource: &Resource, ownership: Ownership) -> String {
        match (ownership, &resource.tags) {
            (Ownership::Foreign, Some(tags)) if self.boots.contains(&tags.owner) => {
                "a `doctor --boot` launched it: that one or the next terminates it".to_owned()
            }
            (Ownership::Foreign, Some(tags)) => format!("{ownership}, `{}`", tags.owner),
            _ => ownership.to_string(),
        }
    }

    fn orphans(&self) -> Vec<Resource> {
        let left = self.that_are(|ownership| matches!(ownership, Ownership::Orphaned(_)));
        left.map(|(resource, _)| resource.clone()).collect()
    }

    /// A copy of this state is in use, or a part of it is lost: as in a pass, nothing of the pool is deleted.
    fn has_strangers(&self) -> bool {
        self.that_are(|ownership| ownership == Ownership::Stranger).next().is_some()
    }

    /// True if nothing is orphaned, as far as can be determined.
    fn is_clean(&self) -> bool {
        self.orphans().is_empty() && !self.has_strangers()
    }
}

#[cfg(test)]
mod tests;
