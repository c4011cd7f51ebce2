//! The provider `aws-ec2`: instances of Amazon EC2.

use std::rc::Rc;

use super::cloud::delegated::DelegatedCloud;
use super::{BuildContext, Built, Calls, Registration};
use crate::keys::KeyTable;

#[cfg(feature = "aws-ec2")]
mod calls;
mod doctor;
#[cfg(any(feature = "aws-ec2", test))]
mod findings;
mod keys;
#[cfg(any(feature = "aws-ec2", test))]
mod quotas;
mod settings;

use settings::Settings;

/// Checks tables, without the calls.
pub const REGISTRATION: Registration = Registration {
    kind: "aws-ec2",
    summary: "instances of Amazon EC2, spot or on demand, in any number of types and zones",
    example: include_str!("example.toml"),
    calls: Calls::Delegated,
    build: build_without_calls,
    guest_dirs: None,
    fixed: None,
    doctor: doctor::without_calls,
};

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = keys::TABLES;

/// With the calls.
#[cfg(feature = "aws-ec2")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: doctor::of_table, ..REGISTRATION };
#[cfg(not(feature = "aws-ec2"))]
pub const WITH_CALLS: Registration = REGISTRATION;

fn build_without_calls(_context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&Settings::read(table)?.common.offerings)))
}
