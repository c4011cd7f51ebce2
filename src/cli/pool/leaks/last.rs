//! What `pool leaks` found last, for metrics: the file `leaks.json` of a pool.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::command::LeakCheck;
use crate::core::ids::PoolName;
use crate::core::time::Stamp;

#[derive(Debug, Serialize, Deserialize)]
struct Last {
    at: Stamp,
    /// Orphaned resources, and those that were never launched from this state directory.
    orphaned: u64,
}

fn path(root: &Path, pool: &PoolName) -> PathBuf {
    root.join("pools").join(pool.as_str()).join("leaks.json")
}

/// Notes what was found. Only told: an error changes nothing.
pub(super) fn note(root: &Path, checked: &LeakCheck) {
    let orphaned = u64::try_from(checked.left).unwrap_or(u64::MAX);
    let path = path(root, &checked.view.pool);
    let fresh = path.with_extension(format!("json.{}", std::process::id()));
    let Ok(text) = serde_json::to_vec(&Last { at: checked.view.at, orphaned }) else { return };
    // A pool without a directory has no state; nothing is made for it.
    if fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &path)).is_err() {
        fs::remove_file(&fresh).ok();
    }
}

/// When `pool leaks` last looked, and how many orphaned resources it left.
pub(in crate::cli) fn read(root: &Path, pool: &PoolName) -> Option<(Stamp, u64)> {
    let last: Last = serde_json::from_slice(&fs::read(path(root, pool)).ok()?).ok()?;
    Some((last.at, last.orphaned))
}
