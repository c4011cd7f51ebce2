//! Whether a list covers an instance's location.
//!
//! Credentials, a profile or a region can change. Then the provider answers with complete lists of another location,
//! and lacks every instance that was launched before. Those instances still exist, and cost money.

use super::observed::Observed;
use crate::ids::{InstanceId, Location};
use crate::instance::Instance;
use crate::inventory::Listing;
use crate::pool::PoolState;
use crate::report::{Note, WaitingOn};

/// What a list can say about an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coverage {
    Covered,
    /// The list was taken in another location.
    Elsewhere,
    /// The location of the list is unknown.
    Unknown,
}

pub(super) fn coverage(instance: &Instance, listing: &Listing) -> Coverage {
    match &listing.location {
        None => Coverage::Unknown,
        Some(here) if instance.is_outside(here) => Coverage::Elsewhere,
        Some(_) => Coverage::Covered,
    }
}

/// True if the provider now answers for another location than the instance's: no call of its concerns the instance.
pub(super) fn is_elsewhere(instance: &Instance, observed: &Observed) -> bool {
    observed.listing.as_ref().is_ok_and(|listing| coverage(instance, listing) == Coverage::Elsewhere)
}

/// The pool's instances in another location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Elsewhere {
    instances: u32,
    /// The location of the first of them.
    location: Location,
    /// The location of the list; without one, that of the last list or launch.
    here: Location,
}

impl Elsewhere {
    pub(super) fn find(state: &PoolState, observed: &Observed) -> Option<Self> {
        let listed = observed.listing.as_ref().ok().and_then(|listing| listing.location.as_ref());
        let here = listed.or(state.location.as_ref())?;
        let mut outside = state.instances.values().filter(|instance| instance.is_outside(here));
        let location = outside.next()?.location.clone()?;
        let instances = u32::try_from(outside.count()).unwrap_or(u32::MAX).saturating_add(1);
        Some(Self { instances, location, here: here.clone() })
    }

    /// What launches wait for.
    pub(super) fn waiting_on(&self) -> WaitingOn {
        let Self { instances, location, here } = self.clone();
        WaitingOn::Elsewhere { instances, location, here }
    }

    /// What operators read about it.
    pub(super) fn note(&self) -> Note {
        let Self { instances, location, here } = self.clone();
        Note::Elsewhere { instances, location, here }
    }
}

/// What operators read about a list whose location is unknown.
pub(super) fn unknown(state: &PoolState, observed: &Observed) -> Option<Note> {
    let listing = observed.listing.as_ref().ok().filter(|listing| listing.location.is_none())?;
    let listed = |id: &InstanceId| listing.instances.binary_search_by(|l| l.id.cmp(id)).is_ok();
    let missing = state.instances.keys().filter(|id| !listed(id)).count();
    let instances = u32::try_from(missing).unwrap_or(u32::MAX);
    (instances > 0).then_some(Note::LocationUnknown { instances })
}
