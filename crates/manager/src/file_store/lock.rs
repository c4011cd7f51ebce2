//! The pool's lock, waited for without polling.
//!
//! Invariants: the file is never deleted; the lock is never held across a disk sync or an `await`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use greenroom_core::ids::PoolName;
use greenroom_core::time::Pretty;
use greenroom_ports::store::StoreError;
use greenroom_system::threads::flock::{self, Kind};

use super::files::{NOFOLLOW, io_error};

/// The lock, held until dropped.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing also unlocks, unless a child that was forked meanwhile still shares the descriptor.
        let _closing_unlocks_too = self.0.unlock();
    }
}

/// Takes the lock, waiting at most `bound`.
pub(super) async fn take(path: &Path, pool: &PoolName, bound: Duration) -> Result<Lock, StoreError> {
    let begun = Instant::now();
    loop {
        let left = bound.saturating_sub(begun.elapsed());
        let locked = flock::lock(open(path)?, Kind::Exclusive, left).await;
        let Some(file) = locked.map_err(|e| io_error("lock", path, &e))? else {
            return Err(busy(path, pool, begun.elapsed()));
        };
        let lock = Lock(file);
        // RACE: the file may have been deleted or replaced during the wait; that lock protects nothing.
        if names(path, &lock.0) {
            return Ok(lock);
        }
        if begun.elapsed() >= bound {
            return Err(busy(path, pool, begun.elapsed()));
        }
    }
}

/// Opens the lock file, and creates it if it is missing. On a read-only file system, an existing one is opened for
/// reading.
fn open(path: &Path) -> Result<File, StoreError> {
    let writable =
        OpenOptions::new().read(true).write(true).create(true).mode(0o600).custom_flags(NOFOLLOW).open(path);
    match writable {
        Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            OpenOptions::new().read(true).custom_flags(NOFOLLOW).open(path).map_err(|_| e)
        }
        other => other,
    }
    .map_err(|e| io_error("open", path, &e))
}

fn names(path: &Path, file: &File) -> bool {
    match (std::fs::symlink_metadata(path), file.metadata()) {
        (Ok(there), Ok(locked)) => (there.dev(), there.ino()) == (locked.dev(), locked.ino()),
        _ => false,
    }
}

fn busy(path: &Path, pool: &PoolName, waited: Duration) -> StoreError {
    let holder = std::fs::metadata(path)
        .ok()
        .zip(std::fs::read_to_string("/proc/locks").ok())
        .and_then(|(meta, locks)| holder_pid(&locks, meta.dev(), meta.ino()))
        .map_or_else(|| "an unknown process".to_owned(), describe);
    StoreError::Busy { pool: pool.to_string(), waited: Pretty(waited).to_string(), holder }
}

fn describe(pid: u32) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(command) => format!("process {pid}, `{}`", command.trim_end().escape_debug()),
        Err(_) => format!("process {pid}"),
    }
}

/// Finds the holder of the flock in the text of `/proc/locks`. Some file systems show another device number there than
/// `stat` does, so the inode alone decides when no line has both.
fn holder_pid(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let mut by_inode = None;
    for line in locks.lines() {
        // `12: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF`; waiting ones have `->` before the kind.
        let mut fields = line.split_whitespace().skip(1);
        if fields.next() != Some("FLOCK") {
            continue;
        }
        let (Some(pid), Some(place)) = (fields.nth(2).and_then(|w| w.parse().ok()), fields.next()) else {
            continue;
        };
        let Some((on, number)) = place.rsplit_once(':') else { continue };
        if pid == 0 || number.parse() != Ok(inode) {
            continue; // 0: it is in another pid namespace
        }
        if on == device {
            return Some(pid);
        }
        by_inode = Some(pid);
    }
    by_inode
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: POSIX  ADVISORY  WRITE 11 fe:00:131 0 EOF
2: FLOCK  ADVISORY  WRITE 22 fe:00:131 0 EOF
2: -> FLOCK  ADVISORY  WRITE 33 fe:00:131 0 EOF
3: FLOCK  ADVISORY  WRITE 0 fe:00:140 0 EOF
4: FLOCK  ADVISORY  WRITE 44 00:1b:150 0 EOF
";

    #[test]
    fn the_holder_is_the_one_that_does_not_wait() {
        let device = rustix::fs::makedev(0xfe, 0);
        assert_eq!(holder_pid(LOCKS, device, 131), Some(22));
        assert_eq!(holder_pid(LOCKS, device, 140), None);
        assert_eq!(holder_pid(LOCKS, device, 999), None);
    }

    #[test]
    fn a_device_number_that_only_stat_knows_still_finds_the_holder() {
        assert_eq!(holder_pid(LOCKS, rustix::fs::makedev(0, 0x2a), 150), Some(44));
    }
}
