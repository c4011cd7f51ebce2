//! The common part of the cloud providers.
//!
//! A cloud is an `Api`: a few calls, each made once, without waits or decisions. `Cloud` makes a `Provider` of it. It
//! stores launch specs, shares one list among many callers, and backs off when the cloud throttles the account.

pub mod api;
pub mod clock;
pub mod delegated;
pub mod doctor;
pub mod first_pool;
pub mod headroom;
pub mod idempotency;
pub mod inbound;
pub mod keys;
mod ledger;
pub mod machine;
mod machine_list;
pub mod offerings;
mod proof;
mod provider;
pub mod settings;
pub mod shared;
pub mod tags;
mod throttle;
pub mod user_data;

pub use provider::Cloud;
