//! The keeper of the pools: the owner, its generations, the keeper's lock.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::ids::{Generation, OwnerId};

use super::host_error::HostError;
use super::lock::Lock;

/// The identity of a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub owner: OwnerId,
    /// The problem of a directory that was copied or moved: nothing is launched, granted or terminated.
    pub moved: Option<String>,
    /// Every generation ever begun here.
    pub generations: BTreeSet<Generation>,
}

/// The election of the keeper: at most one process is the keeper. It stays so until it exits, however it exits.
#[async_trait(?Send)]
pub trait Leadership: fmt::Debug {
    /// The owner of the directory, and whether it was copied or moved.
    async fn identity(&self) -> Result<Identity, HostError>;

    /// Records a new generation before its first launch, and syncs it to disk.
    async fn begin_generation(&self) -> Result<Generation, HostError>;

    /// Makes this process the keeper; waits at most `within` for the previous one to exit.
    async fn lock_keeper(&self, within: Duration) -> Result<Option<Lock>, HostError>;

    /// True if a keeper is running. Takes a shared lock, so that a starting keeper never fails because of it.
    async fn keeper_lives(&self) -> Result<bool, HostError>;

    /// Starts a keeper in the background, unless another process is doing so. Returns when the keeper has detached.
    async fn start_keeper(&self) -> Result<(), HostError>;
}
