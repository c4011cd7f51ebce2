//! The keeper: its lock, the count of its starts, and the watch for its replacement.
//!
//! One keeper per state directory holds `keeper.lock`. The file `keeper-starts` counts how often keepers started, and how often one
//! had not exited by itself. The count is for metrics and notices: a file that cannot be read or written counts from the beginning.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock as _;
use greenroom_ports::host_error::HostError;
use greenroom_ports::lock::{Held, Lock};
use greenroom_ports::wakeups::WakeReason;
use greenroom_system::threads::flock::{self, Kind};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::files::{self, cannot};
use super::host::{LocalHost, Role};

const KEEPER_LOCK: &str = "keeper.lock";

/// `keeper_lives` holds the lock shared for microseconds, which is not a keeper.
const CHECK_LASTS: Duration = Duration::from_millis(20);

/// The held lock.
#[derive(Debug)]
struct KeeperGuard {
    _file: File,
    /// The state directory; `None`: this process is no keeper, but a manual pass.
    root: Option<PathBuf>,
}

impl Held for KeeperGuard {}

impl Drop for KeeperGuard {
    fn drop(&mut self) {
        if let Some(root) = &self.root
            && !std::thread::panicking()
        {
            note_exit(root);
        }
    }
}

impl LocalHost {
    pub(super) async fn become_keeper(&self, within: Duration) -> Result<Option<Lock>, HostError> {
        let path = self.state.root().join(KEEPER_LOCK);
        let failed = |e: io::Error| cannot("lock", &path, e);
        let opened = files::open_lock(&path).map_err(failed)?;
        let locked = flock::lock(opened, Kind::Exclusive, within.max(CHECK_LASTS)).await.map_err(failed)?;
        let Some(file) = locked else { return Ok(None) };
        if !flock::is_file_at(&path, &file).map_err(failed)? {
            // The directory was recreated during the wait.
            return Ok(None);
        }
        let watch = ReplacementWatch::open(path.clone(), &file).map_err(failed)?;
        *self.replacement_watch.borrow_mut() = Some(Rc::new(watch));
        self.bind_keeper_inboxes();
        self.let_others_spawn().map_err(failed)?;
        let root = (self.role == Role::Keeper).then(|| self.state.root().to_owned());
        if let Some(root) = &root {
            note_start(root, self.clock.now());
        }
        Ok(Some(Box::new(KeeperGuard { _file: file, root })))
    }

    /// Binds the pools' mailboxes, before the state is read for the first time. A new pool is bound at its first wait.
    fn bind_keeper_inboxes(&self) {
        self.boxes.forget_keepers();
        let Ok(pools) = fs::read_dir(self.state.pools()) else { return };
        for entry in pools.flatten() {
            let name = entry.file_name();
            let Some(Ok(pool)) = name.to_str().map(PoolName::parse) else { continue };
            if let Err(error) = self.boxes.bind_keeper(&pool, &entry.path()) {
                tracing::warn!("{}", cannot("bind a socket in", &entry.path(), error));
            }
        }
    }

    pub(super) fn keeper_runs(&self) -> Result<bool, HostError> {
        let path = self.state.root().join(KEEPER_LOCK);
        let failed = |e: io::Error| cannot("stat", &path, e);
        let opened = files::missing_is_none(File::open(&path)).map_err(failed)?;
        let Some(file) = opened else { return Ok(false) };
        flock::try_lock(&file, Kind::Shared).map(|free| !free).map_err(failed)
    }
}

const STARTS: &str = "keeper-starts";
/// Number of crashes that are remembered with their time.
const RECENT_CRASHES: usize = 16;

/// The counts in the file `keeper-starts`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperStarts {
    pub starts: u64,
    /// Starts whose predecessor had not exited by itself: it was killed, or it crashed. A reboot does not count.
    pub crashes: u64,
    /// The times at which the last crashes were found, oldest first.
    #[serde(default)]
    pub recent: Vec<Stamp>,
    /// The keeper that runs, unless it was killed.
    #[serde(default)]
    running: Option<RunningKeeper>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct RunningKeeper {
    pid: u32,
    since: Stamp,
}

impl KeeperStarts {
    /// Reads the file of a state directory.
    pub fn read(root: &Path) -> Self {
        let text = files::read(&root.join(STARTS)).ok().flatten().unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn count_start(&mut self, pid: u32, now: Stamp) {
        match self.running {
            // It re-executed, or took its lock again.
            Some(earlier) if earlier.pid == pid && earlier.since.boot == now.boot => return,
            Some(killed) if killed.since.boot == now.boot => {
                self.crashes = self.crashes.saturating_add(1);
                self.recent.push(now);
                let surplus = self.recent.len().saturating_sub(RECENT_CRASHES);
                self.recent.drain(..surplus);
            }
            Some(_) | None => {}
        }
        self.starts = self.starts.saturating_add(1);
        self.running = Some(RunningKeeper { pid, since: now });
    }
}

/// Notes that this process is the keeper now. It holds the keeper's lock.
fn note_start(root: &Path, now: Stamp) {
    let mut starts = KeeperStarts::read(root);
    starts.count_start(std::process::id(), now);
    write_starts(root, &starts);
}

/// Notes that the keeper exits by itself. It still holds the lock.
fn note_exit(root: &Path) {
    let starts = KeeperStarts { running: None, ..KeeperStarts::read(root) };
    write_starts(root, &starts);
}

fn write_starts(root: &Path, starts: &KeeperStarts) {
    if let Ok(text) = serde_json::to_vec(starts)
        && let Err(error) = files::replace_alone(root, STARTS, &text)
    {
        tracing::warn!("cannot write `{}`: {error}", root.join(STARTS).display());
    }
}

/// Files that a keeper compares every few seconds.
#[derive(Debug)]
pub(super) struct ReplacementWatch {
    lock: PathBuf,
    lock_inode: (u64, u64),
    /// The program's file at the time this keeper began.
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

#[cfg(test)]
mod tests {
    use greenroom_core::notation::NOW;
    use greenroom_core::time::BootId;

    use super::*;

    #[test]
    fn only_a_keeper_that_did_not_exit_by_itself_counts_as_crashed() {
        let mut starts = KeeperStarts::default();
        starts.count_start(1, NOW);
        starts.count_start(1, NOW);
        assert_eq!((starts.starts, starts.crashes), (1, 0), "the same process");
        starts.running = None;
        starts.count_start(2, NOW);
        assert_eq!((starts.starts, starts.crashes), (2, 0), "after an exit");
        starts.count_start(3, NOW);
        assert_eq!((starts.starts, starts.crashes, starts.recent.len()), (3, 1, 1), "after a kill");
        starts.count_start(4, Stamp { boot: BootId(99), ..NOW });
        assert_eq!((starts.starts, starts.crashes), (4, 1), "after a reboot");
    }

    #[test]
    fn the_file_holds_it_and_rubbish_counts_from_the_beginning() {
        let home = tempfile::tempdir().unwrap();
        note_start(home.path(), NOW);
        note_exit(home.path());
        note_start(home.path(), NOW);
        assert_eq!(KeeperStarts::read(home.path()).starts, 2);
        std::fs::write(home.path().join(STARTS), "{").unwrap();
        assert_eq!(KeeperStarts::read(home.path()), KeeperStarts::default());
        note_start(home.path(), NOW);
        assert_eq!(KeeperStarts::read(home.path()).starts, 1);
    }
}
