//! Findings about a pool on Compute Engine that need no calls.

use super::settings::Settings;
use crate::port::finding::Finding;
use crate::provider::BuildContext;
use crate::provider::cloud::doctor::{self, Codes};

const CODES: Codes = Codes { table: "gce-table", program: "gce-program" };

pub(super) fn of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    doctor::of_table(CODES, context, Settings::read(table).err().as_ref())
}

/// For a program without the calls.
pub(super) fn without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    doctor::without_calls(CODES, context, of_table(context, table))
}
