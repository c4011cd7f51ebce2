//! `pool …`: inspect and control pools.

pub(super) mod drain;
pub(super) mod leaks;
pub(super) mod reader;
pub mod status;
