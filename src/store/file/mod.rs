//! The recorded state in files: a snapshot and a journal per pool.
//!
//! What is in them is described, field by field, in `state/README.md`. A driver call is a short process: it reads,
//! decides, appends once and goes. The keeper stays, and reads only what was appended since its last look.
//!
//! Needs a tokio runtime with its timer; the clock of that runtime must run (not paused), since locks are real.

mod commit;
mod compact;
mod crash;
mod dir;
mod format;
mod history;
mod lock;
mod repair;
mod view;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

pub use dir::{DirWarning, StateDir, open_dir};
pub use format::FORMAT;
pub use history::{History, Recorded};
pub use repair::{Diagnosis, Repaired};

use crate::core::ids::PoolName;
use crate::core::pool::PoolState;
use crate::port::store::{Committed, Decide, Store, StoreError};
use compact::{CommitResult, Contents};
use view::{Files, Identity, View};

/// What may be tuned.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long a call waits for the pool's lock. Default 10 s.
    pub lock_timeout: Duration,
    /// How long folded journals are kept, in days. Default 30.
    pub history_days: u32,
    /// The journal is folded from this size on, in bytes. Default 64 KiB.
    pub compact_at: u64,
    /// But not before it is this part of the snapshot's size, which has to be written anew. Default 2: half of it; 0:
    /// whatever the snapshot's size.
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

/// How often a compaction is tried again when records came in while the snapshot was written.
const COMPACT_ROUNDS: u32 = 3;

/// The state of one pool in its directory. Made by `StateDir::pool`.
#[derive(Debug)]
pub struct FileStore {
    files: Files,
    options: Options,
    /// What was read last; the next look begins there. Never held across an `await`.
    seen: RefCell<Option<View>>,
    /// Has anything ever been recorded, as far as this process knows?
    begun: Cell<bool>,
    /// The journal whose name is known to be durable.
    named: Cell<Option<Identity>>,
}

impl FileStore {
    fn new(dir: PathBuf, pool: PoolName, options: Options) -> Self {
        let (files, seen) = (Files::new(dir, pool), RefCell::new(None));
        Self { files, options, seen, begun: Cell::new(false), named: Cell::new(None) }
    }

    /// All events that are still kept, oldest first: kept segments, then the journal.
    pub fn history(&self) -> Result<History, StoreError> {
        History::open(&self.files)
    }

    /// Looks for damage, in the state and in the history. Changes nothing.
    pub async fn verify(&self) -> Result<Diagnosis, StoreError> {
        match self.look().await {
            Ok(view) => repair::verify(&self.files, Ok(&view)),
            Err(error) => repair::verify(&self.files, Err(error)),
        }
    }

    /// Mends damaged files: keeps the valid prefix, saves what it replaces aside. `None`: nothing was damaged.
    pub async fn repair(&self) -> Result<Option<Repaired>, StoreError> {
        let damage = match self.look().await {
            Ok(_) => return Ok(None),
            Err(damage @ StoreError::Damaged { .. }) => damage,
            Err(other) => return Err(other),
        };
        let files = self.files.clone();
        let Some(mending) = blocking(move || repair::prepare(&files)).await? else {
            let what =
                format!("another process is compacting or repairing the state of pool `{}`", self.files.pool);
            return Err(StoreError::Io { what });
        };
        let lock = self.lock().await?;
        let repaired = repair::finish(&self.files, mending, damage)?;
        drop(lock);
        let files = self.files.clone();
        blocking(move || compact::sync_names(&files)).await?;
        Ok(Some(repaired))
    }

    async fn lock(&self) -> Result<lock::Lock, StoreError> {
        lock::take(&self.files.lock, &self.files.pool, self.options.lock_timeout).await
    }

    /// Reads on from the last look, or anew.
    fn read(&self) -> Result<View, StoreError> {
        let seen = self.seen.borrow_mut().take();
        self.read_from(seen)
    }

    fn read_from(&self, earlier: Option<View>) -> Result<View, StoreError> {
        let view = View::read(&self.files, earlier)?;
        let nothing = view.journal.is_none() && view.snapshot.is_none();
        if nothing && self.begun.get() {
            // An empty state would be believed: instances would seem to be nobody's.
            return Err(view::damaged(&self.files.journal, 1, "the file has disappeared".to_owned()));
        }
        self.begun.set(!nothing);
        Ok(view)
    }

    /// The state as it stands. What looks wrong without the lock may only be in motion: it is looked at again with it.
    async fn look(&self) -> Result<View, StoreError> {
        let error = match self.read() {
            Err(error @ (StoreError::Damaged { .. } | StoreError::Io { .. })) => error,
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

    /// One try: writes the files, puts them in force if they still follow from what is there.
    async fn compact_once(&self, view: &View) -> Result<CommitResult, StoreError> {
        let Some(journal) = &view.journal else { return Ok(CommitResult::Superseded) };
        let journal = journal.file.try_clone().map_err(|e| dir::io_error("open", &self.files.journal, &e))?;
        let contents = Contents::of(&self.files, view, view.last)?;
        let files = self.files.clone();
        let drafted = blocking(move || {
            // What will be put aside is durable first: nothing after it survives a power cut that it does not.
            journal.sync_data().map_err(|e| dir::io_error("sync", &files.journal, &e))?;
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
        let view = self.look().await?;
        let state = view.state.clone();
        self.remember(view);
        Ok(state)
    }

    async fn transact(&self, decide: Decide<'_>) -> Result<Committed, StoreError> {
        // Most of the reading is done before the lock is taken. If it fails, it will fail again where it counts.
        if let Ok(early) = self.read() {
            self.remember(early);
        }
        let lock = self.lock().await?;
        crash::crash_point("store.locked");
        let mut view = self.read()?;
        if let Some((file, found)) = &view.newer {
            return Err(view::newer(file, *found));
        }
        let events = decide(&view.state);
        if !events.is_empty() {
            commit::commit(&self.files, &mut view, &events)?;
        }
        drop(lock);
        let state = view.state.clone();
        self.remember(view);
        Ok(Committed { state, events })
    }

    async fn sync(&self) -> Result<(), StoreError> {
        let Some(there) = Identity::at(&self.files.journal)? else { return Ok(()) };
        let names_too = !self.named.get().is_some_and(|named| named.same_file(there));
        let files = self.files.clone();
        blocking(move || {
            let path = &files.journal;
            let journal = std::fs::File::open(path).map_err(|e| dir::io_error("open", path, &e))?;
            journal.sync_data().map_err(|e| dir::io_error("sync", path, &e))?;
            if names_too { compact::sync_names(&files) } else { Ok(()) }
        })
        .await?;
        self.named.set(Some(there));
        Ok(())
    }

    async fn compact(&self) -> Result<(), StoreError> {
        for round in 0..COMPACT_ROUNDS {
            let view = self.look().await?;
            if let Some((file, found)) = &view.newer {
                return Err(view::newer(file, *found));
            }
            if round == 0 && !self.worth_compacting(&view) {
                self.remember(view);
                return Ok(());
            }
            let outcome = self.compact_once(&view).await?;
            if outcome == CommitResult::Superseded {
                return Ok(());
            }
            let (files, days) = (self.files.clone(), self.options.history_days);
            blocking(move || {
                compact::sync_names(&files)?;
                compact::prune(&files, days, view.snapshot_last)
            })
            .await?;
            if outcome == CommitResult::Rotated {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Runs what waits for a disk on a thread of its own, so that other pools go on.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => Err(StoreError::Io { what: format!("the disk operation did not finish: {e}") }),
    }
}
