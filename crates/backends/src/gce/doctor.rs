//! Findings about a pool on Compute Engine that need no calls.

use greenroom_ports::finding::Finding;
use greenroom_providers::mistakes;
use greenroom_providers::registration::BuildContext;

use super::settings::Settings;
use crate::cloud::doctor;

pub(super) fn of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let wrong = Settings::read(&context.pool, table).err();
    wrong.map_or(Vec::new(), |problems| mistakes::findings("gce-table", &problems))
}

/// For a program without the calls.
pub(super) fn without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    doctor::without_calls("gce-program", context, of_table(context, table))
}
