//! Folds the journal into the snapshot.
//!
//! Everything slow, serialising and syncing, happens before the lock is taken; only renames happen under it.
//! CRASH: after each rename the pool reads the same. The snapshot contains only records that the journal or a kept
//! segment holds too, and replay skips those.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use greenroom_ports::store::StoreError;

use super::crash_point;
use super::files::{FileIdentity, NOFOLLOW, PoolFiles, identify, io_error, make};
use super::format::{self, FORMAT, Header};
use super::history::{self, segment_name, segments};
use super::view::View;

/// New files, written and synced, but not yet active.
#[derive(Debug)]
pub(super) struct PendingCompaction {
    /// The new snapshot's file, open and thereby locked against a second compaction until the draft is dropped.
    _snapshot: File,
    _journal: File,
    /// Number of the last record in the new snapshot.
    last: u64,
}

/// Result of [`install`] for a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitResult {
    /// A new journal has begun.
    Rotated,
    /// The snapshot is active, but records were added while it was written: the journal stays.
    Grown,
    /// Another process changed the files: the draft is void.
    Superseded,
}

/// The serialised content of a [`PendingCompaction`].
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) snapshot: Vec<u8>,
    pub(super) journal: Vec<u8>,
    last: u64,
}

impl Contents {
    /// The state of a view, with `last` as its last record, and an empty journal after it.
    pub(super) fn of(files: &PoolFiles, view: &View, last: u64) -> Result<Self, StoreError> {
        let unwritable = |e: serde_json::Error| StoreError::Io {
            what: format!("cannot read back the encoded snapshot of pool `{}`: {e}", files.pool),
        };
        let snapshot =
            format::snapshot(&files.pool, last, view.inapplicable_events, &view.state).map_err(unwritable)?;
        serde_json::from_slice::<format::Snapshot>(&snapshot).map_err(unwritable)?;
        let header = Header { format: FORMAT, pool: files.pool.clone(), first: last + 1 };
        let journal = format::seal(&header).map_err(unwritable)?;
        Ok(Self { snapshot, journal, last })
    }
}

/// Writes and syncs the new files. `None` if another compaction is running. Blocks; needs no lock.
pub(super) fn draft(files: &PoolFiles, contents: &Contents) -> Result<Option<PendingCompaction>, StoreError> {
    make(&files.history)?;
    let Some(snapshot) = write_new(&new(&files.snapshot), &contents.snapshot, Sync::Yes)? else {
        return Ok(None);
    };
    crash_point("store.compact.snapshot-written");
    let Some(journal) = write_new(&new(&files.journal), &contents.journal, Sync::Yes)? else {
        return Ok(None);
    };
    crash_point("store.compact.journal-written");
    Ok(Some(PendingCompaction { _snapshot: snapshot, _journal: journal, last: contents.last }))
}

/// The path that the next version of a file is written to.
fn new(path: &Path) -> PathBuf {
    path.with_added_extension("new")
}

/// The durability of a new file: [`Sync::Yes`] has it survive a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sync {
    Yes,
    No,
}

