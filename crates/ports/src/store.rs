//! Stores the recorded state of pools.

use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;

use async_trait::async_trait;
use greenroom_core::event::Event;
use greenroom_core::format::{OUTDATED_REMEDY, newer, outdated};
use greenroom_core::history::{JobRecord, Period};
use greenroom_core::ids::PoolName;
use greenroom_core::pool::PoolState;
use greenroom_core::time::Stamp;

/// A decision under the store's lock, made by [`Store::transact`]. Pure: it may be called again with another state.
pub type Decide<'a> = &'a mut dyn FnMut(&PoolState) -> Vec<Event>;

/// The result of [`Store::transact`].
#[derive(Debug, Clone)]
pub struct Committed {
    /// The state after the events.
    pub state: PoolState,
    pub events: Vec<Event>,
}

/// The reason why the state cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process held the lock for longer than `lock_timeout`.
    #[error("the state of pool `{pool}` stayed locked for {waited} (held by {holder})")]
    Busy { pool: String, waited: String, holder: String },
    /// A record in the middle cannot be read: Greenroom launches, grants and terminates nothing until it is repaired.
    #[error("{file}:{line}: the journal is damaged: {problem}")]
    Damaged { file: String, line: u64, problem: String },
    /// Written by a newer version: readable, never writable.
    #[error("{}", newer(file, *found))]
    Newer { file: String, found: u32 },
    /// Written before the first release: neither readable nor writable.
    #[error("{}: {OUTDATED_REMEDY}", outdated(file, *found))]
    Outdated { file: String, found: u32 },
    /// The file system has no space left.
    #[error("{what}")]
    Full { what: String },
    /// Another error of the file system.
    #[error("{what}")]
    Io { what: String },
}

/// A recorded event.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedEvent {
    /// The transaction it belongs to.
    pub n: u64,
    pub event: Event,
}

/// Events, oldest first, each once, read on demand. An unreadable record is one error; the events after it still follow.
pub type History = Box<dyn Iterator<Item = Result<RecordedEvent, StoreError>>>;

/// The jobs of a [`Period`].
#[derive(Debug, Clone)]
pub struct JobHistory {
    /// The jobs in the order of their requests.
    pub jobs: Vec<JobRecord>,
    /// Time of the first event that is kept.
    pub begins: Option<Stamp>,
    /// Records that cannot be read. The others still count.
    pub unreadable: Vec<StoreError>,
}

/// The condition of a pool's records, for `doctor`: the result of [`OperatorStore::verify`].
#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    /// The reason why the state cannot be used; `None` if it can.
    pub damage: Option<StoreError>,
    /// Number of the last readable transaction.
    pub last: u64,
    /// Events since the pool's beginning that did not fit the state. Each indicates a bug; none is lost.
    pub inapplicable_events: u64,
    /// Bytes of an incomplete write; the next writer truncates them and saves a copy.
    pub torn_bytes: u64,
    /// Damage in the [`History`], which only `explain` reads.
    pub history_damage: Vec<StoreError>,
    /// Truncated tails and replaced damaged files.
    pub side_files: Vec<PathBuf>,
}

/// The result of [`OperatorStore::repair`].
#[derive(Debug, Clone)]
pub struct Repaired {
    /// The repaired damage.
    pub damage: StoreError,
    /// Number of the last transaction in the repaired state; 0 if the state is empty.
    pub kept: u64,
    /// Sound transactions after the damage, which the state lacks.
    pub lost: u64,
    /// The files in which the damaged originals are kept.
    pub side_files: Vec<PathBuf>,
}

/// The recorded state of one pool, shared by all processes of its manager.
///
/// # What an implementation promises
///
/// * **Order.** Transactions have one order across all processes. [`transact`](Self::transact) decides on the state after all
///   earlier ones, and appends all of its events or none. A [`Decide`] may run more than once; only its last answer counts.
/// * **Durability.** A transaction that has returned survives the death of every process. It survives a power cut once
///   [`sync`](Self::sync) has returned, or always if the state has [`survives_reboot`](PoolState::survives_reboot).
/// * **Errors.** After a [`StoreError`], nothing of the transaction is recorded. A damaged record is [`StoreError::Damaged`] for
///   every reader of the state, which never gets an older or a partial one, until [`repair`](OperatorStore::repair)
///   has replaced it. A state that has existed and is missing is damage, too: with an empty one, every instance would look
///   unrecorded.
/// * **Repetition.** A caller that got no answer loads the state, or decides again: the decision then sees the
///   events of the first transaction, if that was recorded.
/// * **Concurrency.** Any number of processes call at the same time, also while [`compact`](Self::compact) runs. A lock that a
///   dead process held is free.
/// * **Deadlines.** No call waits for a lock longer than its `lock_timeout`: then it is [`StoreError::Busy`].
///
/// # What a caller may rely on
///
/// A caller holds no lock between calls: what it has loaded may be old, so it decides inside of [`transact`](Self::transact) only.
/// It may drop the future of any call; a dropped transaction is recorded as a whole or not at all.
#[async_trait(?Send)]
pub trait Store: fmt::Debug {
    /// The state as it stands, without a lock. A store that loses nothing in a reboot sets
    /// [`survives_reboot`](PoolState::survives_reboot) in it, here and for [`transact`](Self::transact); otherwise nothing
    /// that was recorded before the last reboot is handed out.
    async fn load(&self) -> Result<PoolState, StoreError>;

    /// Locks, reads, decides, appends all events or none, unlocks. Without events, nothing is written.
    async fn transact(&self, decide: Decide<'_>) -> Result<Committed, StoreError>;

    /// Returns when everything committed so far would survive a power failure. Used only before a launch, and before the
    /// first job of a project uses a static host.
    async fn sync(&self) -> Result<(), StoreError>;

    /// Reserves the disk space that keeps terminations recordable on a full disk. Called before launches: without the
    /// reserve, nothing is launched.
    async fn reserve(&self) -> Result<(), StoreError>;

    /// Compacts the journal into the snapshot if that is worthwhile. For the keeper only.
    async fn compact(&self) -> Result<(), StoreError>;
}

/// A [`Store`] with the methods that operators' commands need, and the engine does not.
#[async_trait(?Send)]
pub trait OperatorStore: Store {
    /// All events that are still kept. Readable although the state may be damaged.
    async fn history(&self) -> Result<History, StoreError>;

    /// The jobs of a period, as far as the kept events tell: months of them in less than a second. It may write what makes the
    /// next call faster, but nothing that counts.
    async fn jobs(&self, period: Period) -> Result<JobHistory, StoreError>;

    /// Checks the state and the history for damage. Changes nothing.
    async fn verify(&self) -> Result<Diagnosis, StoreError>;

    /// True if the space of [`reserve`](Store::reserve) is there; `None`: nothing has needed it, or the store needs none.
    fn has_reserve(&self) -> Option<bool> {
        None
    }

    /// Repairs damage: keeps everything valid before it, saves what it replaces. `None` if nothing was damaged.
    async fn repair(&self) -> Result<Option<Repaired>, StoreError>;
}

/// The stores of all pools in one place.
#[async_trait(?Send)]
pub trait Stores: fmt::Debug {
    /// The pools that have recorded state.
    async fn pools(&self) -> Result<Vec<PoolName>, StoreError>;

    /// The store of a pool; empty if nothing is recorded yet.
    fn store(&self, pool: &PoolName) -> Result<Rc<dyn OperatorStore>, StoreError>;
}
