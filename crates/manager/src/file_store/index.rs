//! What a kept segment tells about jobs, in a file beside it.
//!
//! The index only saves time. It is written when its segment is, or by the first reader that misses it, and rebuilt if it
//! is damaged, or belongs to another version, pool or content. It is never synced: a torn one fails its checksum.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use greenroom_core::history::{Collector, Part, PartBuilder, Period};
use greenroom_core::ids::PoolName;
use greenroom_ports::store::StoreError;
use serde::{Deserialize, Serialize};

use super::compact::{Sync, remove, write_new};
use super::crash::crash_point;
use super::dir::{io_error, list};
use super::files::Files;
use super::format::{is_sound, seal};
use super::history::{HistoryReader, Segment, segments};

/// The version of `Part`. An index of another one is rebuilt.
const VERSION: u32 = 2;
/// How many segments a compaction indexes at most. More than one can lack an index after a crash.
const AT_ONCE: usize = 4;
const PREFIX: &str = "jobs-";
const SUFFIX: &str = ".json";

#[derive(Serialize)]
struct IndexOut<'a> {
    version: u32,
    pool: &'a PoolName,
    segment: Content,
    part: &'a Part,
}

#[derive(Deserialize)]
struct Index {
    version: u32,
    pool: PoolName,
    segment: Content,
    part: Part,
}

/// Identifies the content of a segment, which is never written again once it has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    size: u64,
    modified: (i64, i64),
}

impl Content {
    /// `None`: the segment is gone.
    fn of(segment: &Path) -> Result<Option<Self>, StoreError> {
        match std::fs::metadata(segment) {
            Ok(meta) => Ok(Some(Self { size: meta.size(), modified: (meta.mtime(), meta.mtime_nsec()) })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error("stat", segment, &e)),
        }
    }
}

/// The index of a segment.
pub(super) fn index_path(segment: &Segment) -> PathBuf {
    segment.path.with_file_name(format!("{PREFIX}{}-{}{SUFFIX}", segment.first, segment.last))
}

/// Everything that is kept of the pool's jobs, and what could not be read.
pub(super) fn collect(files: &Files, period: Period) -> Result<(Collector, Vec<StoreError>), StoreError> {
    // RACE: opened before the segments are listed, as in `HistoryReader::open`.
    let journal = HistoryReader::journal(files)?;
    let mut collector = Collector::new(period);
    let mut unreadable = Vec::new();
    let mut last = 0;
    for segment in segments(&files.history)? {
        let (part, problems) = match Content::of(&segment.path)? {
            // RACE: it was too old, and deleted meanwhile.
            None => continue,
            // CRASH: a compaction that died after its link left a second name for records of another file.
            Some(_) if segment.first <= last => read(HistoryReader::segment(segment.clone(), last)),
            Some(content) => indexed(files, &segment, content),
        };
        last = last.max(segment.last);
        collector.add(part);
        unreadable.extend(problems);
    }
    let (part, problems) = read(journal.after(last));
    collector.add(part);
    unreadable.extend(problems);
    Ok((collector, unreadable))
}

/// Writes the indexes that the newest segments lack.
pub(super) fn index_newest(files: &Files) -> Result<(), StoreError> {
    for segment in segments(&files.history)?.iter().rev().take(AT_ONCE) {
        if let Some(content) = Content::of(&segment.path)?
            && !index_path(segment).exists()
        {
            indexed(files, segment, content);
        }
    }
    Ok(())
}

/// Deletes the indexes whose segments are gone.
pub(super) fn prune(history: &Path) -> Result<(), StoreError> {
    let kept: Vec<PathBuf> = segments(history)?.iter().map(index_path).collect();
    for name in list(history)?.iter().filter(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX)) {
        let path = history.join(name);
        if !kept.contains(&path) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// From the index if it is usable; otherwise from the segment, and then the index is written.
fn indexed(files: &Files, segment: &Segment, content: Content) -> (Part, Vec<StoreError>) {
    let path = index_path(segment);
    if let Some(part) = usable(&path, &files.pool, content) {
        return (part, Vec::new());
    }
    let (part, problems) = read(HistoryReader::segment(segment.clone(), 0));
    // A damaged segment is read, and its damage reported, each time. So is one that is still being written.
    if problems.is_empty() && Content::of(&segment.path).is_ok_and(|now| now == Some(content)) {
        let index = IndexOut { version: VERSION, pool: &files.pool, segment: content, part: &part };
        if let Err(problem) = write(files, &path, &index) {
            tracing::debug!(pool = %files.pool, "cannot write an index of jobs: {problem}");
        }
    }
    (part, problems)
}

fn usable(path: &Path, pool: &PoolName, content: Content) -> Option<Part> {
    let bytes = std::fs::read(path).ok()?;
    let line = bytes.strip_suffix(b"\n").filter(|line| is_sound(line))?;
    let index: Index = serde_json::from_slice(line).ok()?;
    let is_current = index.version == VERSION && index.pool == *pool && index.segment == content;
    is_current.then_some(index.part)
}

fn write(files: &Files, path: &Path, index: &IndexOut<'_>) -> Result<(), StoreError> {
    let bytes = seal(index).map_err(|e| io_error("encode", path, &e.into()))?;
    let fresh = files.history.join("jobs.new");
    // `None`: another process writes one now. It, or the next reader, comes to this segment too.
    let Some(_locked) = write_new(&fresh, &bytes, Sync::No)? else { return Ok(()) };
    crash_point("store.index.written");
    std::fs::rename(&fresh, path).map_err(|e| io_error("rename", path, &e))
}

fn read(events: HistoryReader) -> (Part, Vec<StoreError>) {
    let (mut part, mut problems) = (PartBuilder::default(), Vec::new());
    for event in events {
        match event {
            Ok(recorded) => part.take(&recorded.event),
            Err(problem) => problems.push(problem),
        }
    }
    (part.finish(), problems)
}
