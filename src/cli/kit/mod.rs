//! What the commands of conformance kits have in common.

pub(super) mod ask;
pub(super) mod interrupts;
pub(super) mod scratch;
mod text;

use greenroom_backends::program::kit::report::Report;

use super::error::CliError;
use super::ui;

/// Prints a report. `subject`: what was checked, as a noun.
pub(super) fn show(report: &Report, json: bool, subject: &str) -> Result<(), CliError> {
    if json {
        ui::out(&format!("{}\n", serde_json::to_string_pretty(report)?));
    } else {
        ui::out(&text::render(report, subject));
    }
    Ok(())
}
