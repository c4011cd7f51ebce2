//! What can be said of a pool on Compute Engine without asking Compute Engine.

use super::settings::Settings;
use crate::port::finding::Finding;
use crate::provider::BuildContext;
use crate::provider::cloud::doctor::{self, Codes};

const CODES: Codes = Codes { table: "gce-table", program: "gce-program" };

pub(super) fn of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let wrong = Settings::read(table).err();
    wrong.map(|error| doctor::table(CODES, context, &error)).into_iter().collect()
}

/// In a program without the calls.
pub(super) fn without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let mut found = of_table(context, table);
    found.push(doctor::program(CODES, context));
    found
}
