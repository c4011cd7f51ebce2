//! The provider `external`: a program of the operator's creates the machines.

use std::rc::Rc;

use greenroom_keys::KeyTable;
use greenroom_providers::first_pool::{FirstPool, Nothing};
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use super::cloud::delegated::DelegatedCloud;
use super::cloud::keys::LIFETIME;

#[cfg(feature = "external")]
mod calls;
mod doctor;
#[cfg(feature = "external")]
mod findings;
mod keys;
pub mod kit;
pub mod process;
pub mod protocol;
mod settings;

use settings::Settings;

/// Checks tables, without the calls.
pub const REGISTRATION: Registration = Registration {
    kind: "external",
    example: include_str!("example.toml"),
    calls: Calls::Delegated,
    environment: &[],
    build: build_without_calls,
    guest_dirs: None,
    lifetime: Some(LIFETIME),
    suspends: false,
    engines: true,
    cloud_init: true,
    orders: None,
    reaches: None,
    static_hosts: None,
    doctor: doctor::without_calls,
    first_pool: FirstPool {
        name: "machines",
        about: "machines by a program of yours",
        comments: &[],
        look: |_| Box::new(Nothing),
    },
};

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = keys::TABLES;

/// With the calls.
#[cfg(feature = "external")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: doctor::of_table, ..REGISTRATION };
#[cfg(not(feature = "external"))]
pub const WITH_CALLS: Registration = REGISTRATION;

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&Settings::read(&context.pool, table)?.common.offerings)))
}
