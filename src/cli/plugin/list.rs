//! `greenroom plugin list`.

use greenroom_backends::fleeting::artifact::digest::Digest;
use greenroom_backends::fleeting::artifact::lock_file::LockFile;
use greenroom_backends::fleeting::locate::{Installed, Located, Places, installed};
use greenroom_backends::fleeting::reference::{Constraint, Reference};
use serde_json::json;

use super::args::ListOptions;
use super::pools::{self, PluginPool};
use super::{directory, places};
use crate::cli::args::GlobalOptions;
use crate::cli::error::CliError;
use crate::cli::rows::Rows;
use crate::cli::ui;

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

fn of_pools(place: &GlobalOptions, places: &Places) -> Result<Vec<PoolPlugin>, CliError> {
    let pools = pools::all(place)?.into_iter();
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
