//! Kernel locks: tried once, or waited for with a limit.
//!
//! A wait does not poll: a thread blocks in the kernel's queue and hands the locked file over. All waits of this process
//! for the same file share one thread, so a holder that never releases the lock (a stopped process) costs one thread and
//! one descriptor, however often its lock is waited for.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Shared,
    Exclusive,
}

/// Device and inode of a lock file, and the kind of lock.
type Key = (u64, u64, Kind);

/// A wait: its own open file, and where the locked file goes. Waits for the same key are interchangeable.
#[derive(Debug)]
struct Waiter {
    file: File,
    hand_over: oneshot::Sender<io::Result<File>>,
}

/// The waits of each key that has a thread, except the one whose file the thread blocks on.
static WAITING: Mutex<BTreeMap<Key, VecDeque<Waiter>>> = Mutex::new(BTreeMap::new());

fn waiting() -> MutexGuard<'static, BTreeMap<Key, VecDeque<Waiter>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock if it is free now.
pub fn try_lock(file: &File, kind: Kind) -> io::Result<bool> {
    let tried = match kind {
        Kind::Shared => file.try_lock_shared(),
        Kind::Exclusive => file.try_lock(),
    };
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// True if `path` still names this file. A lock on a file that was removed or replaced meanwhile protects nothing.
pub fn is_file_at(path: &Path, file: &File) -> io::Result<bool> {
    let opened = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A held lock, as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedLock<'a> {
    /// Zero if the holder is in another process namespace.
    pub pid: u32,
    pub kind: Kind,
    /// Some file systems have another device number here than `stat` shows.
    pub device: &'a str,
    pub inode: u64,
}

/// The locks in the text of `/proc/locks`, without the waits for them.
///
/// A line is `1: FLOCK  ADVISORY  WRITE 4711 08:01:393232 0 EOF`; one that waits has `->` after the number.
pub fn listed(text: &str) -> impl Iterator<Item = ListedLock<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        if fields.next()? != "FLOCK" {
            return None;
        }
        let kind = if fields.nth(1)? == "WRITE" { Kind::Exclusive } else { Kind::Shared };
        let pid = fields.next()?.parse().ok()?;
        let (device, inode) = fields.next()?.rsplit_once(':')?;
        Some(ListedLock { pid, kind, device, inode: inode.parse().ok()? })
    })
}

/// Waits at most `within` for the lock; `None` if it stayed taken.
pub async fn lock(file: File, kind: Kind, within: Duration) -> io::Result<Option<File>> {
    if try_lock(&file, kind)? {
        return Ok(Some(file));
    }
    if within.is_zero() {
        return Ok(None);
    }
    let known = file.metadata()?;
    let key = (known.dev(), known.ino(), kind);
    // Dropped last, also with the caller's future.
    let _leaves = Leaves(key);
    let (hand_over, arrives) = oneshot::channel();
    enqueue(key, Waiter { file, hand_over })?;
    match timeout(within, arrives).await {
        Ok(Ok(locked)) => locked.map(Some),
        Ok(Err(_)) => Err(io::Error::other("the waiting thread died")),
        Err(_) => Ok(None),
    }
}

/// Adds a wait to those of its key, and starts the thread of a new key.
fn enqueue(key: Key, waiter: Waiter) -> io::Result<()> {
    let mut waiting = waiting();
    if let Some(queue) = waiting.get_mut(&key) {
        queue.push_back(waiter);
        return Ok(());
    }
    thread::Builder::new().name("flock".to_owned()).stack_size(64 << 10).spawn(move || serve(key, waiter))?;
    waiting.insert(key, VecDeque::new());
    Ok(())
}

/// The end of a wait: closes the files of those that were given up.
struct Leaves(Key);

impl Drop for Leaves {
    fn drop(&mut self) {
        if let Some(queue) = waiting().get_mut(&self.0) {
            queue.retain(|waiter| !waiter.hand_over.is_closed());
        }
    }
}

