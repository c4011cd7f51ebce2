//! Reads snapshot and journal into a state.
//!
//! Invariant: a view holds the state after the records 1 to `last`, whole transactions only, or there is an error.
//! Reading needs no lock; a reader that finds an error without the lock reads again with it before it reports the
//! error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use greenroom_core::ids::PoolName;
use greenroom_core::pool::PoolState;
use greenroom_ports::store::StoreError;

use super::files::{FileIdentity, NOFOLLOW, PoolFiles, damaged, identify, io_error, newer, outdated};
use super::format::{FORMAT, Header, JournalRecord, Lines, Snapshot, is_sealed, is_sound, number, version};
use super::history::segments;

/// The state, as [`View::read`] reads it from the files.
#[derive(Debug)]
pub(super) struct View {
    pub(super) state: PoolState,
    /// Number of the last record in `state`.
    pub(super) last: u64,
    /// Events since the pool's beginning that did not fit the state. Each indicates a bug.
    pub(super) inapplicable_events: u64,
    /// A file from a newer version, and its format.
    pub(super) newer: Option<(PathBuf, u32)>,
    pub(super) snapshot: Option<FileIdentity>,
    /// Number of the last record in the snapshot.
    pub(super) snapshot_last: u64,
    pub(super) journal: Option<Journal>,
}

/// A journal, as far as a [`View`] has read it.
#[derive(Debug)]
pub(super) struct Journal {
    /// The journal's file, kept open so that its inode cannot be reused for another file.
    pub(super) file: File,
    pub(super) identity: FileIdentity,
    pub(super) header: Option<Header>,
    /// Bytes up to the end of the last sound line.
    pub(super) valid: u64,
    /// Number of sound lines.
    lines: u64,
    /// Number of the last record.
    last: u64,
}

impl Journal {
    /// Bytes after the last sound line: an incomplete write.
    pub(super) fn torn(&self) -> u64 {
        self.identity.size.saturating_sub(self.valid)
    }

    /// A new journal.
    pub(super) fn begun(file: File, identity: FileIdentity, header: Header, length: u64) -> Self {
        Self { file, identity, header: Some(header), valid: length, lines: 1, last: 0 }
    }

    /// Accounts for a record that this process appended.
    pub(super) fn appended(&mut self, n: u64, length: u64) {
        self.passed(length);
        self.identity.size = self.valid;
        self.last = n;
    }

    /// Accounts for a sound line that was processed.
    fn passed(&mut self, length: u64) {
        self.valid += length;
        self.lines += 1;
    }

    fn format(&self) -> u32 {
        self.header.as_ref().map_or(FORMAT, |h| h.format)
    }
}

impl View {
    /// The view of a pool without records.
    fn empty() -> Self {
        let state = PoolState::default();
        let newer = None;
        let snapshot = None;
        let journal = None;
        Self { state, last: 0, inapplicable_events: 0, newer, snapshot, snapshot_last: 0, journal }
    }

    /// Reads the current state, starting from an earlier view if that is still valid.
    pub(super) fn read(files: &PoolFiles, earlier: Option<View>) -> Result<Self, StoreError> {
        if let Some(mut view) = earlier
            && view.is_current(files)?
        {
            view.catch_up(files)?;
            return Ok(view);
        }
        let mut view = Self::from_snapshot(files, &files.snapshot)?.unwrap_or_else(Self::empty);
        view.journal = open_journal(&files.journal)?;
        if view.journal.is_none() && !files.dir.is_dir() {
            return Err(StoreError::Io { what: format!("`{}` no longer exists", files.dir.display()) });
        }
        if view.journal.is_none() && (view.snapshot.is_some() || !segments(&files.history)?.is_empty()) {
            return Err(damaged(&files.journal, 1, "the file is missing".to_owned()));
        }
        view.catch_up(files)?;
        Ok(view)
    }

