//! The traits at the edge of the core, with their contracts; no implementation, except for that of [`dialect`], which is only text.
//!
//! All other methods are async, so that the simulator can stop a process at any of them. They neither retry nor decide: the
//! engine is their only caller.

pub mod attempts;
pub mod clock;
pub mod connector;
pub mod dialect;
pub mod finding;
pub mod forward;
pub mod host;
pub mod host_error;
pub mod host_keys;
pub mod leadership;
pub mod lock;
pub mod provider;
pub mod reports;
pub mod setup;
pub mod store;
pub mod tail;
pub mod wakeups;
