//! A held lease, and the times written into it.
//!
//! A lock instead of a heartbeat, because the kernel releases it as soon as its last holder dies, even by kill -9.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;

use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_ports::clock::Clock;
use greenroom_ports::host_error::HostError;
use greenroom_ports::lock::Held;
use greenroom_system::threads::flock::{self, Kind};

use super::clock::{SystemClock, Times};
use super::files::{self, cannot};

pub(super) const LEASE: &str = "lease";

/// The lock on one attempt's `lease` file.
#[derive(Debug)]
pub(super) struct Lease {
    file: File,
    kind: Kind,
    clock: SystemClock,
}

/// The guard that a caller of the port holds.
#[derive(Debug)]
pub(super) struct LeaseGuard {
    pub _lease: Rc<Lease>,
}

impl Held for LeaseGuard {}

impl Lease {
    /// Takes over a locked file. A shared lease gets the current time.
    pub(super) fn begin(file: File, kind: Kind, clock: SystemClock) -> Self {
        let lease = Self { file, kind, clock };
        lease.touch();
        lease
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.kind == Kind::Exclusive
    }

    /// Writes the time. One write of fixed length in place: a reader sees the old time or the new one.
    pub(super) fn touch(&self) {
        if self.kind == Kind::Shared {
            let (wall, manager, boot, up) = self.clock.now().into();
            let line = format!("{wall:>20} {manager:08x} {boot:016x} {up:>20}\n");
            // On a full disk, the previous time stays; the lock itself needs no space.
            self.file.write_all_at(line.as_bytes(), 0).ok();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.touch();
    }
}

/// The time in a lease; the file's own time if none could be written.
fn read_time(file: &File) -> io::Result<Stamp> {
    let mut line = [0_u8; 68];
    let written = file.read_exact_at(&mut line, 0).ok().and_then(|()| parse(&line));
    written.map_or_else(|| file.metadata().map(|known| modified(&known)), Ok)
}

fn parse(line: &[u8]) -> Option<Stamp> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let wall_ms = fields.next()?.parse().ok()?;
    let manager = ManagerId(u32::from_str_radix(fields.next()?, 16).ok()?);
    let boot = BootId(u64::from_str_radix(fields.next()?, 16).ok()?);
    Some(Stamp { wall_ms, manager, boot, uptime_ms: fields.next()?.parse().ok()? })
}

/// The modification time of a file, by the wall clock alone.
pub(super) fn modified(known: &std::fs::Metadata) -> Stamp {
    let wall_ms = known.mtime().saturating_mul(1000).saturating_add(known.mtime_nsec() / 1_000_000);
    Stamp { wall_ms, manager: ManagerId::default(), boot: BootId(0), uptime_ms: 0 }
}

/// Locks `dir/lease` shared and makes sure that it is still the file of that name. `None` if there is none.
pub(super) async fn lock_shared(dir: &Path, times: &Times) -> Result<Option<File>, HostError> {
    let path = dir.join(LEASE);
    let failed = |e: io::Error| cannot("lock", &path, e);
    loop {
        let opened = File::options().read(true).write(true).open(&path);
        let Some(file) = files::missing_is_none(opened).map_err(failed)? else { return Ok(None) };
        // RACE: the keeper holds it exclusively over the end of an attempt, and briefly at each check.
        let locked = flock::lock(file, Kind::Shared, times.lease_lock_timeout).await.map_err(failed)?;
        let Some(file) = locked else {
            let timed_out =
                std::io::Error::new(io::ErrorKind::TimedOut, "another process holds it exclusively");
            return Err(failed(timed_out));
        };
        if flock::is_file_at(&path, &file).map_err(failed)? {
            return Ok(Some(file));
        }
    }
}

/// Tries to lock `dir/lease` exclusively. `None` if a call holds it, or there is none.
pub(super) fn try_exclusive(dir: &Path) -> io::Result<Option<File>> {
    let path = dir.join(LEASE);
    let opened = File::options().read(true).write(true).open(&path);
    let Some(file) = files::missing_is_none(opened)? else { return Ok(None) };
    let locked = flock::try_lock(&file, Kind::Exclusive)? && flock::is_file_at(&path, &file)?;
    Ok(locked.then_some(file))
}

/// The status of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseStatus {
    pub held: bool,
    pub at: Stamp,
}

/// Checks whether a call holds the lease. `None` if there is no lease file.
///
/// RACE: the kernel cannot be queried for this kind of lock, so the check takes it exclusively and releases it
/// immediately. A call that comes at this moment does not fail: it waits ([`lock_shared`]). Two concurrent checks may
/// both report "held", which is in the job's favour. `/proc/locks` would not interfere, but it hides the locks of other
/// process namespaces and names wrong files on overlay and btrfs: a held lease could appear free.
pub(super) fn status(dir: &Path) -> io::Result<Option<LeaseStatus>> {
    let Some(file) = files::missing_is_none(File::open(dir.join(LEASE)))? else { return Ok(None) };
    let held = !flock::try_lock(&file, Kind::Exclusive)?;
    Ok(Some(LeaseStatus { held, at: read_time(&file)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (tempfile::TempDir, SystemClock) {
        let home = tempfile::tempdir().unwrap();
        files::create_new(&home.path().join(LEASE)).unwrap();
        (home, SystemClock::new(ManagerId(1)).unwrap())
    }

    #[tokio::test]
    async fn a_lease_is_held_until_dropped_and_carries_its_times() {
        let (home, clock) = made();
        let before = clock.now();
        let file = lock_shared(home.path(), &Times::default()).await.unwrap().unwrap();
        let lease = Lease::begin(file, Kind::Shared, clock);
        let seen = status(home.path()).unwrap().unwrap();
        assert!(seen.held && seen.at.uptime_ms >= before.uptime_ms && seen.at.boot == before.boot);
        assert!(try_exclusive(home.path()).unwrap().is_none());
        drop(lease);
        // A process that another test starts has the file, too, until it executes its program.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let freed = loop {
            let freed = status(home.path()).unwrap().unwrap();
            if !freed.held {
                break freed;
            }
            assert!(std::time::Instant::now() < until, "the lease is free");
            std::thread::yield_now();
        };
        assert!(freed.at.uptime_ms >= seen.at.uptime_ms);
    }

    #[tokio::test]
    async fn a_thousand_looks_turn_no_call_away() {
        let (home, clock) = made();
        let dir = home.path().to_owned();
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stop = std::sync::Arc::clone(&done);
        let checker = std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                status(&dir).unwrap();
            }
        });
        for _ in 0..1000 {
            let file = lock_shared(home.path(), &Times::default()).await.unwrap().unwrap();
            drop(Lease::begin(file, Kind::Shared, clock));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        checker.join().unwrap();
    }

    #[test]
    fn a_lease_that_could_not_be_written_has_its_files_time() {
        let (home, clock) = made();
        let at = status(home.path()).unwrap().unwrap().at;
        assert_eq!(at.boot, BootId(0));
        assert!((clock.now().wall_ms - at.wall_ms).abs() < 60_000);
    }
}