    /// The state in a snapshot file; `None` without one.
    pub(super) fn from_snapshot(files: &PoolFiles, path: &Path) -> Result<Option<Self>, StoreError> {
        let Some(file) = open(path)? else { return Ok(None) };
        let identity = identify(&file, path)?;
        let mut bytes = vec![0; usize::try_from(identity.size).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0).map_err(|e| io_error("read", path, &e))?;
        let snapshot = parse_snapshot(files, path, &bytes)?;
        let newer = (snapshot.format > FORMAT).then(|| (path.to_owned(), snapshot.format));
        let Snapshot { last, inapplicable_events, state, .. } = snapshot;
        let snapshot = Some(identity);
        Ok(Some(Self {
            state,
            last,
            inapplicable_events,
            newer,
            snapshot,
            snapshot_last: last,
            journal: None,
        }))
    }

    /// The state for a repair: the best readable snapshot, followed by all records that can be replayed without a gap. The view
    /// must not be written to.
    pub(super) fn salvage(files: &PoolFiles) -> Result<Self, StoreError> {
        let present = Self::from_snapshot(files, &files.snapshot).ok().flatten();
        let usable = match present {
            Some(view) => Some(view),
            None => Self::from_snapshot(files, &files.previous).ok().flatten(),
        };
        let mut view = usable.unwrap_or_else(Self::empty);
        view.snapshot = FileIdentity::at(&files.snapshot)?;
        view.journal = open_journal(&files.journal)?;
        // Unreadable data ends the prefix; the caller already has the error.
        if view.journal.is_none() {
            let _ends_there = view.fill_gap(files);
        }
        let _ends_here = view.catch_up(files);
        Ok(view)
    }

    /// True if both paths still name the files that were read.
    fn is_current(&self, files: &PoolFiles) -> Result<bool, StoreError> {
        if FileIdentity::at(&files.snapshot)? != self.snapshot {
            return Ok(false);
        }
        Ok(match (FileIdentity::at(&files.journal)?, &self.journal) {
            (Some(there), Some(read)) => there.same_file(read.identity) && there.size >= read.valid,
            _ => false,
        })
    }

    /// Reads the records that were appended since.
    fn catch_up(&mut self, files: &PoolFiles) -> Result<(), StoreError> {
        let Some(mut journal) = self.journal.take() else { return Ok(()) };
        let done = self.replay(&mut journal, files);
        self.journal = Some(journal);
        done
    }

    fn replay(&mut self, journal: &mut Journal, files: &PoolFiles) -> Result<(), StoreError> {
        journal.identity = identify(&journal.file, &files.journal)?;
        let unread = journal.torn();
        let mut bytes = vec![0; usize::try_from(unread).unwrap_or(usize::MAX)];
        let read = journal.file.read_exact_at(&mut bytes, journal.valid);
        read.map_err(|e| io_error("read", &files.journal, &e))?;
        let mut bad = None;
        for (line, at) in Lines(&bytes).zip(journal.lines + 1..) {
            if !line.sound {
                bad.get_or_insert(at);
                continue;
            }
            if let Some(at) = bad {
                let problem = "the checksum does not match, and valid records follow".to_owned();
                return Err(damaged(&files.journal, at, problem));
            }
            let place = RecordPosition { path: &files.journal, line: at, format: journal.format() };
            if at == 1 {
                journal.header = Some(self.take_header(line.text, files)?);
            } else {
                self.take_record(line.text, &mut journal.last, &place)?;
            }
            journal.passed(line.length);
        }
        Ok(())
    }

    fn take_header(&mut self, text: &[u8], files: &PoolFiles) -> Result<Header, StoreError> {
        let path = &files.journal;
        match version(text) {
            Some(found) if found > FORMAT => self.newer = Some((path.clone(), found)),
            Some(found) if found < FORMAT => return Err(outdated(path, found)),
            _ => {}
        }
        let header: Header = serde_json::from_slice(text).map_err(|e| match &self.newer {
            Some((file, found)) => newer(file, *found),
            None => damaged(path, 1, format!("cannot parse the header: {e}")),
        })?;
        check_pool(files, path, &header.pool)?;
        if header.first > self.last + 1 {
            // CRASH: a power cut may have kept the new journal and lost the new snapshot; the old segment has the
            // missing records.
            self.fill_gap(files)?;
        }
        if header.first > self.last + 1 {
            let problem = format!("records {} to {} are missing", self.last + 1, header.first - 1);
            return Err(damaged(path, 1, problem));
        }
        Ok(header)
    }

