//! Adapters for the state directory beside the journal.

pub mod local;
pub mod memory;
