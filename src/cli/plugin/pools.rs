//! The pools whose machines a plugin creates.

use greenroom_backends::fleeting::locate::{Located, Places, Source, locate};
use greenroom_backends::fleeting::{REGISTRATION, plugin_of};

use crate::cli::args::GlobalOptions;
use crate::cli::error::CliError;
use crate::cli::locate::config_file;
use crate::config::{Config, Diagnostics};

/// A pool, and its plugin or the mistakes in its table.
#[derive(Debug)]
pub(super) struct PluginPool {
    pub(super) name: String,
    plugin: Result<Source, Diagnostics>,
}

/// All of them; none without a configuration.
pub(super) fn all(place: &GlobalOptions) -> Result<Vec<PluginPool>, CliError> {
    let path = config_file(place)?;
    if place.config.is_none() && !path.exists() {
        return Ok(Vec::new());
    }
    let (config, _) = Config::read(&path).map_err(CliError::config)?;
    Ok(of(&config))
}

fn of(config: &Config) -> Vec<PluginPool> {
    let pools = config.pools.values().filter(|pool| pool.provider.kind == REGISTRATION.kind);
    pools
        .map(|pool| PluginPool {
            name: pool.name.as_str().to_owned(),
            plugin: plugin_of(&pool.name, &pool.provider.table).map_err(|wrong| config.diagnostics(wrong)),
        })
        .collect()
}

impl PluginPool {
    pub(super) fn source(&self) -> Result<&Source, CliError> {
        self.plugin.as_ref().map_err(|wrong| CliError::config(wrong.clone().into()))
    }

    /// The plugin that the pool uses, or the sentence that says what is missing.
    pub(super) fn located(&self, places: &Places) -> Result<Located, CliError> {
        locate(self.source()?, places).map_err(|missing| {
            let help = missing.help();
            CliError::say(format!("pool `{}`: {missing}", self.name)).help(help)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_the_plugin_that_its_provider_reads_or_the_mistakes_in_its_table() {
        let read = |provider: &str| {
            let text = format!("[pool.one]\nmax_instances = 1\n[pool.one.provider]\n{provider}\n");
            let pools = of(&Config::parse(&text, "greenroom.toml").unwrap());
            pools.first().map(|pool| {
                let source = pool.source().map(ToString::to_string);
                source.map_err(|error| error.in_a_line())
            })
        };
        let table = |keys: &str| format!("kind = \"fleeting\"\n{keys}");
        let sound = table("plugin = \"aws:1.2\"\nhost_keys = \"first-use\"");
        assert_eq!(read(&sound), Some(Ok("aws:1.2".to_owned())));
        assert_eq!(read("kind = \"local\""), None);
        for (keys, expected) in [
            ("plugin = \"./x\"\nhost_keys = \"first-use\"", "`plugin` is the relative path `./x`"),
            ("plugin = \"aws\"", "`host_keys` is missing"),
            ("host_keys = \"first-use\"", "`plugin` is missing"),
        ] {
            let error = read(&table(keys)).unwrap().unwrap_err();
            assert!(error.contains(expected), "{keys}: {error}");
        }
    }
}