    /// Applies a record if the state lacks it. `before` is the number of the previous record in the same file.
    fn take_record(
        &mut self,
        text: &[u8],
        before: &mut u64,
        place: &RecordPosition<'_>,
    ) -> Result<(), StoreError> {
        let contained = |n: u64| n <= self.last && n > *before;
        if let Some(n) = number(text).filter(|n| contained(*n)) {
            *before = n;
            return Ok(());
        }
        let record: JournalRecord = serde_json::from_slice(text).map_err(|e| place.not_parsed(&e))?;
        if contained(record.n) {
            *before = record.n;
            return Ok(());
        }
        if record.n != self.last + 1 {
            let problem = format!("record {} follows record {}", record.n, self.last.max(*before));
            return Err(damaged(place.path, place.line, problem));
        }
        for event in &record.events {
            self.inapplicable_events += u64::from(self.state.apply(event).is_err());
        }
        self.last = record.n;
        *before = record.n;
        Ok(())
    }

    /// Applies the records of old segments that the state lacks, as far as they follow without a gap.
    fn fill_gap(&mut self, files: &PoolFiles) -> Result<(), StoreError> {
        for segment in segments(&files.history)? {
            if segment.last <= self.last || segment.first > self.last + 1 {
                continue;
            }
            let path = &segment.path;
            let bytes = std::fs::read(path).map_err(|e| io_error("read", path, &e))?;
            let mut before = 0;
            let mut format = FORMAT;
            for (line, at) in Lines(&bytes).zip(1..) {
                if !line.sound {
                    return Err(damaged(path, at, "the checksum does not match".to_owned()));
                }
                if at == 1 {
                    format = version(line.text).unwrap_or(FORMAT);
                } else {
                    self.take_record(line.text, &mut before, &RecordPosition { path, line: at, format })?;
                }
            }
        }
        Ok(())
    }
}

/// The position of a record.
struct RecordPosition<'a> {
    path: &'a Path,
    line: u64,
    format: u32,
}

impl RecordPosition<'_> {
    fn not_parsed(&self, error: &serde_json::Error) -> StoreError {
        if self.format > FORMAT {
            return newer(self.path, self.format);
        }
        let problem = format!("the checksum matches, but the record cannot be parsed: {error}");
        damaged(self.path, self.line, problem)
    }
}

fn parse_snapshot(files: &PoolFiles, path: &Path, bytes: &[u8]) -> Result<Snapshot, StoreError> {
    let sound = bytes.strip_suffix(b"\n").filter(|text| is_sound(text));
    if let Some(found) = sound.and_then(version).filter(|found| *found < FORMAT) {
        return Err(outdated(path, found));
    }
    let problem = match sound.map(serde_json::from_slice::<Snapshot>) {
        Some(Ok(snapshot)) => {
            check_pool(files, path, &snapshot.pool)?;
            return Ok(snapshot);
        }
        Some(Err(e)) => format!("the checksum matches, but the state cannot be parsed: {e}"),
        None => "the checksum does not match".to_owned(),
    };
    // A newer version may seal its files in another way; only its format number has to be readable. In a line with this
    // version's seal, a number that the checksum does not cover is damage like any other.
    let trusted = sound.is_some() || !is_sealed(bytes);
    match version(bytes).filter(|found| trusted && *found > FORMAT) {
        Some(found) => Err(newer(path, found)),
        None => Err(damaged(path, 1, problem)),
    }
}

fn check_pool(files: &PoolFiles, path: &Path, found: &PoolName) -> Result<(), StoreError> {
    if *found == files.pool {
        return Ok(());
    }
    Err(damaged(path, 1, format!("it belongs to pool `{found}`, not to `{}`", files.pool)))
}

fn open_journal(path: &Path) -> Result<Option<Journal>, StoreError> {
    let Some(file) = open(path)? else { return Ok(None) };
    let identity = identify(&file, path)?;
    Ok(Some(Journal { file, identity, header: None, valid: 0, lines: 0, last: 0 }))
}

/// Opens for reading; `None` if there is no such file.
fn open(path: &Path) -> Result<Option<File>, StoreError> {
    match OpenOptions::new().read(true).custom_flags(NOFOLLOW).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io_error("open", path, &e)),
    }
}
