//! `pool …`: look at pools and steer them.

pub(super) mod leaks;
pub(super) mod look;
pub mod status;
