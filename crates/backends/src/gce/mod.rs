//! The provider `gce`: instances of Google Compute Engine.

use std::path::PathBuf;
use std::rc::Rc;

use greenroom_keys::KeyTable;
use greenroom_ports::finding::Finding;
use greenroom_providers::first_pool::{FirstPool, RunnerHost};
use greenroom_providers::mistakes;
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use super::cloud::delegated::{self, DelegatedCloud};
use super::cloud::first_pool::{CloudAccount, value_at_home};
use super::cloud::settings::LIFETIME;

#[cfg(feature = "gce")]
mod calls;
#[cfg(feature = "gce")]
mod findings;
mod resource;
mod settings;

use settings::Settings;

/// The provider without the calls: it checks tables.
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
    doctor: findings_without_calls,
    first_pool: FIRST_POOL,
};

/// The variables by which the SDK finds credentials and settings.
const ENVIRONMENT: &[&str] = &["GCE_METADATA_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG"];

/// The keys, for docs/configuration.md.
pub const KEYS: &[KeyTable] = settings::TABLES;

/// The provider with the calls.
#[cfg(feature = "gce")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: table_findings, ..REGISTRATION };
#[cfg(not(feature = "gce"))]
pub const WITH_CALLS: Registration = REGISTRATION;

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&Settings::read(&context.pool, table)?.common.offerings)))
}

/// Findings about a pool's table, which need no calls.
fn table_findings(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let wrong = Settings::read(&context.pool, table).err();
    wrong.map_or(Vec::new(), |problems| mistakes::findings("gce-table", &problems))
}

fn findings_without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    delegated::without_calls("gce-program", context, table_findings(context, table))
}

/// The part of `greenroom init`.
const FIRST_POOL: FirstPool = FirstPool {
    name: "gce",
    about: "machines of Google Compute Engine",
    comments: &[("market", "\"on-demand\""), ("address", "\"private\""), ("network", "\"default\"")],
    look: |host| Box::new(look_up_account(host)),
};

fn look_up_account(host: &RunnerHost<'_>) -> CloudAccount {
    let named = host.set("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from);
    let file = named
        .filter(|path| path.is_file())
        .or_else(|| host.file_at_home(".config/gcloud/application_default_credentials.json"));
    let configured = || value_at_home(host, ".config/gcloud/configurations/config_default", "project");
    CloudAccount {
        credentials: file.map(|path| path.display().to_string()),
        place: host.text("GOOGLE_CLOUD_PROJECT").or_else(configured),
        place_key: "project",
        asks_for: &["project"],
        replaced: None,
    }
}
