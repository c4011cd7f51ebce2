//! Diagnoses and repairs a pool's files.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use greenroom_ports::store::{Diagnosis, Repaired, StoreError};

use super::commit::save_aside;
use super::compact::{self, Contents, PendingCompaction};
use super::crash_point;
use super::files::{FileIdentity, PoolFiles, damaged, io_error, list, make};
use super::format::{Lines, number};
use super::history::{segment_name, segments};
use super::view::{Journal, View};

/// A repair, prepared and synced by [`prepare`], to be activated under the lock by [`finish`].
#[derive(Debug)]
pub(super) struct PreparedRepair {
    draft: PendingCompaction,
    snapshot: Option<FileIdentity>,
    journal: Option<FileIdentity>,
    kept: u64,
    lost: u64,
    side_files: Vec<PathBuf>,
}

/// Diagnoses the files. `read`: the result of reading them, with the lock where in doubt.
pub(super) fn verify(files: &PoolFiles, read: Result<&View, StoreError>) -> Result<Diagnosis, StoreError> {
    let salvaged;
    let (view, damage) = match read {
        Ok(view) => (view, None),
        Err(damage @ (StoreError::Damaged { .. } | StoreError::Newer { .. })) => {
            salvaged = View::salvage(files)?;
            (&salvaged, Some(damage))
        }
        Err(other) => return Err(other),
    };
    let mut history_damage = Vec::new();
    for segment in &segments(&files.history)? {
        history_damage.extend(first_damage(&segment.path)?);
    }
    let is_side_file = |name: &String| name.starts_with("journal.cut-") || name.contains(".damaged-");
    let side_files =
        list(&files.dir)?.into_iter().filter(is_side_file).map(|name| files.dir.join(name)).collect();
    let torn_bytes = view.journal.as_ref().filter(|_| damage.is_none()).map_or(0, Journal::torn);
    let last = view.last;
    let inapplicable_events = view.inapplicable_events;
    Ok(Diagnosis { damage, last, inapplicable_events, torn_bytes, history_damage, side_files })
}

fn first_damage(path: &Path) -> Result<Option<StoreError>, StoreError> {
    let bytes = std::fs::read(path).map_err(|e| io_error("read", path, &e))?;
    let bad = Lines(&bytes).zip(1..).find(|(line, _)| !line.sound);
    Ok(bad.map(|(_, at)| damaged(path, at, "the checksum does not match".to_owned())))
}

/// Prepares a repair: saves copies aside, writes and syncs new files with the valid prefix. Needs no lock, because a
/// damaged pool is not written to. `None` if a compaction or another repair is running.
pub(super) fn prepare(files: &PoolFiles) -> Result<Option<PreparedRepair>, StoreError> {
    let snapshot = FileIdentity::at(&files.snapshot)?;
    let journal = FileIdentity::at(&files.journal)?;
    let view = View::salvage(files)?;
    if let Some((file, found)) = &view.newer {
        return Err(super::files::newer(file, *found));
    }
    let bytes = match journal {
        Some(_) => std::fs::read(&files.journal).map_err(|e| io_error("read", &files.journal, &e))?,
        None => Vec::new(),
    };
    let after: Vec<u64> = sound_numbers(&bytes).filter(|n| *n > view.last).collect();
    let oldest_kept = segments(&files.history)?.iter().map(|s| s.last).max();
    // Numbering continues above every number that was ever used, so that none is used twice.
    let last = after.iter().copied().chain(oldest_kept).fold(view.last.max(view.snapshot_last), u64::max);

    let mut side_files = Vec::new();
    if snapshot.is_some() && View::from_snapshot(files, &files.snapshot).is_err() {
        let rotten = std::fs::read(&files.snapshot).map_err(|e| io_error("read", &files.snapshot, &e))?;
        side_files.push(save(files, "snapshot.damaged", &rotten)?);
    }
    if journal.is_some() {
        side_files.push(save(files, "journal.damaged", &bytes)?);
    }
    // The originals have synced copies before anything is replaced: a repair must not lose evidence.
    crash_point("store.repair.saved");
    keep_prefix(files, &view, &bytes)?;
    let contents = Contents::of(files, &view, last)?;
    let Some(draft) = compact::draft(files, &contents)? else { return Ok(None) };
    compact::sync_names(files)?;
    let lost = after.len() as u64;
    Ok(Some(PreparedRepair { draft, snapshot, journal, kept: view.last, lost, side_files }))
}

/// Copies the journal's sound beginning to the history, where `explain` reads it.
fn keep_prefix(files: &PoolFiles, view: &View, bytes: &[u8]) -> Result<(), StoreError> {
    let Some(journal) = &view.journal else { return Ok(()) };
    let valid = bytes.get(..usize::try_from(journal.valid).unwrap_or(usize::MAX)).unwrap_or_default();
    let Some(first) = sound_numbers(valid).next() else { return Ok(()) };
    make(&files.history)?;
    let path = files.history.join(segment_name(first, view.last));
    // CRASH: a killed compaction may have given this name to the journal itself, which must not be written to.
    compact::remove(&path)?;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let written = made.and_then(|mut file| file.write_all(valid).and_then(|()| file.sync_all()));
    written.map_err(|e| io_error("write", &path, &e))
}

/// Saves a durable copy.
fn save(files: &PoolFiles, name: &str, bytes: &[u8]) -> Result<PathBuf, StoreError> {
    let path = save_aside(files, name, bytes)?;
    let synced = File::open(&path).and_then(|file| file.sync_all());
    synced.map_err(|e| io_error("sync", &path, &e))?;
    Ok(path)
}

fn sound_numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    Lines(bytes).filter(|line| line.sound).filter_map(|line| number(line.text))
}

/// Activates a repair by [`compact::replace`]. The lock is held.
pub(super) fn finish(
    files: &PoolFiles,
    prepared: PreparedRepair,
    damage: StoreError,
) -> Result<Repaired, StoreError> {
    // The preparation ran without the lock: an operator may have restored a copy meanwhile.
    let same = FileIdentity::at(&files.snapshot)? == prepared.snapshot
        && FileIdentity::at(&files.journal)? == prepared.journal;
    if !same {
        let what = format!("the files in `{}` changed during the repair; run it again", files.dir.display());
        return Err(StoreError::Io { what });
    }
    compact::replace(files, &prepared.draft)?;
    let PreparedRepair { kept, lost, side_files, .. } = prepared;
    Ok(Repaired { damage, kept, lost, side_files })
}
