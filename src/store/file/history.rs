//! Everything that happened, as far back as it is kept.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use super::dir::{io_error, list};
use super::format::{Lines, Record, number};
use super::view::{Files, damaged};
use crate::core::event::Event;
use crate::port::store::StoreError;

/// One event of the past.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The transaction it belongs to.
    pub n: u64,
    pub event: Event,
}

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

/// Events of kept segments and of the journal, oldest first, each once. A line that cannot be read is an error of its
/// own; what follows it still comes. Reads as it goes, without the lock.
#[derive(Debug)]
pub struct History {
    files: VecDeque<(PathBuf, BufReader<File>)>,
    line: u64,
    last: u64,
    ready: VecDeque<Recorded>,
}

impl History {
    pub(super) fn open(files: &Files) -> Result<Self, StoreError> {
        // RACE: opened before the segments are listed, so that what is put aside in between is seen at least once.
        let journal = reader(&files.journal)?;
        let mut open = VecDeque::new();
        for segment in segments(&files.history)? {
            // One that is too old may go at any moment.
            open.extend(reader(&segment.path)?.map(|r| (segment.path, r)));
        }
        open.extend(journal.map(|r| (files.journal.clone(), r)));
        Ok(Self { files: open, line: 0, last: 0, ready: VecDeque::new() })
    }

    /// Reads one more line into `ready`.
    fn advance(&mut self) -> Result<(), StoreError> {
        let Some((path, reader)) = self.files.front_mut() else { return Ok(()) };
        let mut bytes = Vec::new();
        let read = reader.read_until(b'\n', &mut bytes).map_err(|e| io_error("read", path, &e));
        self.line += 1;
        let Some(line) = Lines(&bytes).next() else {
            self.files.pop_front();
            self.line = 0;
            return read.map(drop);
        };
        // The first line is the header; an unfinished last one is not written yet, or never will be.
        if self.line == 1 || !bytes.ends_with(b"\n") {
            return Ok(());
        }
        if !line.sound {
            return Err(damaged(path, self.line, "the checksum does not match".to_owned()));
        }
        if number(line.text).is_some_and(|n| n <= self.last) {
            return Ok(());
        }
        let record: Record = serde_json::from_slice(line.text)
            .map_err(|e| damaged(path, self.line, format!("the record cannot be understood: {e}")))?;
        if record.n > self.last {
            self.last = record.n;
            self.ready.extend(record.events.into_iter().map(|event| Recorded { n: record.n, event }));
        }
        Ok(())
    }
}

impl Iterator for History {
    type Item = Result<Recorded, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(recorded) = self.ready.pop_front() {
                return Some(Ok(recorded));
            }
            self.files.front()?;
            if let Err(error) = self.advance() {
                if matches!(error, StoreError::Io { .. }) {
                    self.files.pop_front();
                    self.line = 0;
                }
                return Some(Err(error));
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
