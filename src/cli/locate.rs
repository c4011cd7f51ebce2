//! Finds the state directory and the configuration.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::args::{DEFAULT_CONFIG, GlobalOptions};
use super::error::CliError;
use crate::config::Config;

/// The path of the state directory, unless an option, the environment or the configuration names another.
const DEFAULT_STATE: &str = "/var/lib/greenroom";
/// Names the configuration that this state directory was last used with, for calls without `--config`.
pub(super) const CONFIG_NOTE: &str = "config-path";

/// The state directory, which need not exist.
pub(super) fn state_path(place: &GlobalOptions) -> Result<PathBuf, CliError> {
    Ok(locate(place)?.0)
}

/// The named state directory, and the configuration if it had to be read.
pub(super) fn locate(place: &GlobalOptions) -> Result<(PathBuf, Option<Config>), CliError> {
    if let Some(given) = &place.state_dir {
        return Ok((std::path::absolute(given)?, None));
    }
    let read = read_config(place)?;
    let path = read.as_ref().map_or_else(|| PathBuf::from(DEFAULT_STATE), |config| config.state_dir.clone());
    Ok((path, read))
}

/// The named configuration, or the one that this state directory was last used with, or the default one.
pub(super) fn config_path(place: &GlobalOptions, state: &Path) -> Option<PathBuf> {
    if let Some(given) = &place.config {
        return std::path::absolute(given).ok();
    }
    let noted = std::fs::read(state.join(CONFIG_NOTE)).ok()?;
    let noted: OsString = std::os::unix::ffi::OsStringExt::from_vec(noted);
    Some(PathBuf::from(noted))
}

/// The configuration of a command that opens no state: the named one, the one of the named state directory, or the
/// default one.
pub(super) fn config_file(place: &GlobalOptions) -> std::io::Result<PathBuf> {
    let noted = place.state_dir.as_deref().and_then(|state| config_path(place, state));
    noted.map_or_else(|| place.config_file(), Ok)
}

pub(super) fn read_config(place: &GlobalOptions) -> Result<Option<Config>, CliError> {
    let path = place.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG));
    if place.config.is_none() && !path.exists() {
        return Ok(None);
    }
    let path = std::path::absolute(path)?;
    Ok(Some(Config::read(&path).map_err(CliError::config)?.0))
}
