//! What time it is.

use crate::core::time::Stamp;

/// Asked at the edge and passed inwards; nothing in `core` can ask.
pub trait Clock {
    fn now(&self) -> Stamp;
}
