//! `pool leaks`: what the provider has and no record knows.

pub(in crate::cli) mod command;
mod json;
mod text;

use std::collections::BTreeSet;

use crate::core::ids::{OwnerId, PoolName};
use crate::core::inventory::Resource;
use crate::core::orphan::Ownership;
use crate::core::time::Stamp;

/// Everything that the provider has for a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    pool: PoolName,
    /// When it was asked.
    at: Stamp,
    found: Vec<(Resource, Ownership)>,
    /// Owners of instances that `doctor --boot` tries out.
    boots: BTreeSet<OwnerId>,
}

/// What became of the leftovers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Deletion {
    /// Nothing was deleted: `gone` would be asked for.
    dry: bool,
    gone: Vec<Resource>,
    /// What is still there, and why.
    stays: Vec<(Resource, String)>,
}

impl Seen {
    fn that_are(&self, is: impl Fn(Ownership) -> bool) -> impl Iterator<Item = &(Resource, Ownership)> {
        self.found.iter().filter(move |(_, standing)| is(*standing))
    }

    /// How it stands to the record, in one sentence.
    fn why(&self, resource: &Resource, standing: Ownership) -> String {
        match (standing, &resource.tags) {
            (Ownership::Foreign, Some(tags)) if self.boots.contains(&tags.owner) => {
                "a `doctor --boot` has started it: that ends it, or the next one".to_owned()
            }
            (Ownership::Foreign, Some(tags)) => format!("{standing}, `{}`", tags.owner),
            _ => standing.to_string(),
        }
    }

    fn leftovers(&self) -> Vec<Resource> {
        let left = self.that_are(|standing| matches!(standing, Ownership::Orphaned(_)));
        left.map(|(resource, _)| resource.clone()).collect()
    }

    /// Somebody works with a copy of this state, or a part of it is lost: as in a pass, nothing of the pool is deleted.
    fn has_strangers(&self) -> bool {
        self.that_are(|standing| standing == Ownership::Stranger).next().is_some()
    }

    /// Nothing bills that nobody sees to, as far as it can be told.
    fn is_clean(&self) -> bool {
        self.leftovers().is_empty() && !self.has_strangers()
    }
}

#[cfg(test)]
mod tests;
