//! The directory of an instance's links, with a lock and a socket for each slot.
//!
//! The process that holds the lock is the slot's only link. The lock's file holds the record of the running stage: how to stop the
//! stage, and when that was last known to be true. So the next link can stop what a dead link left running.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use std::{fmt, io};

use greenroom_core::time::{BootId, Stamp};
use greenroom_ports::clock::Clock;
use greenroom_ports::dialect::StopHandle;
use greenroom_system::socket_dir::{SocketDir, send_wake_up};
use greenroom_system::threads::flock;

/// Room for one job on an instance.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    dir: PathBuf,
    number: u32,
}

impl Slot {
    pub(super) fn new(dir: PathBuf, number: u32) -> Self {
        Self { dir, number }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    fn socket(&self) -> String {
        format!("{}.sock", self.number)
    }

    /// The socket's name until calls may find it.
    fn fresh_socket(&self) -> String {
        format!("{}.new", self.socket())
    }

    fn lock_path(&self) -> PathBuf {
        self.dir.join(format!("{}.lock", self.number))
    }

    /// True if there is a socket, whose link may be dead. Does not contact the link.
    pub(super) fn has_socket(&self) -> bool {
        self.dir.join(self.socket()).exists()
    }

    /// Connects to the link of this slot; `None` if there is none.
    pub(super) async fn connect(&self) -> io::Result<Option<tokio::net::UnixStream>> {
        let Some(dir) = open_dir(&self.dir)? else { return Ok(None) };
        match tokio::net::UnixStream::connect(dir.path(&self.socket())).await {
            Ok(stream) => Ok(Some(stream)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Becomes the link of this slot; `None` if another process is the link.
    pub(super) fn seize(&self, clock: Rc<dyn Clock>) -> io::Result<Option<SlotLock>> {
        let locked = self.try_lock()?;
        Ok(locked.map(|lock| SlotLock { slot: self.clone(), lock, clock }))
    }

    fn try_lock(&self) -> io::Result<Option<File>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.lock_path())?;
        match file.try_lock() {
            // RACE: the file may have been removed between opening and locking it.
            Ok(()) => Ok(self.is_named(&file).then_some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// True if the lock's path names this file.
    fn is_named(&self, lock: &File) -> bool {
        flock::is_file_at(&self.lock_path(), lock).unwrap_or(false)
    }

    /// Removes the files of a dead link. A running link removes its own files when it exits. False if a link holds the
    /// lock, such as one that was killed and has not quite ended.
    pub(super) fn clear(&self) -> bool {
        if let Ok(Some(lock)) = self.try_lock() {
            self.remove_files(&lock, false);
        }
        !self.lock_path().exists()
    }

    /// Removes the files of a link that holds this lock, and the directory with the last lock.
    fn remove_files(&self, lock: &File, keep_record: bool) {
        // The next link finds files that cannot be removed, or they go with the state directory.
        if let Ok(Some(dir)) = open_dir(&self.dir)
            && self.is_named(lock)
        {
            let _gone = dir.remove(&self.socket());
            let _gone = dir.remove(&self.fresh_socket());
            if !keep_record {
                let _gone = std::fs::remove_file(self.lock_path());
                let _others = std::fs::remove_dir(&self.dir);
            }
        }
    }
}

/// The slots of an instance that have, or had, a link.
pub(super) fn slots(dir: &Path) -> Vec<Slot> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let number = |name: std::ffi::OsString| name.to_str()?.strip_suffix(".lock")?.parse().ok();
    let mut numbers: Vec<u32> = names.filter_map(number).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| Slot::new(dir.to_owned(), number)).collect()
}

/// The lock of a slot, held until dropped; its holder is the slot's link.
pub(super) struct SlotLock {
    slot: Slot,
    lock: File,
    clock: Rc<dyn Clock>,
}

impl SlotLock {
    /// Accepts calls from now on, in place of a dead link.
    pub(super) fn listen(&self) -> io::Result<tokio::net::UnixListener> {
        let dir = open_dir(&self.slot.dir)?.ok_or(io::ErrorKind::NotFound)?;
        let name = self.slot.socket();
        let fresh = self.slot.fresh_socket();
        dir.remove(&fresh)?;
        let listener = UnixListener::bind(dir.path(&fresh))?;
        // RACE: a call finds the dead link's socket or this one.
        dir.rename(&fresh, &name)?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }

    /// Stops accepting calls. Also removes the lock's file, unless a stage may still be running.
    pub(super) fn release(&self) {
        self.slot.remove_files(&self.lock, self.left_running().is_some());
    }

    /// True if the lock's path still names the locked file.
    pub(super) fn is_there(&self) -> bool {
        self.slot.is_named(&self.lock)
    }

    /// Records the handle of the running stage, or that there is none.
    pub(super) fn record(&self, handle: Option<&StopHandle>) -> io::Result<()> {
        let record = handle.map(|handle| StageRecord::new(handle.clone(), self.clock.now()));
        self.lock.write_all_at(StageRecord::line(record.as_ref()).as_bytes(), 0)
    }

    /// Keeps the record of a running stage from going stale.
    pub(super) fn renew_record(&self) {
        if let Some(handle) = self.left_running() {
            // On failure, the record only goes stale.
            let _aged = self.record(Some(&handle));
        }
    }

    /// The handle that stops the stage of the previous, dead link, if it may still be running there.
    pub(super) fn left_running(&self) -> Option<StopHandle> {
        let mut line = [0; StageRecord::LENGTH];
        let length = self.lock.read_at(&mut line, 0).ok()?;
        let record = StageRecord::parse(std::str::from_utf8(&line[..length]).ok()?)?;
        record.is_recent(self.clock.now()).then_some(record.handle)
    }
}

/// Wakes the keeper at `mailbox`.
pub(super) fn wake_keeper(mailbox: &Path) {
    if let (Some(dir), Some(name)) = (mailbox.parent(), mailbox.file_name().and_then(OsStr::to_str)) {
        let _lost = send_wake_up(dir, name);
    }
}

/// The directory of an instance's links; `None` if there is none.
fn open_dir(dir: &Path) -> io::Result<Option<SocketDir>> {
    match SocketDir::open(dir) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Age from which a dead link's record is ignored: the session has ended with its job, and its number may have been
/// reused.
const STALE_AFTER: Duration = Duration::from_mins(10);

/// Written as one line of [`LENGTH`](StageRecord::LENGTH) bytes: the handle, the boot, and the milliseconds since that boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StageRecord {
    handle: StopHandle,
    boot: BootId,
    uptime_ms: u64,
}

impl StageRecord {
    /// Length of each record, and of the line of none: the next one covers it.
    const LENGTH: usize = StopHandle::LONGEST + 1 + 20 + 1 + 20 + 1;

    pub(super) fn new(handle: StopHandle, now: Stamp) -> Self {
        Self { handle, boot: now.boot, uptime_ms: now.uptime_ms }
    }

    /// `None` if the line has no record.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let handle = StopHandle::parse(words.next()?.as_bytes())?;
        let boot = BootId(words.next()?.parse().ok()?);
        Some(Self { handle, boot, uptime_ms: words.next()?.parse().ok()? })
    }

    /// True if its stage may still be running. A reboot of the runner host ends all stages.
    fn is_recent(&self, now: Stamp) -> bool {
        let age = Duration::from_millis(now.uptime_ms.saturating_sub(self.uptime_ms));
        self.boot == now.boot && age < STALE_AFTER
    }

    /// The bytes of a record, or of none.
    pub(super) fn line(record: Option<&Self>) -> String {
        let words = record.map(ToString::to_string).unwrap_or_default();
        format!("{words:<width$}\n", width = Self::LENGTH - 1)
    }
}

impl fmt::Display for StageRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.handle, self.boot.0, self.uptime_ms)
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::time::ManagerId;

