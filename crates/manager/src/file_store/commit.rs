//! Appends one transaction, whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use greenroom_core::event::Event;
use greenroom_ports::store::StoreError;

use super::crash_point;
use super::files::{FileIdentity, NOFOLLOW, PoolFiles, identify, io_error, list};
use super::format::{self, FORMAT, Header, JournalRecord};
use super::view::{Journal, View};

/// Truncated tails that are kept; older ones are deleted.
const CUTS_KEPT: usize = 8;

/// Appends the events to the journal and applies them to the view, which is current: the lock is held.
///
/// Accepts only a transaction that can be read back, so that a later reader understands everything that is written.
pub(super) fn commit(files: &PoolFiles, view: &mut View, events: &[Event]) -> Result<(), StoreError> {
    let n = view.last + 1;
    let unwritable = |e: &dyn std::fmt::Display| StoreError::Io {
        what: format!("cannot read back the encoded transaction: {e}"),
    };
    let record = format::record(n, events).map_err(|e| unwritable(&e))?;
    // The view applies what a reader will read, not what was encoded, so that all processes reach the same state.
    let read_back: JournalRecord = serde_json::from_slice(&record).map_err(|e| unwritable(&e))?;

    let headed = view.journal.as_ref().is_some_and(|j| j.header.is_some());
    let header = Header { format: FORMAT, pool: files.pool.clone(), first: n };
    let head = if headed { Vec::new() } else { format::seal(&header).map_err(|e| unwritable(&e))? };
    let (file, identity) = open(files, view)?;
    if let Some(torn) = view.journal.as_mut().filter(|j| j.torn() > 0) {
        cut_tail(files, torn, &file)?;
    }

    crash_point("store.append.before");
    let end = view.journal.as_ref().map_or(0, |j| j.valid);
    let bytes = [head.as_slice(), record.as_slice()].concat();
    append(&mut &file, end, &bytes).map_err(|e| io_error("record a transaction in", &files.journal, &e))?;
    crash_point("store.append.after");

    let mut journal = match view.journal.take().filter(|_| headed) {
        Some(known) => known,
        None => Journal::begun(file, identity, header, head.len() as u64),
    };
    journal.appended(n, record.len() as u64);
    view.journal = Some(journal);
    for event in &read_back.events {
        view.inapplicable_events += u64::from(view.state.apply(event).is_err());
    }
    view.last = n;
    Ok(())
}

/// Opens the journal that was read, or creates it if there was none.
fn open(files: &PoolFiles, view: &View) -> Result<(File, FileIdentity), StoreError> {
    let path = &files.journal;
    let mut how = OpenOptions::new();
    how.read(true).append(true).mode(0o600).custom_flags(NOFOLLOW);
    let file = match &view.journal {
        Some(_) => how.open(path),
        None => how.create_new(true).open(path),
    };
    let file = file.map_err(|e| io_error("open", path, &e))?;
    crash_point("store.journal.opened");
    let identity = identify(&file, path)?;
    let expected = view.journal.as_ref().map_or(0, |j| j.identity.size);
    if identity.size != expected {
        // Another program wrote without the lock: an editor, or a copy restored while Greenroom runs.
        return Err(StoreError::Io { what: format!("another program changed `{}`", path.display()) });
    }
    Ok((file, identity))
}

/// The target of a transaction, to which [`append`] writes.
trait JournalSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    fn cut_back(&mut self, length: u64) -> io::Result<()>;
}

impl JournalSink for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn cut_back(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// Appends all bytes in one write, or restores the file's length. Only if that fails too is there a torn tail, which
/// the next writer truncates.
fn append(sink: &mut impl JournalSink, end: u64, bytes: &[u8]) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        // A second round happens only after a short write, and names its reason.
        let failure = match sink.write(&bytes[written..]) {
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(more) => {
                written += more;
                continue;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => e,
        };
        let _torn_tails_are_cut_later = sink.cut_back(end);
        return Err(failure);
    }
    Ok(())
}

/// Truncates a journal to its last sound line, after saving the tail to a file of its own.
fn cut_tail(files: &PoolFiles, journal: &mut Journal, file: &File) -> Result<(), StoreError> {
    let length = usize::try_from(journal.torn()).unwrap_or(usize::MAX);
    let mut tail = vec![0; length];
    let read = journal.file.read_exact_at(&mut tail, journal.valid);
    read.map_err(|e| io_error("read", &files.journal, &e))?;
    save_aside(files, "journal.cut", &tail)?;
    // CRASH: the tail is in both files; the next writer saves it once more.
    crash_point("store.cut.saved");
    file.set_len(journal.valid).map_err(|e| io_error("truncate", &files.journal, &e))?;
    journal.identity.size = journal.valid;
    crash_point("store.cut.done");
    let cuts: Vec<String> = list(&files.dir)?.into_iter().filter(|n| n.starts_with("journal.cut-")).collect();
    for old in &cuts[..cuts.len().saturating_sub(CUTS_KEPT)] {
        // Best effort: the next truncation tries again.
        drop(std::fs::remove_file(files.dir.join(old)));
    }
    Ok(())
}

/// Writes bytes to a new file `NAME-MILLISECONDS` beside the journal. Names sort by age, even if the clock is set back.
pub(super) fn save_aside(files: &PoolFiles, name: &str, bytes: &[u8]) -> Result<PathBuf, StoreError> {
    let earlier = list(&files.dir)?;
    let stamp = |name_there: &String| name_there.strip_prefix(name)?.strip_prefix('-')?.parse::<u128>().ok();
    let after = earlier.iter().filter_map(stamp).max().map_or(0, |last| last.saturating_add(1));
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let path = files.dir.join(format!("{name}-{:014}", since.as_millis().max(after)));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = made.map_err(|e| io_error("make", &path, &e))?;
    fill(&file, &path, bytes)?;
    Ok(path)
}

fn fill(mut file: &File, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    file.write_all(bytes).map_err(|e| {
        // An incomplete copy is useless, and the disk may be full.
        drop(std::fs::remove_file(path));
        io_error("write", path, &e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that takes `room` bytes, at most `gulp` in one write.
    struct Disk {
        held: Vec<u8>,
        room: usize,
        gulp: usize,
    }

    impl JournalSink for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let takes = bytes.len().min(self.room - self.held.len()).min(self.gulp);
            if takes == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.held.extend_from_slice(&bytes[..takes]);
            Ok(takes)
        }

        fn cut_back(&mut self, length: u64) -> io::Result<()> {
            self.held.truncate(usize::try_from(length).unwrap());
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_fills_up_at_any_byte_leaves_the_file_as_it_was() {
        let before = b"before\n".as_slice();
        let record = b"{\"a\":\"record\"}\n".as_slice();
        for room in 0..record.len() {
            for gulp in [1, 3, usize::MAX] {
                let mut disk = Disk { held: before.to_vec(), room: before.len() + room, gulp };
                let error = append(&mut disk, before.len() as u64, record).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                assert_eq!(disk.held, before, "room for {room} bytes, {gulp} at once");
            }
        }
    }

    #[test]
    fn short_writes_of_any_size_are_finished() {
        let record = b"{\"a\":\"record\"}\n";
        for gulp in 1..=record.len() {
            let mut disk = Disk { held: Vec::new(), room: usize::MAX, gulp };
            append(&mut disk, 0, record).unwrap();
            assert_eq!(disk.held, record);
        }
    }
}
