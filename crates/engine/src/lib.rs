//! The engine: turns plans ([`greenroom_core::plan`]) into effects. It is the only caller of the ports ([`greenroom_ports`]).
//!
//! Intent is committed before the effect, the outcome after it. No lock of the store is ever held across a call to a
//! provider or an instance.

mod accept;
pub mod acquire;
mod boot;
mod clean;
pub mod container;
mod deadline;
mod effect;
pub mod keeper;
pub mod operate;
mod order;
mod pass;
pub mod progress;
pub mod reap;
pub mod recheck;
pub mod release;
pub mod stage;
mod tier;
mod unbegun;
pub mod warm;

use std::rc::Rc;

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_core::pool::PoolState;
use greenroom_core::report::Report;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::connector::Connector;
use greenroom_ports::host::Host;
use greenroom_ports::host_error::HostError;
use greenroom_ports::store::{Committed, Store, StoreError};

/// One pool and its ports: [`Store`], [`Host`], [`Connector`] and [`Clock`]. The provider is in the configuration of each pass.
#[derive(Clone)]
pub struct Engine {
    pub pool: PoolName,
    pub store: Rc<dyn Store>,
    pub host: Host,
    pub connector: Rc<dyn Connector>,
    pub clock: Rc<dyn Clock>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// The failure of a port while state was being read or written. A failed call of a provider or an instance is none: it is
/// an outcome, and recorded.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Host(#[from] HostError),
}

impl Engine {
    pub(crate) fn now(&self) -> Stamp {
        self.clock.now()
    }

    /// Commits the events of `decide` ([`Store::transact`]) and wakes the attempts concerned.
    pub(crate) async fn commit(
        &self,
        mut decide: impl FnMut(&PoolState) -> Vec<Event>,
    ) -> Result<Committed, StoreError> {
        let committed = self.store.transact(&mut decide).await?;
        self.tell(&committed.events).await;
        Ok(committed)
    }

    /// Wakes the calls that wait for one of these [`Event`]s.
    pub(crate) async fn tell(&self, events: &[Event]) {
        for attempt in events.iter().filter_map(|e| concerned(&e.change)) {
            self.host.wakeups.wake_attempt(attempt).await;
        }
    }

    /// The [`Report`] of the last pass, which only explains: without one, a call goes on by the record.
    pub(crate) async fn last_report(&self) -> Option<Report> {
        self.host.reports.read_report(&self.pool).await.unwrap_or_else(|problem| {
            tracing::warn!(pool = %self.pool, "cannot read the report of the last pass: {problem}");
            None
        })
    }

    /// Ends a `prepare` whose attempt `cleanup` or a newer attempt of the job has closed.
    pub(crate) async fn refuse_closed(&self, attempt: &AttemptName) -> Result<(), HostError> {
        match self.host.attempts.closed(attempt).await? {
            Some(closed) => Err(HostError::Closed { attempt: attempt.clone(), closed }),
            None => Ok(()),
        }
    }

    /// Wakes the keeper, or starts one.
    pub(crate) async fn summon(&self) -> Result<(), HostError> {
        self.host.wakeups.wake_keeper(&self.pool).await;
        self.ensure_keeper().await
    }

    /// Starts a keeper if none is running.
    pub(crate) async fn ensure_keeper(&self) -> Result<(), HostError> {
        if self.host.leadership.keeper_lives().await? {
            return Ok(());
        }
        self.host.leadership.start_keeper().await
    }
}

/// The attempt whose waiting call should poll immediately.
fn concerned(change: &Change) -> Option<&AttemptName> {
    match change {
        Change::Granted { attempt, .. }
        | Change::Withdrawn { attempt, .. }
        | Change::OrderRefused { attempt, .. } => Some(attempt),
        _ => None,
    }
}
