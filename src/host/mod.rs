//! Adapters for the state directory beside the journal.

pub mod local;
