//! `greenroom plugin`: the plugins of provider `fleeting` on this host.

pub(super) mod args;
mod install;
mod list;
mod pools;

use std::path::PathBuf;

use args::PluginCommand;

use super::args::GlobalOptions;
use super::error::CliError;
use crate::provider::fleeting::locate::{Places, VARIABLE};

/// Runs a command; false is a negative result.
pub(super) async fn plugin(place: &GlobalOptions, command: PluginCommand) -> Result<bool, CliError> {
    match command {
        PluginCommand::List(options) => list::list(place, &options),
        PluginCommand::Install(options) => install::install(place, &options).await,
    }
}

/// Where plugins are: the given directory, or that of this process.
fn places(given: Option<&PathBuf>) -> Result<Places, CliError> {
    let places = Places::of_process();
    let plugins = match given {
        Some(given) => Some(std::path::absolute(given)?),
        None => places.plugins,
    };
    Ok(Places { plugins, ..places })
}

/// The plugin directory.
fn directory(places: &Places) -> Result<&PathBuf, CliError> {
    places.plugins.as_ref().ok_or_else(|| {
        CliError::say(format!(
            "there is no plugin directory: neither {VARIABLE} nor HOME is an absolute path"
        ))
        .help("name one with `--dir DIR`")
    })
}
