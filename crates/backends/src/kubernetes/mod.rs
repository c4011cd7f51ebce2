//! The provider `kubernetes`: pods of a Kubernetes cluster.

use std::path::Path;
use std::rc::Rc;

use greenroom_core::container::ordering::OrderSettings;
use greenroom_core::ids::PoolName;
use greenroom_keys::KeyTable;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_providers::mistakes;
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use super::cloud::delegated::{self, DelegatedCloud};
use super::cloud::settings::LIFETIME;

#[cfg(feature = "kubernetes")]
mod calls;
#[cfg(feature = "kubernetes")]
mod findings;
mod kubeconfig;
#[cfg(feature = "kubernetes")]
mod limit_ranges;
mod orders;
mod placement;
mod settings;

use settings::Settings;

/// The provider without the calls: it checks tables.
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
    doctor: findings_without_calls,
    first_pool: kubeconfig::FIRST_POOL,
};

/// The variables that name a kubeconfig, and the API server for a keeper in the cluster.
const ENVIRONMENT: &[&str] = &["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// The keys, for docs/configuration.md.
pub const KEYS: &[KeyTable] = settings::TABLES;

/// The provider with the calls.
#[cfg(feature = "kubernetes")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: table_findings, ..REGISTRATION };
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

/// Findings about a pool's table and its files, which need no calls.
fn table_findings(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let settings = match Settings::read(&context.pool, table) {
        Ok(settings) => settings,
        Err(problems) => return mistakes::findings("kubernetes-table", &problems),
    };
    let unreadable = |what: &str, path: &Path| {
        let error = fs_err::File::open(path).err()?;
        Some(Finding {
            code: "kubernetes-file",
            severity: Severity::Error,
            message: format!("the {what} of pool `{}` cannot be read: {error}", context.pool),
            remedy: Some("correct the path, or let the keeper's account read the file".to_owned()),
        })
    };
    let kubeconfig = settings.kubeconfig.as_deref().and_then(|path| unreadable("kubeconfig", path));
    let template = settings.template.as_deref().and_then(|path| unreadable("pod", path));
    kubeconfig.into_iter().chain(template).collect()
}

fn findings_without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    delegated::without_calls("kubernetes-program", context, table_findings(context, table))
}
