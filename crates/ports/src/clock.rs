//! The source of time.

use greenroom_core::time::Stamp;

/// The source of the present [`Stamp`], read at the edge and passed inwards: nothing in [`greenroom_core`] can read a clock.
pub trait Clock {
    fn now(&self) -> Stamp;
}
