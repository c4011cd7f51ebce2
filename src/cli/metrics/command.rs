//! The command `metrics`: prints the metrics, or replaces a file of the textfile collector.

use std::path::Path;

use greenroom_core::metrics::Format;
use greenroom_system::replace::replace;

use super::source::Source;
use crate::cli::args::GlobalOptions;
use crate::cli::error::CliError;
use crate::cli::ui;

/// The collector runs as another user.
const MODE: u32 = 0o644;

/// False if the state of a pool cannot be read.
pub(in crate::cli) async fn print(
    place: &GlobalOptions,
    output: Option<&Path>,
    openmetrics: bool,
) -> Result<bool, CliError> {
    let (metrics, is_sound) = Source::open(place)?.read().await?;
    let text = metrics.render(if openmetrics { Format::OpenMetrics } else { Format::Text });
    match output {
        None => ui::out(&text),
        Some(path) => replace(path, text.as_bytes(), MODE).map_err(|error| {
            CliError::system(error).help("name a file in a directory that this user can write")
        })?,
    }
    Ok(is_sound)
}