    use super::*;

    const MIN_MS: u64 = 60_000;

    fn at(boot: u64, uptime_ms: u64, wall_ms: i64) -> Stamp {
        Stamp { wall_ms, manager: ManagerId(0), boot: BootId(boot), uptime_ms }
    }

    fn record(now: Stamp) -> StageRecord {
        StageRecord::new(StopHandle::parse(b"4711").unwrap(), now)
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_each_line_covers_the_one_before() {
        let longest = StageRecord::new(StopHandle::parse(b"4294967295").unwrap(), at(u64::MAX, u64::MAX, 0));
        for record in [record(at(1, 2, 3)), longest] {
            let line = StageRecord::line(Some(&record));
            assert_eq!(line.len(), StageRecord::LENGTH);
            assert_eq!(StageRecord::parse(&line), Some(record));
        }
        assert_eq!(StageRecord::line(None).len(), StageRecord::LENGTH);
        for line in [StageRecord::line(None).as_str(), "", "4711", "4711 1", "4711 1 x", "1 1 1"] {
            assert_eq!(StageRecord::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_record_goes_stale_by_the_boot_clock_or_with_a_reboot() {
        let recorded = record(at(1, MIN_MS, 0));
        for (now, recent) in [
            (at(1, MIN_MS, 0), true),
            (at(1, 10 * MIN_MS, i64::MAX), true),
            (at(1, 10 * MIN_MS, i64::MIN), true),
            (at(1, 11 * MIN_MS, 0), false),
            (at(1, 11 * MIN_MS, i64::MIN), false),
            (at(2, MIN_MS, 0), false),
            (at(2, 0, 0), false),
        ] {
            assert_eq!(recorded.is_recent(now), recent, "{now:?}");
        }
    }
}
