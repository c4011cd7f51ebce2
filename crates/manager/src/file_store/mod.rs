//! The recorded state in files: a snapshot and a journal per pool.
//!
//! `state/README.md` describes them field by field. A driver call is a short process: it reads, decides, appends once
//! and exits. The keeper stays, and reads only what was appended since its last read.
//!
//! Needs a tokio runtime with its timer; the clock of that runtime must not be paused, because the locks are real.

mod commit;
mod compact;
mod files;
mod format;
mod history;
mod lock;
mod repair;
mod view;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::event::Event;
use greenroom_core::history::Period;
use greenroom_core::ids::PoolName;
use greenroom_core::pool::PoolState;
use greenroom_ports::store::{
    Committed, Decide, Diagnosis, History, JobHistory, OperatorStore, Repaired, Store, StoreError, Stores,
};

use self::compact::{CommitResult, Contents};
pub use self::files::{DirWarning, StateDir, open_dir};
use self::files::{FileIdentity, PoolFiles};
pub use self::format::FORMAT;
use self::history::HistoryReader;
use self::view::View;

/// Settings of a [`FileStore`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Limit of a wait for the pool's lock. Default 10 s.
    pub lock_timeout: Duration,
    /// Retention of folded journals, in days. Default 30.
    pub history_days: u32,
    /// The journal is folded from this size on, in bytes. Default 64 KiB.
    pub compact_at: u64,
    /// The journal is folded only if it has at least this part of the snapshot's size, because the snapshot is
    /// rewritten. Default 2: half of it; 0: whatever the snapshot's size.
    pub compact_part: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lock_timeout: Duration::from_secs(10),
            history_days: 30,
            compact_at: 64 * 1024,
            compact_part: 2,
        }
    }
}

/// Number of tries of a compaction, if records are added while the snapshot is written.
const COMPACT_ROUNDS: u32 = 3;

/// The state of one pool in its directory. Created by [`StateDir::pool`].
#[derive(Debug)]
pub struct FileStore {
    files: PoolFiles,
    options: Options,
    /// The last view, from which the next read continues. Never held across an `await`.
    seen: RefCell<Option<View>>,
    /// True once this process has found any recorded state.
    begun: Cell<bool>,
    /// The journal whose name is known to be durable.
    named: Cell<Option<FileIdentity>>,
}

impl FileStore {
    fn new(dir: PathBuf, pool: PoolName, options: Options) -> Self {
        let files = PoolFiles::new(dir, pool);
        let seen = RefCell::new(None);
        Self { files, options, seen, begun: Cell::new(false), named: Cell::new(None) }
    }

    async fn lock(&self) -> Result<lock::PoolLock, StoreError> {
        lock::take(&self.files.lock, &self.files.pool, self.options.lock_timeout).await
    }

    /// Continues from the last [`View`], or reads from the beginning.
    fn read(&self) -> Result<View, StoreError> {
        let seen = self.seen.borrow_mut().take();
        self.read_from(seen)
    }

    fn read_from(&self, earlier: Option<View>) -> Result<View, StoreError> {
        let view = View::read(&self.files, earlier)?;
        let nothing = view.journal.is_none() && view.snapshot.is_none();
        if nothing && self.begun.get() {
            // An empty state would be trusted: instances would appear to have no record.
            return Err(files::damaged(&self.files.journal, 1, "the file has disappeared".to_owned()));
        }
        self.begun.set(!nothing);
        Ok(view)
    }

    /// Reads under the lock, and decides. [`append`](Self::append) then writes the events.
    fn decide(&self, decide: Decide<'_>) -> Result<(View, Vec<Event>), StoreError> {
        let view = self.read()?;
        if let Some((file, found)) = &view.newer {
            return Err(files::newer(file, *found));
        }
        let events = decide(&view.state);
        Ok((view, events))
    }

    fn append(&self, view: &mut View, events: &[Event]) -> Result<(), StoreError> {
        if events.is_empty() { Ok(()) } else { commit::commit(&self.files, view, events) }
    }

