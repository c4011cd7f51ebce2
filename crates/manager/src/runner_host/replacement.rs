//! Notices that the state directory or the program was replaced.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_ports::wakeups::WakeReason;
use tokio::time::Instant;

/// Files that a keeper compares every few seconds.
#[derive(Debug)]
pub(super) struct ReplacementWatch {
    lock: PathBuf,
    lock_inode: (u64, u64),
    /// This program's file at the time the keeper began.
    program: Option<(PathBuf, (u64, u64))>,
    next_check: Cell<Instant>,
}

impl ReplacementWatch {
    pub(super) fn open(lock: PathBuf, file: &File) -> io::Result<Self> {
        let known = file.metadata()?;
        let program = std::env::current_exe().ok().and_then(|path| inode(&path).map(|found| (path, found)));
        let lock_inode = (known.dev(), known.ino());
        Ok(Self { lock, lock_inode, program, next_check: Cell::new(Instant::now()) })
    }

    /// Returns whether the state directory is gone or replaced, or the program was replaced.
    pub(super) fn notice(&self) -> Option<WakeReason> {
        if inode(&self.lock) != Some(self.lock_inode) {
            return Some(WakeReason::Evicted);
        }
        // A program that was removed and not replaced has no successor to hand over to.
        let other = |(path, then): &(PathBuf, (u64, u64))| inode(path).is_some_and(|now| now != *then);
        self.program.as_ref().is_some_and(other).then_some(WakeReason::Replaced)
    }

    /// Resolves when something was replaced. Checks every `interval`, also across waits that end sooner.
    pub(super) async fn noticed(&self, interval: Duration) -> WakeReason {
        loop {
            tokio::time::sleep_until(self.next_check.get()).await;
            if let Some(notice) = self.notice() {
                return notice;
            }
            self.next_check.set(Instant::now() + interval);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|known| (known.dev(), known.ino()))
}