/// Writes a file with a fixed name, so that crashed compactions do not accumulate. The file stays locked while it is open;
/// `None` if another process holds it.
pub(super) fn write_new(path: &Path, bytes: &[u8], sync: Sync) -> Result<Option<File>, StoreError> {
    let mut how = OpenOptions::new();
    how.write(true).create(true).truncate(false).mode(0o600).custom_flags(NOFOLLOW);
    let mut file = how.open(path).map_err(|e| io_error("open", path, &e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(io_error("lock", path, &e)),
    }
    // RACE: another process may have installed the file between opening and locking it.
    let locked = identify(&file, path)?;
    if !FileIdentity::at(path)?.is_some_and(|there| there.same_file(locked)) {
        return Ok(None);
    }
    let written = file.set_len(0).and_then(|()| file.write_all(bytes));
    let written = written.and_then(|()| if sync == Sync::Yes { file.sync_all() } else { Ok(()) });
    written.map_err(|e| io_error("write", path, &e))?;
    Ok(Some(file))
}

/// Installs a draft of `view`. The lock is held; nothing here waits for a disk.
pub(super) fn install(
    files: &PoolFiles,
    view: &View,
    draft: &PendingCompaction,
) -> Result<CommitResult, StoreError> {
    crash_point("store.compact.locked");
    let there = FileIdentity::at(&files.journal)?;
    let (Some(there), Some(journal)) = (there, &view.journal) else { return Ok(CommitResult::Superseded) };
    let untouched = FileIdentity::at(&files.snapshot)? == view.snapshot;
    // A journal that grew is fine: the new snapshot holds its beginning. Any other change is another process's compaction or
    // repair, which this draft would undo.
    if !untouched || !there.same_file(journal.identity) || there.size < journal.valid {
        return Ok(CommitResult::Superseded);
    }
    // The snapshot comes before the journal: a new journal beside the old snapshot would lack the records between them.
    keep_previous(files, view)?;
    rename(&new(&files.snapshot), &files.snapshot)?;
    crash_point("store.compact.snapshot-renamed");
    if there.size != journal.valid {
        return Ok(CommitResult::Grown);
    }
    if let Some(header) = &journal.header {
        keep_segment(files, there, header.first, draft.last)?;
        crash_point("store.compact.segment-linked");
    }
    rename(&new(&files.journal), &files.journal)?;
    crash_point("store.compact.journal-renamed");
    Ok(CommitResult::Rotated)
}

/// Gives the active snapshot a second name, which remains: repair begins there if the next snapshot is damaged.
fn keep_previous(files: &PoolFiles, view: &View) -> Result<(), StoreError> {
    if view.snapshot.is_none() {
        return Ok(());
    }
    // A link cannot replace a name, and a rename can: the link gets a temporary name first, so `previous` always exists.
    let name = new(&files.previous);
    remove(&name)?;
    std::fs::hard_link(&files.snapshot, &name).map_err(|e| io_error("link", &name, &e))?;
    rename(&name, &files.previous)
}

/// Gives the journal its name in the history before a new one replaces it, so that it always has a name.
fn keep_segment(files: &PoolFiles, journal: FileIdentity, first: u64, last: u64) -> Result<(), StoreError> {
    let name = files.history.join(segment_name(first, last));
    // CRASH: a compaction that died after its link left such a name, and the journal has grown since.
    for half_done in segments(&files.history)?.into_iter().filter(|s| s.first == first) {
        if FileIdentity::at(&half_done.path)?.is_some_and(|there| there.same_file(journal)) {
            remove(&half_done.path)?;
        }
    }
    std::fs::hard_link(&files.journal, &name).map_err(|e| io_error("link", &name, &e))
}

/// Installs a draft in place of damaged files. The lock is held; the caller has saved the replaced files.
pub(super) fn replace(files: &PoolFiles, _draft: &PendingCompaction) -> Result<(), StoreError> {
    // CRASH: with the new snapshot and the old journal the pool is still damaged, and a second repair has the same
    // result.
    rename(&new(&files.snapshot), &files.snapshot)?;
    crash_point("store.repair.snapshot-renamed");
    rename(&new(&files.journal), &files.journal)?;
    crash_point("store.repair.journal-renamed");
    Ok(())
}

/// Deletes segments older than `days` that neither the snapshot nor the previous one needs.
pub(super) fn prune(files: &PoolFiles, days: u32, needed_after: u64) -> Result<(), StoreError> {
    let kept = Duration::from_hours(24).saturating_mul(days);
    for segment in segments(&files.history)?.into_iter().filter(|s| s.last <= needed_after) {
        let modified = std::fs::metadata(&segment.path).and_then(|m| m.modified());
        let age = modified.ok().and_then(|then| SystemTime::now().duration_since(then).ok());
        if age.is_some_and(|age| age >= kept) {
            remove(&segment.path)?;
        }
    }
    history::prune_indexes(&files.history)
}

/// Makes names in the pool's directories durable.
pub(super) fn sync_names(files: &PoolFiles) -> Result<(), StoreError> {
    // The pool's directory, `pools/` and the state directory.
    let up = files.dir.ancestors().take(3);
    for dir in std::iter::once(files.history.as_path()).chain(up) {
        match File::open(dir) {
            Ok(open) => open.sync_all().map_err(|e| io_error("sync", dir, &e))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io_error("open", dir, &e)),
        }
    }
    Ok(())
}

fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    std::fs::rename(from, to).map_err(|e| io_error("rename", to, &e))
}

/// Deletes a file, if there is one.
pub(super) fn remove(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error("delete", path, &e)),
        _ => Ok(()),
    }
}
