//! The source of time.

use greenroom_core::time::Stamp;

/// Read at the edge and passed inwards: nothing in `core` can read a clock.
pub trait Clock {
    fn now(&self) -> Stamp;
}
