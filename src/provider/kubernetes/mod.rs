//! The provider `kubernetes`: pods of a Kubernetes cluster.

use std::rc::Rc;

use super::cloud::delegated::DelegatedCloud;
use super::cloud::keys::LIFETIME;
use super::{BuildContext, Built, Calls, Registration};
use crate::keys::KeyTable;
use crate::keys::problem::{Place, Problem, Problems};

#[cfg(feature = "kubernetes")]
mod calls;
mod doctor;
#[cfg(any(feature = "kubernetes", test))]
mod findings;
mod keys;
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
    static_hosts: None,
    suspends: false,
    doctor: doctor::without_calls,
};

/// Where a kubeconfig is, and where the API server is for a keeper in the cluster.
const ENVIRONMENT: &[&str] = &["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = keys::TABLES;

/// With the calls.
#[cfg(feature = "kubernetes")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: doctor::of_table, ..REGISTRATION };
#[cfg(all(feature = "backends", not(feature = "kubernetes")))]
pub const WITH_CALLS: Registration = REGISTRATION;

/// The process of a port-forward.
#[cfg(feature = "kubernetes")]
pub fn forward() -> std::process::ExitCode {
    calls::forward::main()
}

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&read(context, table)?.common.offerings)))
}

/// The table, for a pool whose jobs run in the pods themselves.
fn read(context: &BuildContext, table: &toml::Table) -> Result<Settings, Problems> {
    let settings = Settings::read(&context.pool, table)?;
    if !context.containers {
        return Ok(settings);
    }
    let title = format!(
        "`[pool.{}.containers]` does not fit provider `kubernetes`: pods have no engine",
        context.pool
    );
    let place = Place::name_of(format!("pool.{}.containers", context.pool));
    let help = "remove it; give each image a pool, which a rule chooses";
    Err(Problem::new(title).at(place, "here").help(help).into())
}
