//! The contract of every adapter of a port, run against real systems.

mod connector;
mod container;
mod engine_containers;
mod keys;
mod link;
#[expect(clippy::duplicate_mod, reason = "the connector's suite once more, with every call through a link")]
#[path = "connector/mod.rs"]
mod linked;
mod provider;
mod served;
#[path = "../situations/contract/addresses.rs"]
mod situation_addresses;
#[path = "../situations/contract/logins.rs"]
mod situation_logins;
#[path = "../situations/contract/penalties.rs"]
mod situation_penalties;
#[path = "../situations/contract/turned_away.rs"]
mod situation_turned_away;
mod store;
mod trick;
mod users_machine;
