//! `pool leaks`: resources of the provider that have no record.

mod view;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_core::ids::{OwnerId, PoolName};
use greenroom_core::inventory::Resource;
use greenroom_core::orphan::Ownership;
use greenroom_core::time::Stamp;
use greenroom_engine::Engine;
use greenroom_engine::reap::{Deleted, LookError};
use greenroom_manager::runner_host::{Role, replace_told};
use greenroom_ports::setup::PoolSetup;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cli::args::{GlobalOptions, LeaksOptions};
use crate::cli::context::Context;
use crate::cli::doctor::boot;
use crate::cli::error::CliError;
use crate::cli::ui;
use crate::config::PoolConfig;
use view::{BootView, DeletionView, PoolView, StaysView, named};

/// A cloud takes a minute or two to delete an instance, and a volume is not free before that.
const DELETED_WITHIN: Duration = Duration::from_mins(10);

/// The resources of one pool, and those that were deleted.
#[derive(Debug)]
struct LeakCheck {
    view: PoolView,
    /// No orphaned resources (any more).
    is_clean: bool,
    /// The number of orphaned resources that are left.
    left: usize,
}

/// Compares the resources of providers with the records; false if there are orphaned ones.
pub(in crate::cli) async fn leaks(place: &GlobalOptions, options: &LeaksOptions) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let only = options.pool.as_deref().map(|name| context.the_pool(Some(name))).transpose()?;
    let mut documents = Vec::new();
    // A named pool is in the configuration: only a run over all pools can meet others.
    let mut unknown = if only.is_none() { unconfigured(&context).await? } else { Vec::new() };
    let (mut is_clean, boots) = unfinished(&context, only.as_ref(), options).await?;
    for pool in
        context.config()?.pools.values().filter(|pool| only.as_ref().is_none_or(|only| pool.name == *only))
    {
        match of_pool(&context, pool, options).await {
            Ok(checked) => {
                note_last(&context.state_path, &checked);
                is_clean &= checked.is_clean;
                documents.push(json!(checked.view));
            }
            Err(error) => {
                documents.push(json!({ "pool": pool.name.as_str(), "error": error.in_a_line() }));
                unknown.push(format!("pool `{}`: {}", pool.name, error.in_a_line()));
            }
        }
    }
    if options.json {
        ui::out(&format!("{:#}\n", json!({ "pools": documents, "boots": boots })));
    }
    if unknown.is_empty() {
        return Ok(is_clean);
    }
    Err(CliError::say(format!("orphaned resources cannot be determined: {}", unknown.join("; "))))
}

async fn of_pool(
    context: &Context,
    pool: &PoolConfig,
    options: &LeaksOptions,
) -> Result<LeakCheck, CliError> {
    let kept = context.pool(pool)?;
    let (setup, _) = kept.setup.current().await;
    let boots = boot::scratch::owners(&context.state_path)?;
    check(&kept.engine, &setup, options, boots, &|text| options.say(text)).await.map_err(CliError::system)
}

/// Interrupted boots of `doctor --boot`, cleaned up if that was requested: false if any is left, and the boots as JSON.
async fn unfinished(
    context: &Context,
    only: Option<&PoolName>,
    options: &LeaksOptions,
) -> Result<(bool, Vec<Value>), CliError> {
    let mut is_clean = true;
    let mut documents = Vec::new();
    for left in boot::scratch::unfinished(&context.state_path).await? {
        if only.is_some() && left.pool.as_ref() != only {
            continue;
        }
        let pool = left.pool.as_ref();
        let instances = &left.instances;
        documents.push(json!(BootView { directory: left.path().display(), pool, instances }));
        is_clean &= match (options.terminate, options.dry_run) {
            (true, false) => boot::finish(context, &left, &|text| options.say(text)).await?,
            (is_wanted, _) => {
                options.say(&if is_wanted {
                    format!("would clean up {left}\n")
                } else {
                    format!("orphaned: {left}\n")
                });
                false
            }
        };
    }
    Ok((is_clean, documents))
}