    /// The current state. An error without the lock may come from a change in progress, so the files are read again
    /// with it.
    async fn current(&self) -> Result<View, StoreError> {
        let error = match self.read() {
            Err(error @ (StoreError::Damaged { .. } | StoreError::Full { .. } | StoreError::Io { .. })) => {
                error
            }
            other => return other,
        };
        match self.lock().await {
            Ok(_lock) => self.read_from(None),
            Err(busy @ StoreError::Busy { .. }) => Err(busy),
            Err(_) => Err(error),
        }
    }

    fn remember(&self, view: View) {
        *self.seen.borrow_mut() = Some(view);
    }

    fn worth_compacting(&self, view: &View) -> bool {
        let Some(journal) = &view.journal else { return false };
        let snapshot = view.snapshot.map_or(0, |s| s.size);
        let has_records = journal.header.as_ref().is_some_and(|h| h.first <= view.last);
        has_records
            && journal.valid >= self.options.compact_at
            && journal.valid >= snapshot.checked_div(self.options.compact_part).unwrap_or(0)
    }

    /// Tries once: writes the files, and installs them if the pool's files have not changed otherwise.
    async fn compact_once(&self, view: &View) -> Result<CommitResult, StoreError> {
        let Some(journal) = &view.journal else { return Ok(CommitResult::Superseded) };
        let journal =
            journal.file.try_clone().map_err(|e| files::io_error("open", &self.files.journal, &e))?;
        let contents = Contents::of(&self.files, view, view.last)?;
        let files = self.files.clone();
        let drafted = blocking(move || {
            // The journal is made durable before it becomes a segment, so that nothing after it survives a power cut
            // without it.
            journal.sync_data().map_err(|e| files::io_error("sync", &files.journal, &e))?;
            compact::draft(&files, &contents)
        });
        let Some(draft) = drafted.await? else { return Ok(CommitResult::Superseded) };
        let lock = self.lock().await?;
        let outcome = compact::install(&self.files, view, &draft)?;
        drop(lock);
        Ok(outcome)
    }
}

#[async_trait(?Send)]
impl Store for FileStore {
    async fn load(&self) -> Result<PoolState, StoreError> {
        let view = self.current().await?;
        let state = view.state.clone();
        self.remember(view);
        Ok(state)
    }

    async fn transact(&self, decide: Decide<'_>) -> Result<Committed, StoreError> {
        // Most of the reading happens before the lock is taken. If it fails, the read under the lock fails too.
        if let Ok(early) = self.read() {
            self.remember(early);
        }
        let lock = self.lock().await?;
        crash_point("store.locked");
        let (mut view, mut events) = self.decide(&mut *decide)?;
        match self.append(&mut view, &events) {
            Err(StoreError::Full { .. }) if files::give_up_reserve(&self.files) => {
                tracing::warn!(pool = %self.files.pool, "the disk is full: the pool's reserve is used up");
                (view, events) = self.decide(decide)?;
                self.append(&mut view, &events)?;
            }
            appended => appended?,
        }
        drop(lock);
        let state = view.state.clone();
        self.remember(view);
        Ok(Committed { state, events })
    }

    async fn sync(&self) -> Result<(), StoreError> {
        let Some(there) = FileIdentity::at(&self.files.journal)? else { return Ok(()) };
        let names_too = !self.named.get().is_some_and(|named| named.same_file(there));
        let files = self.files.clone();
        blocking(move || {
            let path = &files.journal;
            let journal = std::fs::File::open(path).map_err(|e| files::io_error("open", path, &e))?;
            journal.sync_data().map_err(|e| files::io_error("sync", path, &e))?;
            if names_too { compact::sync_names(&files) } else { Ok(()) }
        })
        .await?;
        self.named.set(Some(there));
        Ok(())
    }

    async fn reserve(&self) -> Result<(), StoreError> {
        if files::is_reserve_kept(&self.files) {
            return Ok(());
        }
        let files = self.files.clone();
        blocking(move || files::make_reserve(&files)).await
    }

