//! The end of a host's cleaning.

use greenroom_core::instance::Phase;
use greenroom_harness::place::Place;
use greenroom_harness::processes::wait_for;

/// Waits until the only host has been cleaned after a job; the reason if it went out of service.
pub fn cleaned(place: &Place) -> Option<String> {
    wait_for("a host that is cleaned", place.setting.patience, || {
        let state = place.state();
        let instance = state.instances.values().next()?;
        match &instance.phase {
            Phase::OutOfService { reason } => Some(Some(reason.clone())),
            Phase::Ready if instance.holders.is_empty() => Some(None),
            _ => None,
        }
    })
}
