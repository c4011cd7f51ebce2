//! The provider `aws-ec2`: instances of Amazon EC2.

use std::rc::Rc;

use greenroom_keys::KeyTable;
use greenroom_ports::finding::Finding;
use greenroom_providers::first_pool::{FirstPool, RunnerHost};
use greenroom_providers::mistakes;
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use super::cloud::delegated::{self, DelegatedCloud};
use super::cloud::first_pool::{CloudAccount, value_at_home};
use super::cloud::settings::LIFETIME;

#[cfg(feature = "aws-ec2")]
mod calls;
#[cfg(feature = "aws-ec2")]
mod findings;
mod settings;

use settings::Settings;

/// The provider without the calls: it checks tables.
pub const REGISTRATION: Registration = Registration {
    kind: "aws-ec2",
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

/// The variables by which the SDK finds credentials and settings. Not `AWS_SECRET_ACCESS_KEY`.
const ENVIRONMENT: &[&str] = &[
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CA_BUNDLE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_EC2",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];

/// The keys, for docs/configuration.md.
pub const KEYS: &[KeyTable] = settings::TABLES;

/// The provider with the calls.
#[cfg(feature = "aws-ec2")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: table_findings, ..REGISTRATION };
#[cfg(not(feature = "aws-ec2"))]
pub const WITH_CALLS: Registration = REGISTRATION;

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&Settings::read(&context.pool, table)?.common.offerings)))
}

/// Findings about a pool's table, which need no calls.
fn table_findings(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let wrong = Settings::read(&context.pool, table).err();
    wrong.map_or(Vec::new(), |problems| mistakes::findings("aws-ec2-table", &problems))
}

fn findings_without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    delegated::without_calls("aws-ec2-program", context, table_findings(context, table))
}

/// The part of `greenroom init`.
const FIRST_POOL: FirstPool = FirstPool {
    name: "ec2",
    about: "machines of Amazon EC2",
    comments: &[("market", "\"on-demand\""), ("address", "\"private\""), ("user", "\"ci\"")],
    look: |host| Box::new(look_up_account(host)),
};

fn look_up_account(host: &RunnerHost<'_>) -> CloudAccount {
    let variables = ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"];
    let variable = variables.into_iter().find(|name| host.set(name).is_some()).map(str::to_owned);
    let file = || host.file_at_home(".aws/credentials").map(|path| path.display().to_string());
    let region = host.text("AWS_REGION").or_else(|| host.text("AWS_DEFAULT_REGION"));
    CloudAccount {
        credentials: variable.or_else(file),
        place: region.or_else(|| value_at_home(host, ".aws/config", "region")),
        place_key: "region",
        asks_for: &["region", "subnets"],
        replaced: Some(("subnets", "zones")),
    }
}