/// Blocks for one wait after the other. A lock that arrives late goes to the next wait, or is released.
fn serve(key: Key, first: Waiter) {
    let mut next = Some(first);
    while let Some(Waiter { file, hand_over }) = next {
        let mut left = hand_over.send(block(&file, key.2).map(|()| file)).err();
        // Under this lock: a wait that comes now finds the thread's queue, or starts the next thread.
        let mut waiting = waiting();
        let queue = waiting.entry(key).or_default();
        while let Some(locked) = left.take()
            && let Some(waiter) = queue.pop_front()
        {
            left = waiter.hand_over.send(locked).err();
        }
        next = queue.pop_front();
        if next.is_none() {
            waiting.remove(&key);
        }
    }
}

fn block(file: &File, kind: Kind) -> io::Result<()> {
    loop {
        let locked = match kind {
            Kind::Shared => file.lock_shared(),
            Kind::Exclusive => file.lock(),
        };
        match locked {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn open(home: &Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(home.join("lock")).unwrap()
    }

    fn twice() -> (tempfile::TempDir, File, File) {
        let home = tempfile::tempdir().unwrap();
        let one = open(home.path());
        let two = open(home.path());
        (home, one, two)
    }

    /// Counts this process's descriptors of a home's lock file.
    fn descriptors(home: &Path) -> usize {
        let is_lock =
            |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|to| to == home.join("lock"));
        fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_lock).count()
    }

    /// Other tests of this process wait for locks too, a few at a time.
    fn threads() -> usize {
        let is_ours = |entry: &fs::DirEntry| {
            fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.trim_end() == "flock")
        };
        fs::read_dir("/proc/self/task").unwrap().flatten().filter(is_ours).count()
    }

    #[tokio::test]
    async fn a_wait_ends_as_soon_as_the_holder_goes() {
        let (_home, one, two) = twice();
        assert!(try_lock(&one, Kind::Exclusive).unwrap());
        let begun = Instant::now();
        let release = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(one);
        };
        let (taken, ()) = tokio::join!(lock(two, Kind::Shared, LONG), release);
        assert!(taken.unwrap().is_some());
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn what_comes_after_the_bound_is_given_back() {
        let (home, one, two) = twice();
        assert!(try_lock(&one, Kind::Exclusive).unwrap());
        assert!(lock(two, Kind::Exclusive, Duration::from_millis(20)).await.unwrap().is_none());
        drop(one);
        assert!(lock(open(home.path()), Kind::Exclusive, LONG).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_holder_that_stays_collects_no_threads_and_descriptors() {
        let (home, holder, _) = twice();
        assert!(try_lock(&holder, Kind::Exclusive).unwrap());
        for kind in [Kind::Exclusive, Kind::Shared] {
            for _ in 0..50 {
                assert!(lock(open(home.path()), kind, Duration::from_millis(1)).await.unwrap().is_none());
            }
        }
        // The holder's, and one for each thread; the second file of `twice` is closed.
        assert_eq!(descriptors(home.path()), 1 + 2);
        assert!(threads() < 20, "{} threads wait", threads());
        drop(holder);
        assert!(lock(open(home.path()), Kind::Exclusive, LONG).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn concurrent_waits_get_the_lock_one_after_the_other() {
        let (home, holder, _) = twice();
        assert!(try_lock(&holder, Kind::Exclusive).unwrap());
        let alone = std::cell::Cell::new(true);
        let take = async |number: u64| {
            let within = if number == 0 { Duration::from_millis(5) } else { LONG };
            let Some(file) = lock(open(home.path()), Kind::Exclusive, within).await.unwrap() else {
                return 0;
            };
            assert!(alone.replace(false), "two hold it");
            tokio::task::yield_now().await;
            alone.set(true);
            drop(file);
            1
        };
        let release = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            drop(holder);
        };
        let all = futures_util::future::join_all((0..10).map(take));
        let (taken, ()) = tokio::join!(all, release);
        assert_eq!(taken.iter().sum::<i32>(), 9, "the first one gave up");
    }
}
