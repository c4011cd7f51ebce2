//! Adapters that reach instances; one folder each, and the list of them.

pub mod output;
pub mod ssh;
