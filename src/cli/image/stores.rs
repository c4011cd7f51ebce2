//! The commands `image store build`, `list`, `check` and `remove`.

use std::io;
use std::path::{Path, PathBuf};

use greenroom_core::text::minute;
use greenroom_core::time::Pretty;
use greenroom_keys::near::nearest;
use greenroom_providers::qemu::image_store::build::{BuiltStore, Newer, Request, build, newer};
use greenroom_providers::qemu::image_store::{ImageStoreError, ListedStore, Source, Store, Stores};
use greenroom_providers::qemu::store_use::{PoolStore, machines};
use rustix::fs::Mode;
use serde_json::{Value, json};

use super::args::{StoreBuildOptions, StoreCommand};
use super::build::mib;
use crate::cli::args::GlobalOptions;
use crate::cli::context::{config_path, state_path};
use crate::cli::error::CliError;
use crate::cli::ui::{self, Rows};
use crate::config::Config;

/// Runs one command; false if its result is negative.
pub(super) fn store(place: &GlobalOptions, stores: &Stores, command: StoreCommand) -> Result<bool, CliError> {
    match command {
        StoreCommand::Build(options) => build_store(stores, options),
        StoreCommand::List { json, .. } => list(stores, json),
        StoreCommand::Check { name, registry, json, .. } => check(stores, &name, registry, json),
        StoreCommand::Remove { name, dry_run, .. } => remove(place, stores, &name, dry_run),
    }
}

fn build_store(stores: &Stores, options: StoreBuildOptions) -> Result<bool, CliError> {
    // The keeper's user reads what root builds, whatever the umask of this process.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let source = source(&options)?;
    let request = Request { name: options.name, images: options.contents, source };
    let begun = std::time::Instant::now();
    let built = build(stores, &request, &mut |step| {
        ui::err(&format!("{:>8}  {}\n", Pretty(step.took).to_string(), step.what));
    });
    let text = match built.map_err(|error| explained(stores, &request.name, error))? {
        BuiltStore::New(store) => {
            let manifest = &store.manifest;
            format!(
                "image store `{}` is complete: {}, {}, built in {}\n",
                manifest.name,
                ui::plural(manifest.images.len(), "image"),
                mib(size(&store)?),
                Pretty(begun.elapsed())
            )
        }
        BuiltStore::Unchanged(store) => {
            format!("image store `{}` is current: no image has changed\n", store.manifest.name)
        }
    };
    ui::err(&text);
    Ok(true)
}

/// The source that the options name; `None`: they name none.
fn source(options: &StoreBuildOptions) -> io::Result<Option<Source>> {
    let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    let source = Source {
        from: absolute(&options.from)?,
        authfile: absolute(&options.authfile)?,
        ca: absolute(&options.ca)?,
        mirrors: options.mirrors.iter().cloned().collect(),
    };
    let is_named = source != Source::default() || !options.contents.is_empty();
    Ok(is_named.then_some(source))
}

/// Disk space of a store's data, in bytes.
fn size(store: &Store) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(fs_err::metadata(store.file())?.blocks() * 512)
}

fn list(stores: &Stores, json: bool) -> Result<bool, CliError> {
    let entries = stores.list()?;
    let text = if json {
        let all: Vec<Value> = entries.iter().map(entry_json).collect();
        format!("{:#}\n", json!({ "stores": all }))
    } else if entries.is_empty() {
        format!(
            "no image stores in {}; build one with `greenroom image store build NAME IMAGE…`\n",
            stores.path().display()
        )
    } else {
        table(&entries)
    };
    ui::out(&text);
    Ok(true)
}

fn table(entries: &[ListedStore]) -> String {
    let mut rows = Rows::new(&["STORE", "IMAGES", "SIZE", "BUILT", "REFRESHED"]);
    for ListedStore { name, store } in entries {
        match store {
            Ok(store) => {
                let manifest = &store.manifest;
                let size = size(store).map_or_else(|_| "?".to_owned(), mib);
                let built = minute(manifest.built);
                let refreshed = minute(manifest.refreshed);
                let images = manifest.images.iter().map(|image| {
                    let digest = image.digest.get(..19).unwrap_or(&image.digest);
                    format!("{} ({digest}, since {})", image.name, minute(image.since))
                });
                let beneath = store.problem().into_iter().chain(images).collect();
                rows.row(
                    vec![name.clone(), manifest.images.len().to_string(), size, built, refreshed],
                    beneath,
                );
            }
            Err(error) => rows.row(vec![name.clone()], vec![error.to_string()]),
        }
    }
    rows.render(ui::width())
}