/// Pools with recorded instances that are no longer in the configuration.
async fn unconfigured(context: &Context) -> Result<Vec<String>, CliError> {
    let config = context.config()?;
    let mut unknown = Vec::new();
    let stores = context.stores()?;
    for name in stores.pools().await? {
        if config.pools.contains_key(&name) {
            continue;
        }
        let recorded = stores.store(&name)?.load().await?.alive();
        if recorded > 0 {
            let instances = ui::plural(recorded as usize, "instance");
            unknown.push(format!("pool `{name}` has {instances} on record, but is not in the configuration"));
        }
    }
    Ok(unknown)
}

/// Checks one pool, and deletes its orphaned resources if that was requested. `say` prints text for operators.
async fn check(
    engine: &Engine,
    setup: &PoolSetup,
    options: &LeaksOptions,
    boots: BTreeSet<OwnerId>,
    say: &dyn Fn(&str),
) -> Result<LeakCheck, LookError> {
    let (mut view, orphans) = see(engine, setup, &boots).await?;
    say(&view::found(&view, ui::width()));
    let is_clean = view.is_clean();
    let left = view.left();
    if !options.terminate || view.unknown_generation > 0 {
        return Ok(LeakCheck { view, is_clean, left });
    }
    let deletion = view.deletion.insert(DeletionView { dry_run: options.dry_run, ..DeletionView::default() });
    if options.dry_run || orphans.is_empty() {
        for orphan in orphans {
            say(&format!("would delete {}\n", named(&orphan)));
            deletion.gone.push(orphan.name);
        }
        return Ok(LeakCheck { view, is_clean, left });
    }
    engine
        .delete(setup, orphans, DELETED_WITHIN, &mut |resource, end| match end {
            Deleted::Gone => {
                say(&format!("deleted {}\n", named(resource)));
                deletion.gone.push(resource.name.clone());
            }
            Deleted::Stays(why) => {
                say(&format!("not deleted: {}: {why}\n", named(resource)));
                deletion.stays.push(StaysView { name: resource.name.clone(), reason: why.clone() });
            }
        })
        .await;
    // List again: a volume may have appeared when its instance was gone.
    let (after, _) = see(engine, setup, &boots).await?;
    say(&view::head(&after));
    Ok(LeakCheck { view, is_clean: after.is_clean(), left: after.left() })
}

impl LeaksOptions {
    /// Prints for people, not with `--json`.
    fn say(&self, text: &str) {
        if !self.json {
            ui::out(text);
        }
    }
}

/// All resources, and the orphans among them.
async fn see(
    engine: &Engine,
    setup: &PoolSetup,
    boots: &BTreeSet<OwnerId>,
) -> Result<(PoolView, Vec<Resource>), LookError> {
    let found = engine.resources(setup).await?;
    let orphans = found.iter().filter(|(_, ownership)| matches!(ownership, Ownership::Orphaned(_)));
    let orphans = orphans.map(|(resource, _)| resource.clone()).collect();
    Ok((PoolView::of(engine.pool.clone(), engine.clock.now(), found, boots), orphans))
}

#[derive(Debug, Serialize, Deserialize)]
struct LastCheck {
    at: Stamp,
    /// Orphaned resources, and those that were never launched from this state directory.
    orphaned: u64,
}

const FILE: &str = "leaks.json";

fn folder(root: &Path, pool: &PoolName) -> PathBuf {
    root.join("pools").join(pool.as_str())
}

/// Notes the result of a check for [`read_last`]. Only told: an error changes nothing.
fn note_last(root: &Path, checked: &LeakCheck) {
    let orphaned = u64::try_from(checked.left).unwrap_or(u64::MAX);
    let Ok(text) = serde_json::to_vec(&LastCheck { at: checked.view.at, orphaned }) else { return };
    // A pool without a directory has no state; nothing is made for it.
    replace_told(&folder(root, &checked.view.pool), FILE, &text).ok();
}

/// The moment of the last `pool leaks`, and the number of orphaned resources that it left.
pub(in crate::cli) fn read_last(root: &Path, pool: &PoolName) -> Option<(Stamp, u64)> {
    let last: LastCheck = serde_json::from_slice(&fs::read(folder(root, pool).join(FILE)).ok()?).ok()?;
    Some((last.at, last.orphaned))
}

#[cfg(test)]
mod tests;
