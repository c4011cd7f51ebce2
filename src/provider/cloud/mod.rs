//! What the providers of clouds have in common.
//!
//! A cloud is an `Api`: a few calls, each asked once, without waiting or deciding. `Cloud` makes a `Provider` of it: it keeps
//! orders as they were given, asks for one list where many want to know, and spares an account that is asked too much.

pub mod api;
pub mod clock;
pub mod delegated;
pub mod doctor;
pub mod headroom;
pub mod idempotency;
pub mod keys;
mod ledger;
pub mod machine;
mod machine_list;
pub mod offerings;
mod provider;
pub mod settings;
pub mod shared;
pub mod tags;
mod throttle;
pub mod user_data;

pub use provider::Cloud;
