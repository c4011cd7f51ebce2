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
pub(super) struct PoolLock(File);

impl Drop for PoolLock {
    fn drop(&mut self) {
        // Closing also unlocks, unless a child that was forked meanwhile still shares the descriptor.
        let _closing_unlocks_too = self.0.unlock();
    }
}

/// Takes the lock, waiting at most `bound`.
pub(super) async fn take(path: &Path, pool: &PoolName, bound: Duration) -> Result<PoolLock, StoreError> {
    let begun = Instant::now();
    loop {
        let left = bound.saturating_sub(begun.elapsed());
        let locked = flock::lock(open(path)?, Kind::Exclusive, left).await;
        let Some(file) = locked.map_err(|e| io_error("lock", path, &e))? else {
            return Err(busy(path, pool, begun.elapsed()));
        };
        let lock = PoolLock(file);
        // RACE: the file may have been deleted or replaced during the wait; that lock protects nothing.
        if flock::is_file_at(path, &lock.0).unwrap_or(false) {
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
    let of_inode = || flock::listed(locks).filter(|lock| lock.inode == inode && lock.pid != 0);
    let exact = of_inode().find(|lock| lock.device == device);
    exact.or_else(|| of_inode().last()).map(|lock| lock.pid)
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
