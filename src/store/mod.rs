//! Adapters that keep the recorded state.

pub mod file;
pub mod memory;
