//! The contract of every adapter of a port, run against real systems.

mod connector;
mod container;
mod engine_containers;
#[path = "../support/faulty.rs"]
mod faulty;
mod keys;
mod link;
#[expect(clippy::duplicate_mod, reason = "the connector's suite once more, with every call through a link")]
#[path = "connector/mod.rs"]
mod linked;
#[path = "../support/metadata_service.rs"]
mod metadata_service;
#[path = "../support/pace.rs"]
mod pace;
mod provider;
#[path = "../support/rerun.rs"]
mod rerun;
mod served;
#[path = "../situations/contract/addresses.rs"]
mod situation_addresses;
#[path = "../situations/contract/logins.rs"]
mod situation_logins;
#[path = "../situations/contract/penalties.rs"]
mod situation_penalties;
#[path = "../situations/contract/turned_away.rs"]
mod situation_turned_away;
#[path = "../support/skipped.rs"]
mod skipped;
mod store;
mod trick;
mod users_machine;
#[path = "../support/write_errors.rs"]
mod write_errors;
