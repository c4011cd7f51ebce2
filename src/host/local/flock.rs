//! Kernel locks: tried once, or waited for with a limit.

use std::fs::{File, TryLockError};
use std::io;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Shared,
    Exclusive,
}

/// Takes the lock if it is free now.
pub(super) fn try_lock(file: &File, kind: Kind) -> io::Result<bool> {
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

/// Waits at most `within` for the lock; `None` if it stayed taken.
///
/// Does not poll: a thread blocks in the kernel's queue and hands the file over. After `within` the receiver is gone,
/// so a file that the thread still locks is dropped, and thereby unlocked, immediately.
pub(super) async fn lock(file: File, kind: Kind, within: Duration) -> io::Result<Option<File>> {
    if try_lock(&file, kind)? {
        return Ok(Some(file));
    }
    if within.is_zero() {
        return Ok(None);
    }
    let (hand_over, arrives) = oneshot::channel();
    // A separate thread, because the runtime's blocking pool would keep the process from exiting.
    thread::Builder::new().name("flock".to_owned()).stack_size(64 << 10).spawn(move || {
        let locked = block(&file, kind).map(|()| file);
        hand_over.send(locked).ok();
    })?;
    match timeout(within, arrives).await {
        Ok(Ok(locked)) => locked.map(Some),
        Ok(Err(_)) => Err(io::Error::other("the waiting thread died")),
        Err(_) => Ok(None),
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

    fn twice() -> (tempfile::TempDir, File, File) {
        let home = tempfile::tempdir().unwrap();
        let open = || super::super::files::open_lock(&home.path().join("lock")).unwrap();
        let (one, two) = (open(), open());
        (home, one, two)
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
        let (taken, ()) = tokio::join!(lock(two, Kind::Shared, Duration::from_secs(20)), release);
        assert!(taken.unwrap().is_some());
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn what_comes_after_the_bound_is_given_back() {
        let (home, one, two) = twice();
        assert!(try_lock(&one, Kind::Exclusive).unwrap());
        assert!(lock(two, Kind::Exclusive, Duration::from_millis(20)).await.unwrap().is_none());
        drop(one);
        let third = super::super::files::open_lock(&home.path().join("lock")).unwrap();
        assert!(lock(third, Kind::Exclusive, Duration::from_secs(20)).await.unwrap().is_some());
    }
}
