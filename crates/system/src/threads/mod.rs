//! Work that may block: on threads beside the caller's, which stays free for everything else.
//!
//! The number of threads is bounded, also if what they wait for never comes. None of them keeps the process from
//! exiting, as those of the runtime's blocking pool would.

pub mod disk;
pub mod flock;
