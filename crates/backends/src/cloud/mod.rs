//! The common part of the cloud providers.
//!
//! A cloud is an [`Api`](api::Api): a few calls, each made once, without waits or decisions. [`Cloud`] makes a
//! [`Provider`](greenroom_ports::provider::Provider) of it. It stores launch specs, shares one list among many callers, and backs
//! off when the cloud throttles the account.

pub mod api;
pub mod delegated;
pub mod findings;
pub mod first_pool;
pub mod inbound;
mod ledger;
pub mod machine;
pub mod offerings;
mod provider;
pub mod settings;
pub mod shared;
pub mod tags;
mod throttle;
pub mod user_data;

pub use provider::Cloud;
