//! Instances that are machines of Google Compute Engine.

use std::rc::Rc;

use super::cloud::doctor::{self, Codes};
use super::cloud::elsewhere::Elsewhere;
use super::{BuildContext, Built, Calls, Registration};
use crate::port::finding::Finding;

#[cfg(feature = "gce")]
mod calls;
mod resource;
mod settings;

use settings::Settings;

const CODES: Codes = Codes { table: "gce-table", program: "gce-program" };

/// Checks tables, and makes no calls.
pub const REGISTRATION: Registration = Registration {
    kind: "gce",
    summary: "machines of Google Compute Engine, spot or on demand, in as many types and zones as you name",
    example: include_str!("example.toml"),
    calls: Calls::Elsewhere,
    build: build_without_calls,
    guest_dirs: None,
    fixed: None,
    doctor: doctor_without_calls,
};

/// With the calls.
#[cfg(feature = "gce")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: doctor_of_table, ..REGISTRATION };
#[cfg(not(feature = "gce"))]
pub const WITH_CALLS: Registration = REGISTRATION;

fn build_without_calls(_context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(Elsewhere { offers: Settings::read(table)?.common.offers }))
}

fn doctor_without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let mut found = doctor_of_table(context, table);
    found.push(doctor::program(CODES, context));
    found
}

fn doctor_of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let wrong = Settings::read(table).err();
    wrong.map(|error| doctor::table(CODES, context, &error)).into_iter().collect()
}
