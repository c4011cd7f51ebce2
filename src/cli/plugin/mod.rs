//! `greenroom plugin`: the plugins of provider `fleeting` on this host.

pub(super) mod args;
mod install;
#[cfg(feature = "fleeting")]
mod test;

use std::path::PathBuf;

use greenroom_backends::fleeting::artifact::Digest;
use greenroom_backends::fleeting::artifact::lock_file::LockFile;
use greenroom_backends::fleeting::locate::{
    Installed, Located, PluginPlaces, PluginSource, VARIABLE, installed, locate,
};
use greenroom_backends::fleeting::reference::{Constraint, Reference};
use greenroom_backends::fleeting::{REGISTRATION, plugin_of};
use serde_json::json;

use super::args::GlobalOptions;
use super::context::config_file;
use super::error::CliError;
use super::ui::{self, Rows};
use crate::config::{Config, Diagnostics};
use args::{ListOptions, PluginCommand};

/// Runs a command; false is a negative result.
pub(super) async fn plugin(place: &GlobalOptions, command: PluginCommand) -> Result<bool, CliError> {
    match command {
        PluginCommand::List(options) => list(place, &options),
        PluginCommand::Install(options) => install::install(place, &options).await,
        PluginCommand::Test(options) => test::test(&options).await,
    }
}

#[cfg(not(feature = "fleeting"))]
mod test {
    //! A program without plugins: [`cli::program`](crate::cli::program) re-executes it as the one that has them.

    use super::args::TestOptions;
    use crate::cli::error::CliError;

    #[expect(clippy::unused_async, reason = "the signature of the other one")]
    pub(super) async fn test(_: &TestOptions) -> Result<bool, CliError> {
        Err(CliError::say("this program was built without the feature `fleeting`, and cannot run plugins"))
    }
}

/// The directories of plugins: the given one, or those of this process.
fn places(given: Option<&PathBuf>) -> Result<PluginPlaces, CliError> {
    let places = PluginPlaces::of_process();
    let plugins = match given {
        Some(given) => Some(std::path::absolute(given)?),
        None => places.plugins,
    };
    Ok(PluginPlaces { plugins, ..places })
}

/// The plugin directory.
fn directory(places: &PluginPlaces) -> Result<&PathBuf, CliError> {
    places.plugins.as_ref().ok_or_else(|| {
        CliError::say(format!(
            "there is no plugin directory: neither {VARIABLE} nor HOME is an absolute path"
        ))
        .help("name one with `--dir DIR`")
    })
}

/// A pool, and its plugin or the mistakes in its table.
#[derive(Debug)]
pub(super) struct PluginPool {
    pub(super) name: String,
    plugin: Result<PluginSource, Diagnostics>,
}

/// The pools that use plugins; none without a configuration.
fn plugin_pools(place: &GlobalOptions) -> Result<Vec<PluginPool>, CliError> {
    let path = config_file(place)?;
    if place.config.is_none() && !path.exists() {
        return Ok(Vec::new());
    }
    let (config, _) = Config::read(&path).map_err(CliError::config)?;
    Ok(pools_of(&config))
}

fn pools_of(config: &Config) -> Vec<PluginPool> {
    let pools = config.pools.values().filter(|pool| pool.provider.kind == REGISTRATION.kind);
    pools
        .map(|pool| PluginPool {
            name: pool.name.as_str().to_owned(),
            plugin: plugin_of(&pool.name, &pool.provider.table).map_err(|wrong| config.diagnostics(wrong)),
        })
        .collect()
}

impl PluginPool {
    pub(super) fn source(&self) -> Result<&PluginSource, CliError> {
        self.plugin.as_ref().map_err(|wrong| CliError::config(wrong.clone().into()))
    }

    /// The plugin that the pool uses, or the sentence that says what is missing.
    pub(super) fn located(&self, places: &PluginPlaces) -> Result<Located, CliError> {
        locate(self.source()?, places).map_err(|missing| {
            let help = missing.help();
            CliError::say(format!("pool `{}`: {missing}", self.name)).help(help)
        })
    }
}

/// A pool, and its plugin if it was found.
type PoolPlugin = (PluginPool, Result<Located, CliError>);

/// Lists the installed plugins; false if a pool's plugin is missing.
pub(super) fn list(place: &GlobalOptions, options: &ListOptions) -> Result<bool, CliError> {
    let places = places(options.dir.as_ref())?;
    let directory = directory(&places)?;
    let locked = LockFile::read(directory)?;
    let pools = of_pools(place, &places)?;
    let plugins = installed(directory);
    if options.json {
        let plugins: Vec<_> = plugins.iter().map(|one| in_json(one, &locked, &pools)).collect();
        let missing: Vec<_> = missing(&pools)
            .map(|(pool, error)| {
                let plugin = pool.source().ok().map(ToString::to_string);
                json!({"pool": pool.name, "plugin": plugin, "message": error.in_a_line()})
            })
            .collect();
        let document = json!({"directory": directory, "plugins": plugins, "missing": missing});
        ui::out(&format!("{document:#}\n"));
    } else {
        let mut rows = Rows::new(&["PLUGIN", "VERSION", "DIGEST", "POOLS"]);
        for one in &plugins {
            let digest = locked.index(&one.plugin, &one.version).map_or("-", Digest::short);
            let users = users(one, &pools);
            let users = if users.is_empty() { "-".to_owned() } else { users.join(", ") };
            let cells = vec![short(one), one.version.to_string(), digest.to_owned(), users];
            rows.row(cells, vec![one.program.display().to_string()]);
        }
        if rows.is_empty() {
            ui::out(&format!("no plugin is installed in {}\n", directory.display()));
        } else {
            ui::out(&rows.render(ui::width()));
        }
        for (_, error) in missing(&pools) {
            ui::err(&error.for_operator());
        }
    }
    Ok(missing(&pools).next().is_none())
}

fn of_pools(place: &GlobalOptions, places: &PluginPlaces) -> Result<Vec<PoolPlugin>, CliError> {
    let pools = plugin_pools(place)?.into_iter();
    Ok(pools
        .map(|pool| {
            let located = pool.located(places);
            (pool, located)
        })
        .collect())
}

fn missing(pools: &[PoolPlugin]) -> impl Iterator<Item = (&PluginPool, &CliError)> {
    pools.iter().filter_map(|(pool, located)| Some((pool, located.as_ref().err()?)))
}

/// The names of the pools that use this version now.
fn users(plugin: &Installed, pools: &[PoolPlugin]) -> Vec<String> {
    let uses = |(pool, located): &PoolPlugin| {
        let found = located.as_ref().ok()?;
        (found.program == plugin.program).then(|| pool.name.clone())
    };
    pools.iter().filter_map(uses).collect()
}

/// The name as a pool writes it, without a version.
fn short(plugin: &Installed) -> String {
    Reference { plugin: plugin.plugin.clone(), constraint: Constraint::Latest }.to_string()
}

fn in_json(plugin: &Installed, locked: &LockFile, pools: &[PoolPlugin]) -> serde_json::Value {
    json!({
        "name": plugin.plugin,
        "version": plugin.version,
        "path": plugin.program,
        "digest": locked.index(&plugin.plugin, &plugin.version),
        "pools": users(plugin, pools),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_the_plugin_that_its_provider_reads_or_the_mistakes_in_its_table() {
        let read = |provider: &str| {
            let text = format!("[pool.one]\nmax_instances = 1\n[pool.one.provider]\n{provider}\n");
            let pools = pools_of(&Config::parse(&text, "greenroom.toml").unwrap());
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
