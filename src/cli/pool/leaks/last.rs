//! What `pool leaks` found last, for metrics: the file `leaks.json` of a pool.

use std::fs;
use std::path::{Path, PathBuf};

use greenroom_core::ids::PoolName;
use greenroom_core::time::Stamp;
use greenroom_manager::runner_host::replace_told;
use serde::{Deserialize, Serialize};

use super::command::LeakCheck;

#[derive(Debug, Serialize, Deserialize)]
struct Last {
    at: Stamp,
    /// Orphaned resources, and those that were never launched from this state directory.
    orphaned: u64,
}

const FILE: &str = "leaks.json";

fn folder(root: &Path, pool: &PoolName) -> PathBuf {
    root.join("pools").join(pool.as_str())
}

/// Notes what was found. Only told: an error changes nothing.
pub(super) fn note(root: &Path, checked: &LeakCheck) {
    let orphaned = u64::try_from(checked.left).unwrap_or(u64::MAX);
    let Ok(text) = serde_json::to_vec(&Last { at: checked.view.at, orphaned }) else { return };
    // A pool without a directory has no state; nothing is made for it.
    replace_told(&folder(root, &checked.view.pool), FILE, &text).ok();
}

/// When `pool leaks` last looked, and how many orphaned resources it left.
pub(in crate::cli) fn read(root: &Path, pool: &PoolName) -> Option<(Stamp, u64)> {
    let last: Last = serde_json::from_slice(&fs::read(folder(root, pool).join(FILE)).ok()?).ok()?;
    Some((last.at, last.orphaned))
}
