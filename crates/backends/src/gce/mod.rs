//! The provider `gce`: instances of Google Compute Engine.

use std::rc::Rc;

use greenroom_keys::KeyTable;
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use super::cloud::delegated::DelegatedCloud;
use super::cloud::keys::LIFETIME;

#[cfg(feature = "gce")]
mod announced;
#[cfg(feature = "gce")]
mod calls;
mod doctor;
#[cfg(feature = "gce")]
mod findings;
mod first_pool;
mod keys;
mod resource;
mod settings;

use settings::Settings;

/// Checks tables, without the calls.
pub const REGISTRATION: Registration = Registration {
    kind: "gce",
    example: include_str!("example.toml"),
    calls: Calls::Delegated,
    environment: ENVIRONMENT,
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
    first_pool: first_pool::FIRST_POOL,
};

/// Where the SDK finds credentials and settings.
const ENVIRONMENT: &[&str] = &["GCE_METADATA_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG"];

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = keys::TABLES;

/// With the calls.
#[cfg(feature = "gce")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: doctor::of_table, ..REGISTRATION };
#[cfg(not(feature = "gce"))]
pub const WITH_CALLS: Registration = REGISTRATION;

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&Settings::read(&context.pool, table)?.common.offerings)))
}
