//! `pool …`: look at pools and steer them.

pub(super) mod look;
pub mod status;
