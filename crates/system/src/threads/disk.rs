//! Disk operations that may take long ([`BlockingPool`]): removing trees, syncing files.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::{Semaphore, oneshot};

/// Operations of one pool that run concurrently. The others wait, so that a stuck disk does not collect threads.
const WIDTH: usize = 4;

/// A bounded number of threads for blocking operations. There is a pool for each part whose stuck operations must not delay the other parts.
#[derive(Debug, Clone)]
pub struct BlockingPool {
    free: Arc<Semaphore>,
    busy: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Default for BlockingPool {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(WIDTH)), busy: Arc::default() }
    }
}

/// A path with an operation under way.
struct Claim {
    path: PathBuf,
    busy: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

impl BlockingPool {
    /// Runs `work` on a thread. If the caller gives up, the thread continues; until it has ended, another operation on
    /// the same path fails (`ResourceBusy`).
    pub async fn run<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let claim = self.claim(path)?;
        let permit = Arc::clone(&self.free).acquire_owned().await.map_err(io::Error::other)?;
        let (report, result) = oneshot::channel();
        thread::Builder::new().name("disk".to_owned()).spawn(move || {
            let done = work();
            drop((claim, permit));
            report.send(done).ok();
        })?;
        result.await.unwrap_or_else(|_| Err(io::Error::other("the disk operation's thread died")))
    }

    fn claim(&self, path: &Path) -> io::Result<Claim> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy.insert(path.to_owned()) {
            let problem = format!("an earlier operation on `{}` has not ended", path.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, problem));
        }
        Ok(Claim { path: path.to_owned(), busy: Arc::clone(&self.busy) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Operations that hang until the sender is dropped.
    fn stuck() -> (Sender<()>, impl FnOnce() -> io::Result<()> + Send + 'static) {
        let (release, hang) = channel::<()>();
        (release, move || {
            hang.recv().ok();
            Ok(())
        })
    }

    #[tokio::test]
    async fn an_operation_that_was_given_up_is_not_begun_a_second_time() {
        let pool = BlockingPool::default();
        let (release, hang) = stuck();
        let given_up = tokio::time::timeout(Duration::from_millis(20), pool.run(Path::new("/a"), hang)).await;
        assert!(given_up.is_err(), "the caller goes on");
        let again = pool.run(Path::new("/a"), || Ok(())).await.unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::ResourceBusy);
        assert!(again.to_string().contains("`/a` has not ended"), "{again}");
        assert_eq!(pool.run(Path::new("/b"), || Ok(7)).await.unwrap(), 7, "another path");
        drop(release);
        while pool.run(Path::new("/a"), || Ok(())).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn stuck_operations_take_no_more_than_a_lanes_threads_and_no_other_lane() {
        let pool = BlockingPool::default();
        let other = BlockingPool::default();
        let mut releases = Vec::new();
        for number in 0..WIDTH {
            let (release, hang) = stuck();
            releases.push(release);
            let path = PathBuf::from(format!("/{number}"));
            assert!(tokio::time::timeout(Duration::from_millis(5), pool.run(&path, hang)).await.is_err());
        }
        let begun = Arc::new(Mutex::new(0));
        for number in 0..50 {
            let path = PathBuf::from(format!("/next/{number}"));
            let begun = Arc::clone(&begun);
            let work = move || {
                *begun.lock().unwrap() += 1;
                Ok(())
            };
            assert!(tokio::time::timeout(Duration::from_millis(1), pool.run(&path, work)).await.is_err());
        }
        assert_eq!(*begun.lock().unwrap(), 0, "they wait, without a thread");
        other.run(Path::new("/0"), || Ok(())).await.unwrap();
        drop(releases);
        pool.run(Path::new("/next/0"), || Ok(())).await.unwrap();
    }

    #[tokio::test]
    async fn a_thread_that_panics_leaves_its_path_free() {
        let pool = BlockingPool::default();
        let broken = || -> io::Result<()> { panic!("as planned") };
        assert!(pool.run(Path::new("/a"), broken).await.is_err());
        pool.run(Path::new("/a"), || Ok(())).await.unwrap();
    }
}
