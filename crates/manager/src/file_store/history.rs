//! All events that are still kept, and an index of the jobs in each kept segment.
//!
//! The index only saves time. It is written when its segment is, or by the first reader that misses it, and rebuilt if it
//! is damaged, or belongs to another version, pool or content. It is never synced: a torn one fails its checksum.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use greenroom_core::history::{Collector, Part, PartBuilder, Period};
use greenroom_core::ids::PoolName;
use greenroom_ports::store::{RecordedEvent, StoreError};
use serde::{Deserialize, Serialize};

use super::compact::{Sync, remove, write_new};
use super::crash_point;
use super::files::{PoolFiles, damaged, io_error, list};
use super::format::{JournalRecord, Lines, is_sound, number, seal};

/// A journal that was folded into a snapshot and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) path: PathBuf,
}

pub(super) fn segment_name(first: u64, last: u64) -> String {
    format!("journal-{first}-{last}.jsonl")
}

/// Kept segments, oldest first.
pub(super) fn segments(history: &Path) -> Result<Vec<Segment>, StoreError> {
    let mut found: Vec<Segment> = list(history)?
        .iter()
        .filter_map(|name| {
            let (first, last) = name.strip_prefix("journal-")?.strip_suffix(".jsonl")?.split_once('-')?;
            Some(Segment { first: first.parse().ok()?, last: last.parse().ok()?, path: history.join(name) })
        })
        .collect();
    found.sort_unstable_by_key(|s| (s.first, s.last));
    Ok(found)
}

/// Events of the kept segments and the journal, oldest first, each once. An unreadable line is one error; the lines
/// after it still follow. Reads on demand, without the lock, one file at a time.
#[derive(Debug)]
pub(super) struct HistoryReader {
    segments: VecDeque<Segment>,
    journal: Option<(PathBuf, BufReader<File>)>,
    open: Option<(PathBuf, BufReader<File>)>,
    line: u64,
    last: u64,
    ready: VecDeque<RecordedEvent>,
}

impl HistoryReader {
    pub(super) fn open(files: &PoolFiles) -> Result<Self, StoreError> {
        // RACE: opened before the segments are listed, so that a journal that becomes a segment in between is read at
        // least once.
        let journal = reader(&files.journal)?.map(|r| (files.journal.clone(), r));
        let segments = segments(&files.history)?.into();
        Ok(Self { journal, ..Self::of(segments) })
    }

    /// A reader of the journal only.
    pub(super) fn journal(files: &PoolFiles) -> Result<Self, StoreError> {
        let journal = reader(&files.journal)?.map(|r| (files.journal.clone(), r));
        Ok(Self { journal, ..Self::of(VecDeque::new()) })
    }

    /// A reader of a segment's records with numbers above `last`.
    pub(super) fn segment(segment: Segment, last: u64) -> Self {
        Self::of([segment].into()).after(last)
    }

    /// Skips the records up to `last`.
    pub(super) fn after(self, last: u64) -> Self {
        Self { last, ..self }
    }

    fn of(segments: VecDeque<Segment>) -> Self {
        Self { segments, journal: None, open: None, line: 0, last: 0, ready: VecDeque::new() }
    }

    /// Opens the next file; `false` if there is none.
    fn open_next(&mut self) -> Result<bool, StoreError> {
        self.line = 0;
        while let Some(segment) = self.segments.pop_front() {
            // RACE: a segment that is too old may be deleted at any moment.
            if let Some(reader) = reader(&segment.path)? {
                self.open = Some((segment.path, reader));
                return Ok(true);
            }
        }
        self.open = self.journal.take();
        Ok(self.open.is_some())
    }

    /// Reads one more line into `ready`, or opens the next file; `false` at the end.
    fn advance(&mut self) -> Result<bool, StoreError> {
        let Some((path, reader)) = &mut self.open else { return self.open_next() };
        let mut bytes = Vec::new();
        let read = reader.read_until(b'\n', &mut bytes).map_err(|e| io_error("read", path, &e));
        let Some(line) = Lines(&bytes).next().filter(|_| read.is_ok()) else {
            self.open = None;
            return read.map(|_| true);
        };
        self.line += 1;
        // The first line is the header. An incomplete last line is still being written, or was cut short.
        if self.line == 1 || !bytes.ends_with(b"\n") {
            return Ok(true);
        }
        if !line.sound {
            return Err(damaged(path, self.line, "the checksum does not match".to_owned()));
        }
        if number(line.text).is_some_and(|n| n <= self.last) {
            return Ok(true);
        }
        let record: JournalRecord = serde_json::from_slice(line.text)
            .map_err(|e| damaged(path, self.line, format!("cannot parse the record: {e}")))?;
        if record.n > self.last {
            self.last = record.n;
            self.ready.extend(record.events.into_iter().map(|event| RecordedEvent { n: record.n, event }));
        }
        Ok(true)
    }
}