    async fn compact(&self) -> Result<(), StoreError> {
        for round in 0..COMPACT_ROUNDS {
            let view = self.current().await?;
            if let Some((file, found)) = &view.newer {
                return Err(files::newer(file, *found));
            }
            if round == 0 && !self.worth_compacting(&view) {
                self.remember(view);
                return Ok(());
            }
            let outcome = self.compact_once(&view).await?;
            if outcome == CommitResult::Superseded {
                return Ok(());
            }
            let files = self.files.clone();
            let days = self.options.history_days;
            blocking(move || {
                compact::sync_names(&files)?;
                compact::prune(&files, days, view.snapshot_last)?;
                if let Err(problem) = history::index_newest(&files) {
                    tracing::debug!(pool = %files.pool, "cannot index the history: {problem}");
                }
                Ok(())
            })
            .await?;
            if outcome == CommitResult::Rotated {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl OperatorStore for FileStore {
    async fn history(&self) -> Result<History, StoreError> {
        Ok(Box::new(HistoryReader::open(&self.files)?))
    }

    async fn jobs(&self, period: Period) -> Result<JobHistory, StoreError> {
        let files = self.files.clone();
        let (collector, mut unreadable) = blocking(move || history::collect_jobs(&files, period)).await?;
        let state = match self.load().await {
            Ok(state) => state,
            Err(error) => {
                unreadable.push(error);
                PoolState::default()
            }
        };
        Ok(JobHistory { begins: collector.begins(), jobs: collector.finish(&state), unreadable })
    }

    async fn verify(&self) -> Result<Diagnosis, StoreError> {
        match self.current().await {
            Ok(view) => repair::verify(&self.files, Ok(&view)),
            Err(error) => repair::verify(&self.files, Err(error)),
        }
    }

    fn has_reserve(&self) -> Option<bool> {
        // The first launch makes it, before anything is recorded of an instance.
        self.files.lock.exists().then(|| files::is_reserve_kept(&self.files))
    }

    async fn repair(&self) -> Result<Option<Repaired>, StoreError> {
        let damage = match self.current().await {
            Ok(_) => return Ok(None),
            Err(damage @ StoreError::Damaged { .. }) => damage,
            Err(other) => return Err(other),
        };
        let files = self.files.clone();
        let Some(prepared) = blocking(move || repair::prepare(&files)).await? else {
            let what =
                format!("another process is compacting or repairing the state of pool `{}`", self.files.pool);
            return Err(StoreError::Io { what });
        };
        let lock = self.lock().await?;
        let repaired = repair::finish(&self.files, prepared, damage)?;
        drop(lock);
        let files = self.files.clone();
        blocking(move || compact::sync_names(&files)).await?;
        Ok(Some(repaired))
    }
}

/// The stores of a state directory, a [`FileStore`] for each pool.
#[derive(Debug)]
pub struct FileStores {
    dir: StateDir,
    options: Options,
}

impl FileStores {
    /// Opens the state directory, which is created if it is missing.
    pub fn open(path: &Path, options: Options) -> Result<Self, StoreError> {
        Ok(Self { dir: open_dir(path)?, options })
    }
}

#[async_trait(?Send)]
impl Stores for FileStores {
    async fn pools(&self) -> Result<Vec<PoolName>, StoreError> {
        self.dir.pools()
    }

    fn store(&self, pool: &PoolName) -> Result<Rc<dyn OperatorStore>, StoreError> {
        Ok(Rc::new(self.dir.pool(pool, self.options.clone())?))
    }
}

/// Runs disk operations on a separate thread, so that other pools continue.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => Err(StoreError::Io { what: format!("the disk operation did not finish: {e}") }),
    }
}

/// Kills this process (SIGKILL, so nothing is unwound or flushed) if `GREENROOM_CRASH` is `NAME` or `NAME:COUNT` and
/// this is the `COUNT`th time (from 1) that the place is passed.
#[cfg(feature = "crash-points")]
pub(super) fn crash_point(name: &str) {
    use std::sync::atomic::{AtomicU32, Ordering};

    static PASSED: AtomicU32 = AtomicU32::new(0);
    let Ok(order) = std::env::var("GREENROOM_CRASH") else { return };
    let (place, count) = order.split_once(':').unwrap_or((&order, "1"));
    if place != name {
        return;
    }
    if count.parse() == Ok(PASSED.fetch_add(1, Ordering::Relaxed) + 1) {
        let dead = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        unreachable!("SIGKILL cannot be survived: {dead:?}");
    }
}

/// Does nothing without the feature.
#[cfg(not(feature = "crash-points"))]
pub(super) fn crash_point(_name: &str) {}
