//! The image store that a pool names: its age, its problem, and the machines that use it.

use std::io;
use std::path::Path;

use fs_err as fs;
use greenroom_core::ids::PoolName;
use greenroom_core::text::minute;
use jiff::{SignedDuration, Timestamp};

use super::REGISTRATION;
use super::image_store::{Manifest, Stores};
use super::settings::{BootSource, Settings};
use super::spec::{Booted, Spec};
use crate::supervised::instance_dir::{InstanceDir, Life};
use crate::supervised::launch::instances;

/// A store that was not refreshed for so long is out of date.
const FRESH: SignedDuration = SignedDuration::from_hours(14 * 24);

/// The store that a pool names.
#[derive(Debug, Clone)]
pub struct PoolStore {
    pub name: String,
    pub stores: Stores,
}

/// The image store of a pool as `pool status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StoreStatus {
    pub name: String,
    /// The time when the store's images were last compared with their registries.
    pub refreshed: Option<Timestamp>,
    /// The reason the store is not used, or that it is out of date.
    pub problem: Option<String>,
    #[serde(skip)]
    pub text: String,
}

impl PoolStore {
    /// Reads the store from the kind of a pool's provider, and its table. `None`: it names no store, or contains a mistake.
    pub fn of(pool: &PoolName, kind: &str, table: &toml::Table, state_dir: &Path) -> Option<Self> {
        let settings = (kind == REGISTRATION.kind).then(|| Settings::read(pool, table).ok())??;
        let stores = Stores::beside(&settings.images_dir(state_dir));
        Some(Self { name: settings.image_store?, stores })
    }

    /// True if machines of the pool could have an image store, but its table names none. `is_list`: the pool names images,
    /// which templates get.
    pub fn is_missing(pool: &PoolName, kind: &str, table: &toml::Table, is_list: bool) -> bool {
        let settings = (kind == REGISTRATION.kind).then(|| Settings::read(pool, table).ok()).flatten();
        settings.is_some_and(|settings| {
            let is_known = settings.image_store.is_some() || (is_list && settings.templates_pull());
            !is_known && matches!(settings.source, BootSource::Image(_))
        })
    }

    pub fn status(&self, now: Timestamp) -> StoreStatus {
        let Self { name, stores } = self;
        let (refreshed, text, problem) = match stores.open(name) {
            Err(error) => (None, String::new(), Some(error.to_string())),
            Ok(store) => {
                let manifest = &store.manifest;
                let unused = store.problem().map(|problem| format!("is not used: {problem}"));
                let problem = unused.or_else(|| is_old(manifest, now).then(|| old(manifest)));
                (Some(manifest.refreshed), images(manifest), problem)
            }
        };
        let text = match &problem {
            Some(problem) if text.is_empty() => problem.clone(),
            Some(problem) => format!("`{name}` {problem}"),
            None => format!("`{name}`, {text}"),
        };
        StoreStatus { name: name.clone(), refreshed, problem, text }
    }
}

/// The content of a store in a few words: `3 images, refreshed 2026-11-20 03:00Z`.
fn images(manifest: &Manifest) -> String {
    let count = manifest.images.len();
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} image{plural}, refreshed {}", minute(manifest.refreshed))
}

/// True if a store was not refreshed for too long.
pub(super) fn is_old(manifest: &Manifest, now: Timestamp) -> bool {
    now.duration_since(manifest.refreshed) > FRESH
}

/// The age of a store that is out of date, such as `was last refreshed 2026-11-20 03:00Z, more than 14 days ago`.
pub(super) fn old(manifest: &Manifest) -> String {
    let days = FRESH.as_hours() / 24;
    format!("was last refreshed {}, more than {days} days ago", minute(manifest.refreshed))
}

/// The running and starting machines of a state directory that use this store, or may.
pub fn machines(state_dir: &Path, store: &PoolStore) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let pools = match fs::read_dir(state_dir.join("instances")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        other => other?,
    };
    for pool in pools {
        let pool = pool?;
        if !pool.file_type()?.is_dir() {
            continue;
        }
        for dir in instances(&pool.path())? {
            found.extend(uses(&dir, store)?.then(|| name(&dir)));
        }
    }
    Ok(found)
}

fn uses(dir: &InstanceDir, store: &PoolStore) -> io::Result<bool> {
    if dir.life()? == Life::Ended {
        return Ok(false);
    }
    // Instances of other providers have other specs.
    let Ok(Some(spec)) = dir.read::<Spec>("spec.json") else { return Ok(false) };
    if Stores::beside(&spec.settings.images_dir(&spec.state_dir)).path() != store.stores.path() {
        return Ok(false);
    }
    Ok(match dir.read::<Booted>("boot.json")? {
        Some(booted) => booted.image_store.is_some_and(|used| used.name == store.name),
        None => spec.settings.image_store.as_ref() == Some(&store.name),
    })
}

fn name(dir: &InstanceDir) -> String {
    dir.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::image_store::tests::store;

    #[test]
    fn a_pool_tells_whether_its_store_is_used_and_fresh() {
        let state = tempfile::tempdir().unwrap();
        let images = state.path().join("images");
        let linux = PoolName::new("linux");
        let ci = "image_store = \"ci\"";
        let of = |table: &str| PoolStore::of(&linux, "qemu", &table.parse().unwrap(), state.path());
        assert!(of("").is_none() && of("image_store = \"../x\"").is_none());
        assert!(PoolStore::of(&linux, "local", &ci.parse().unwrap(), state.path()).is_none());
        let pool = of(ci).unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let status = |now: &str| pool.status(at(now)).text;
        assert!(status("2026-11-21T00:00:00Z").starts_with("no image store `ci`"));
        let store = store(&images, "ci", b"data");
        assert_eq!(status("2026-12-04T03:00:00Z"), "`ci`, 1 image, refreshed 2026-11-20 03:00Z");
        assert_eq!(
            status("2026-12-04T03:00:01Z"),
            "`ci` was last refreshed 2026-11-20 03:00Z, more than 14 days ago"
        );
        fs::remove_file(store.file()).unwrap();
        assert!(status("2026-11-21T00:00:00Z").starts_with("`ci` is not used: its file "));
        assert!(machines(state.path(), &pool).unwrap().is_empty());
    }
}
