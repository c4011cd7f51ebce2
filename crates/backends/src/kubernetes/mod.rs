//! The provider `kubernetes`: pods of a Kubernetes cluster.

use std::rc::Rc;

use greenroom_core::container::ordering::OrderSettings;
use greenroom_core::ids::PoolName;
use greenroom_keys::KeyTable;
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use super::cloud::delegated::DelegatedCloud;
use super::cloud::keys::LIFETIME;

#[cfg(feature = "kubernetes")]
mod calls;
mod doctor;
#[cfg(feature = "kubernetes")]
mod findings;
mod first_pool;
mod keys;
mod kubeconfig;
#[cfg(feature = "kubernetes")]
mod limit_ranges;
mod orders;
mod placement;
mod quantity;
mod settings;

use settings::Settings;

/// Checks tables, without the calls.
pub const REGISTRATION: Registration = Registration {
    kind: "kubernetes",
    example: include_str!("example.toml"),
    calls: Calls::Delegated,
    environment: ENVIRONMENT,
    build: build_without_calls,
    guest_dirs: None,
    lifetime: Some(LIFETIME),
    reaches: None,
    static_hosts: None,
    suspends: false,
    engines: false,
    cloud_init: false,
    orders: Some(orders_of),
    doctor: doctor::without_calls,
    first_pool: first_pool::FIRST_POOL,
};

/// Where a kubeconfig is, and where the API server is for a keeper in the cluster.
const ENVIRONMENT: &[&str] = &["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = keys::TABLES;

/// With the calls.
#[cfg(feature = "kubernetes")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: doctor::of_table, ..REGISTRATION };
#[cfg(not(feature = "kubernetes"))]
pub const WITH_CALLS: Registration = REGISTRATION;

/// The process of a port-forward.
#[cfg(feature = "kubernetes")]
pub fn forward() -> std::process::ExitCode {
    calls::forward::main()
}

fn orders_of(pool: &PoolName, table: &toml::Table) -> Option<OrderSettings> {
    Settings::read(pool, table).ok()?.orders.map(|orders| orders.settings)
}

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&Settings::read(&context.pool, table)?.common.offerings)))
}
