//! The pools whose machines a plugin creates.

use crate::cli::args::GlobalOptions;
use crate::cli::error::CliError;
use crate::cli::locate::config_file;
use crate::config::Config;
use crate::provider::fleeting::locate::{Located, Places, Source, locate};

/// The provider's name.
const KIND: &str = "fleeting";

/// A pool, and its key `plugin`.
#[derive(Debug)]
pub(super) struct PluginPool {
    pub(super) name: String,
    pub(super) plugin: String,
}

/// All of them; none without a configuration.
pub(super) fn all(place: &GlobalOptions) -> Result<Vec<PluginPool>, CliError> {
    let path = config_file(place)?;
    if place.config.is_none() && !path.exists() {
        return Ok(Vec::new());
    }
    let (config, _) = Config::read(&path).map_err(CliError::config)?;
    let pools = config.pools.values().filter(|pool| pool.provider.kind == KIND);
    Ok(pools
        .filter_map(|pool| {
            let plugin = pool.provider.table.get("plugin")?.as_str()?.to_owned();
            Some(PluginPool { name: pool.name.as_str().to_owned(), plugin })
        })
        .collect())
}

impl PluginPool {
    pub(super) fn source(&self) -> Result<Source, CliError> {
        let wrong = |wrong| CliError::say(format!("pool `{}`: `plugin` {wrong}", self.name));
        Source::parse(&self.plugin).map_err(wrong)
    }

    /// The plugin that the pool uses, or the sentence that says what is missing.
    pub(super) fn located(&self, places: &Places) -> Result<Located, CliError> {
        locate(&self.source()?, places).map_err(|missing| {
            let help = missing.help();
            CliError::say(format!("pool `{}`: {missing}", self.name)).help(help)
        })
    }
}
