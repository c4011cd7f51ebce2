//! `pool …`: inspect and control pools.

pub(super) mod drain;
pub(super) mod leaks;
pub(super) mod look;
pub mod status;