fn entry_json(entry: &ListedStore) -> Value {
    match &entry.store {
        Ok(store) => json!({ "name": entry.name, "manifest": store.manifest, "problem": store.problem() }),
        Err(error) => json!({ "name": entry.name, "manifest": null, "problem": error.to_string() }),
    }
}

fn check(stores: &Stores, name: &str, registry: bool, json: bool) -> Result<bool, CliError> {
    let explained = |error| explained(stores, name, error);
    let store = stores.open(name).map_err(explained)?;
    let damage = store.check()?.map(|damage| damage.to_string());
    let newer = if registry { newer(stores, &store).map_err(explained)? } else { Vec::new() };
    let text = if json {
        let newer: Vec<Value> =
            newer.iter().map(|Newer { image, digest }| json!({ "image": image, "digest": digest })).collect();
        format!(
            "{:#}\n",
            json!({ "name": name, "manifest": store.manifest, "problem": damage, "newer": newer })
        )
    } else {
        let mut lines: Vec<String> =
            damage.iter().map(|damage| format!("image store `{name}`: {damage}\n")).collect();
        lines.extend(newer.iter().map(|Newer { image, digest }| {
            format!("image store `{name}`: `{image}` is {digest} in its registry now\n")
        }));
        if lines.is_empty() {
            let and = if registry { ", and current" } else { "" };
            lines.push(format!("image store `{name}` is intact{and}\n"));
        }
        lines.concat()
    };
    ui::out(&text);
    Ok(damage.is_none() && newer.is_empty())
}

fn remove(place: &GlobalOptions, stores: &Stores, name: &str, dry_run: bool) -> Result<bool, CliError> {
    let dir = stores.path().join(name);
    if !greenroom_providers::qemu::image::is_name(name) || !dir.is_dir() {
        let error = stores.open(name).err().unwrap_or(ImageStoreError::Name(name.to_owned()));
        return Err(explained(stores, name, error));
    }
    let users = users(place, stores, name)?;
    if !users.is_empty() {
        let what = format!("image store `{name}` is in use by {}", users.join(", "));
        return Err(CliError::say(what).help(
            "remove `image_store` from the pool's table, and wait until its instances have terminated",
        ));
    }
    if dry_run {
        ui::out(&format!("would remove {}\n", dir.display()));
        return Ok(true);
    }
    stores.remove(name).map_err(|error| explained(stores, name, error))?;
    ui::out(&format!("removed {}\n", dir.display()));
    Ok(true)
}

/// The pools that name a store, and the machines that have it.
fn users(place: &GlobalOptions, stores: &Stores, name: &str) -> Result<Vec<String>, CliError> {
    let state = state_path(place)?;
    let own = PoolStore { name: name.to_owned(), stores: stores.clone() };
    let mut users = Vec::new();
    if let Some(config) = configured(place, &state)? {
        let names = |(pool, settings): &(&greenroom_core::ids::PoolName, &crate::config::PoolConfig)| {
            PoolStore::of(pool, &settings.provider.kind, &settings.provider.table, &state)
                .is_some_and(|used| used.name == own.name && used.stores.path() == own.stores.path())
        };
        users.extend(config.pools.iter().filter(names).map(|(pool, _)| format!("pool `{pool}`")));
    }
    users.extend(machines(&state, &own)?.into_iter().map(|machine| format!("instance {machine}")));
    Ok(users)
}

/// The configuration, if there is one.
fn configured(place: &GlobalOptions, state: &Path) -> Result<Option<Config>, CliError> {
    let path = match config_path(place, state) {
        Some(path) => path,
        None => place.config_file()?,
    };
    if !path.exists() && place.config.is_none() {
        return Ok(None);
    }
    Ok(Some(Config::read(&path).map_err(CliError::config)?.0))
}

/// An error with what to do about it.
fn explained(stores: &Stores, name: &str, error: ImageStoreError) -> CliError {
    let known = stores.list().unwrap_or_default();
    let near = || nearest(name, known.iter().map(|entry| entry.name.as_str()));
    let help = match &error {
        ImageStoreError::Missing { .. } => Some(near().map_or_else(
            || "list image stores with `greenroom image store list`".to_owned(),
            |near| format!("did you mean `{near}`?"),
        )),
        ImageStoreError::NotRoot => Some("run it with sudo".to_owned()),
        ImageStoreError::Skopeo { .. } => Some(
            "check the name, the registry and the network; name logins with `--authfile`, certificates with `--ca`"
                .to_owned(),
        ),
        ImageStoreError::Path(_) => Some("name another folder with `--images DIR`".to_owned()),
        _ => None,
    };
    let error = CliError::system(error);
    match help {
        Some(help) => error.help(help),
        None => error,
    }
}
