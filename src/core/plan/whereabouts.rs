//! Whether a list covers an instance's location.
//!
//! Credentials, a profile or a region can change. Then the provider answers with complete lists of another location,
//! and lacks every instance that was launched before. Those instances still exist, and cost money.

use super::observed::Observed;
use crate::core::ids::{InstanceId, Location};
use crate::core::instance::Instance;
use crate::core::inventory::Listing;
use crate::core::pool::PoolState;
use crate::core::report::{Note, WaitingOn};

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
    match (&instance.location, &listing.location) {
        (_, None) => Coverage::Unknown,
        (Some(recorded), Some(listed)) if recorded != listed => Coverage::Elsewhere,
        (_, Some(_)) => Coverage::Covered,
    }
}

/// True if the provider now answers for another location than the instance's: no call of its concerns the instance.
pub(super) fn is_elsewhere(instance: &Instance, observed: &Observed) -> bool {
    observed.listing.as_ref().is_ok_and(|listing| coverage(instance, listing) == Coverage::Elsewhere)
}

/// The instances in another location, how many, and the location of the first of them.
fn elsewhere(state: &PoolState, observed: &Observed) -> Option<(u32, Location, Location)> {
    let here = observed.listing.as_ref().ok()?.location.clone()?;
    let mut away = state.instances.values().filter(|instance| is_elsewhere(instance, observed));
    let location = away.next()?.location.clone()?;
    Some((u32::try_from(away.count()).unwrap_or(u32::MAX).saturating_add(1), location, here))
}

/// What launches wait for while the pool has instances in another location.
pub(super) fn blocks_launches(state: &PoolState, observed: &Observed) -> Option<WaitingOn> {
    let (instances, location, here) = elsewhere(state, observed)?;
    Some(WaitingOn::Elsewhere { instances, location, here })
}

/// What operators read about it.
pub(super) fn note(state: &PoolState, observed: &Observed) -> Option<Note> {
    if let Some((instances, location, here)) = elsewhere(state, observed) {
        return Some(Note::Elsewhere { instances, location, here });
    }
    let listing = observed.listing.as_ref().ok().filter(|listing| listing.location.is_none())?;
    let listed = |id: &InstanceId| listing.instances.binary_search_by(|l| l.id.cmp(id)).is_ok();
    let missing = state.instances.keys().filter(|id| !listed(id)).count();
    let instances = u32::try_from(missing).unwrap_or(u32::MAX);
    (instances > 0).then_some(Note::LocationUnknown { instances })
}
