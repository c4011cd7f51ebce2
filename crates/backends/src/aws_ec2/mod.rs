//! The provider `aws-ec2`: instances of Amazon EC2.

use std::rc::Rc;

use greenroom_keys::KeyTable;
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use super::cloud::delegated::DelegatedCloud;
use super::cloud::keys::LIFETIME;

#[cfg(feature = "aws-ec2")]
mod announced;
#[cfg(feature = "aws-ec2")]
mod calls;
mod doctor;
#[cfg(feature = "aws-ec2")]
mod findings;
mod first_pool;
mod keys;
#[cfg(feature = "aws-ec2")]
mod quotas;
mod settings;

use settings::Settings;

/// Checks tables, without the calls.
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
    doctor: doctor::without_calls,
    first_pool: first_pool::FIRST_POOL,
};

/// Where the SDK finds credentials and settings. Not `AWS_SECRET_ACCESS_KEY`.
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

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = keys::TABLES;

/// With the calls.
#[cfg(feature = "aws-ec2")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: doctor::of_table, ..REGISTRATION };
#[cfg(not(feature = "aws-ec2"))]
pub const WITH_CALLS: Registration = REGISTRATION;

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&Settings::read(&context.pool, table)?.common.offerings)))
}
