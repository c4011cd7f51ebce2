//! All events that are still kept.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use greenroom_ports::store::{RecordedEvent, StoreError};

use super::dir::{io_error, list};
use super::files::{Files, damaged};
use super::format::{Lines, Record, number};

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
    pub(super) fn open(files: &Files) -> Result<Self, StoreError> {
        // RACE: opened before the segments are listed, so that a journal that becomes a segment in between is read at
        // least once.
        let journal = reader(&files.journal)?.map(|r| (files.journal.clone(), r));
        let segments = segments(&files.history)?.into();
        Ok(Self { journal, ..Self::of(segments) })
    }

    /// Only the journal.
    pub(super) fn journal(files: &Files) -> Result<Self, StoreError> {
        let journal = reader(&files.journal)?.map(|r| (files.journal.clone(), r));
        Ok(Self { journal, ..Self::of(VecDeque::new()) })
    }

    /// Only the records of a segment with numbers above `last`.
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
        let record: Record = serde_json::from_slice(line.text)
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
