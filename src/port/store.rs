//! Stores the recorded state of one pool.

use async_trait::async_trait;

use crate::core::event::Event;
use crate::core::format::{OUTDATED_REMEDY, newer, outdated};
use crate::core::pool::PoolState;

/// Decides under the store's lock. Pure: it may be called again with another state.
pub type Decide<'a> = &'a mut dyn FnMut(&PoolState) -> Vec<Event>;

/// The result of a transaction.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The state after the events.
    pub state: PoolState,
    pub events: Vec<Event>,
}

/// Why the state cannot be used.
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
    /// An error of the file system.
    #[error("{what}")]
    Io { what: String },
}

#[async_trait(?Send)]
pub trait Store {
    /// The state as it stands, without a lock.
    async fn load(&self) -> Result<PoolState, StoreError>;

    /// Locks, reads, decides, appends all events or none, unlocks. Without events, nothing is written.
    async fn transact(&self, decide: Decide<'_>) -> Result<Committed, StoreError>;

    /// Returns when everything committed so far would survive a power failure. Used only before a launch, and before the
    /// first job of a project uses a static host.
    async fn sync(&self) -> Result<(), StoreError>;

    /// Compacts the journal into the snapshot if that is worthwhile. For the keeper only.
    async fn compact(&self) -> Result<(), StoreError>;
}