impl Iterator for HistoryReader {
    type Item = Result<RecordedEvent, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(recorded) = self.ready.pop_front() {
                return Some(Ok(recorded));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn reader(path: &Path) -> Result<Option<BufReader<File>>, StoreError> {
    match File::open(path) {
        Ok(file) => Ok(Some(BufReader::new(file))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io_error("open", path, &e)),
    }
}

/// The version of [`Part`]. An index of another one is rebuilt.
const INDEX_VERSION: u32 = 2;
/// Maximum number of segments that a compaction indexes. More than one can lack an index after a crash.
const MOST_INDEXED: usize = 4;
const INDEX_PREFIX: &str = "jobs-";
const INDEX_SUFFIX: &str = ".json";

#[derive(Serialize)]
struct JobIndexOut<'a> {
    version: u32,
    pool: &'a PoolName,
    segment: SegmentContent,
    part: &'a Part,
}

#[derive(Deserialize)]
struct JobIndex {
    version: u32,
    pool: PoolName,
    segment: SegmentContent,
    part: Part,
}

/// Identifies the content of a segment, which is never written again once it has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct SegmentContent {
    size: u64,
    modified: (i64, i64),
}

impl SegmentContent {
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
fn index_path(segment: &Segment) -> PathBuf {
    segment.path.with_file_name(format!("{INDEX_PREFIX}{}-{}{INDEX_SUFFIX}", segment.first, segment.last))
}

/// Everything that is kept of the pool's jobs, and what could not be read.
pub(super) fn collect_jobs(
    files: &PoolFiles,
    period: Period,
) -> Result<(Collector, Vec<StoreError>), StoreError> {
    // RACE: opened before the segments are listed, as in `HistoryReader::open`.
    let journal = HistoryReader::journal(files)?;
    let mut collector = Collector::new(period);
    let mut unreadable = Vec::new();
    let mut last = 0;
    for segment in segments(&files.history)? {
        let (part, problems) = match SegmentContent::of(&segment.path)? {
            // RACE: it was too old, and deleted meanwhile.
            None => continue,
            // CRASH: a compaction that died after its link left a second name for records of another file.
            Some(_) if segment.first <= last => read_jobs(HistoryReader::segment(segment.clone(), last)),
            Some(content) => indexed(files, &segment, content),
        };
        last = last.max(segment.last);
        collector.add(part);
        unreadable.extend(problems);
    }
    let (part, problems) = read_jobs(journal.after(last));
    collector.add(part);
    unreadable.extend(problems);
    Ok((collector, unreadable))
}

/// Writes the indexes that the newest segments lack.
pub(super) fn index_newest(files: &PoolFiles) -> Result<(), StoreError> {
    for segment in segments(&files.history)?.iter().rev().take(MOST_INDEXED) {
        if let Some(content) = SegmentContent::of(&segment.path)?
            && !index_path(segment).exists()
        {
            indexed(files, segment, content);
        }
    }
    Ok(())
}

/// Deletes the indexes whose segments are gone.
pub(super) fn prune_indexes(history: &Path) -> Result<(), StoreError> {
    let kept: Vec<PathBuf> = segments(history)?.iter().map(index_path).collect();
    for name in
        list(history)?.iter().filter(|name| name.starts_with(INDEX_PREFIX) && name.ends_with(INDEX_SUFFIX))
    {
        let path = history.join(name);
        if !kept.contains(&path) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// The jobs of a segment: from the index if it is usable; otherwise from the segment, and then the index is written.
fn indexed(files: &PoolFiles, segment: &Segment, content: SegmentContent) -> (Part, Vec<StoreError>) {
    let path = index_path(segment);
    if let Some(part) = usable_index(&path, &files.pool, content) {
        return (part, Vec::new());
    }
    let (part, problems) = read_jobs(HistoryReader::segment(segment.clone(), 0));
    // A damaged segment is read, and its damage reported, each time. So is one that is still being written.
    if problems.is_empty() && SegmentContent::of(&segment.path).is_ok_and(|now| now == Some(content)) {
        let index = JobIndexOut { version: INDEX_VERSION, pool: &files.pool, segment: content, part: &part };
        if let Err(problem) = write_index(files, &path, &index) {
            tracing::debug!(pool = %files.pool, "cannot write an index of jobs: {problem}");
        }
    }
    (part, problems)
}

fn usable_index(path: &Path, pool: &PoolName, content: SegmentContent) -> Option<Part> {
    let bytes = std::fs::read(path).ok()?;
    let line = bytes.strip_suffix(b"\n").filter(|line| is_sound(line))?;
    let index: JobIndex = serde_json::from_slice(line).ok()?;
    let is_current = index.version == INDEX_VERSION && index.pool == *pool && index.segment == content;
    is_current.then_some(index.part)
}

fn write_index(files: &PoolFiles, path: &Path, index: &JobIndexOut<'_>) -> Result<(), StoreError> {
    let bytes = seal(index).map_err(|e| io_error("encode", path, &e.into()))?;
    let fresh = files.history.join("jobs.new");
    // `None`: another process writes one now. It, or the next reader, comes to this segment too.
    let Some(_locked) = write_new(&fresh, &bytes, Sync::No)? else { return Ok(()) };
    crash_point("store.index.written");
    std::fs::rename(&fresh, path).map_err(|e| io_error("rename", path, &e))
}

fn read_jobs(events: HistoryReader) -> (Part, Vec<StoreError>) {
    let mut part = PartBuilder::default();
    let mut problems = Vec::new();
    for event in events {
        match event {
            Ok(recorded) => part.take(&recorded.event),
            Err(problem) => problems.push(problem),
        }
    }
    (part.finish(), problems)
}
