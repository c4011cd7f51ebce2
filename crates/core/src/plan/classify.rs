//! Classifies listed instances without a record by their owner.

use std::collections::{BTreeMap, BTreeSet};

use super::observed::Observed;
use super::table::Unrecorded;
use crate::attempt::AttemptSeen;
use crate::ids::{AttemptName, Generation, InstanceId, OwnerId};
use crate::inventory::Tags;
use crate::pool::PoolState;

/// The launches that this state directory has recorded.
#[derive(Debug, Clone, Copy)]
pub struct KnownLaunches<'a> {
    pub recorded: &'a PoolState,
    pub owner: &'a OwnerId,
    /// Generations that began in this directory.
    pub generations: &'a BTreeSet<Generation>,
    pub attempts: &'a BTreeMap<AttemptName, AttemptSeen>,
}

impl<'a> KnownLaunches<'a> {
    pub(super) fn seen_by(recorded: &'a PoolState, observed: &'a Observed) -> Self {
        let Observed { owner, generations, attempts, .. } = observed;
        Self { recorded, owner, generations, attempts }
    }

    /// Classifies an instance without a record by its tags.
    pub fn classify(&self, id: &InstanceId, tags: Option<&Tags>) -> Unrecorded {
        let Some(tags) = tags else { return Unrecorded::Static };
        if tags.owner != *self.owner {
            return Unrecorded::Foreign;
        }
        let highest = match self.recorded.generations.get(&tags.generation) {
            Some(highest) => *highest,
            // Begun here, but not yet in this pool's journal: no number was issued.
            None if self.generations.contains(&tags.generation) => 0,
            None => return Unrecorded::Stranger,
        };
        if tags.number > highest {
            return Unrecorded::Stranger;
        }
        if self.is_named(id) { Unrecorded::OursHeld } else { Unrecorded::Ours }
    }

    /// True if an open attempt's directory names it. Then it is in use, whatever the journal contains.
    fn is_named(&self, id: &InstanceId) -> bool {
        self.attempts.values().any(|a| a.closed.is_none() && a.instance.as_ref() == Some(id))
    }
}
