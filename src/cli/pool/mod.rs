//! `pool …`: inspect and control pools.

pub(super) mod drain;
pub(super) mod leaks;
pub mod status;
