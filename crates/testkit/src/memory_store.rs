//! The recorded state in memory, for simulations.
//!
//! The reference for every other store: synchronous inside, so that nothing can happen between decide and commit.
//! Clones share one state, as processes share a state directory.

use std::cell::RefCell;
use std::rc::Rc;

use async_trait::async_trait;
use greenroom_core::event::Event;
use greenroom_core::history::{Collector, PartBuilder, Period};
use greenroom_core::pool::PoolState;
use greenroom_ports::store::{
    Committed, Decide, Diagnosis, History, JobHistory, OperatorStore, RecordedEvent, Repaired, Store,
    StoreError,
};

/// A [`Store`] whose state lives as long as one of its clones.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    shared: Rc<RefCell<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: PoolState,
    /// One entry for each transaction that wrote something.
    records: Vec<Vec<Event>>,
    /// The number of records that survive a power cut.
    synced: usize,
    /// The state after the synced records.
    safe: PoolState,
    inapplicable_events: u64,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// One that loses nothing in a power cut.
    pub fn durable() -> Self {
        let store = Self::default();
        store.shared.borrow_mut().state.survives_reboot = true;
        store
    }

    /// A power cut: removes the last `at_most` transactions, but none that `sync` has covered. Returns how many it
    /// removed.
    pub fn lose_last(&self, at_most: usize) -> usize {
        let mut shared = self.shared.borrow_mut();
        let kept = shared.records.len().saturating_sub(at_most).max(shared.synced);
        let lost = shared.records.len() - kept;
        if lost == 0 {
            return 0;
        }
        shared.records.truncate(kept);
        let mut state = shared.safe.clone();
        for event in shared.records[shared.synced..].iter().flatten() {
            // An inapplicable event was counted when it was committed.
            let _known = state.apply(event);
        }
        shared.state = state;
        lost
    }

    /// Transactions that a power cut would remove now.
    pub fn unsynced(&self) -> usize {
        let shared = self.shared.borrow();
        shared.records.len() - shared.synced
    }

    /// Every event since the beginning, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.shared.borrow().records.iter().flatten().cloned().collect()
    }

    /// Events that did not fit the state they were applied to. Each indicates a bug of the engine.
    pub fn inapplicable_events(&self) -> u64 {
        self.shared.borrow().inapplicable_events
    }
}

impl Shared {
    fn sync(&mut self) {
        self.synced = self.records.len();
        self.safe = self.state.clone();
    }

    fn commit(&mut self, events: &[Event]) {
        for event in events {
            if self.state.apply(event).is_err() {
                self.inapplicable_events += 1;
            }
        }
        if !events.is_empty() {
            self.records.push(events.to_vec());
        }
        if self.state.survives_reboot {
            self.sync();
        }
    }
}

#[async_trait(?Send)]
impl Store for MemoryStore {
    async fn load(&self) -> Result<PoolState, StoreError> {
        Ok(self.shared.borrow().state.clone())
    }

    async fn transact(&self, decide: Decide<'_>) -> Result<Committed, StoreError> {
        let mut shared = self.shared.borrow_mut();
        let events = decide(&shared.state);
        shared.commit(&events);
        Ok(Committed { state: shared.state.clone(), events })
    }

    async fn sync(&self) -> Result<(), StoreError> {
        self.shared.borrow_mut().sync();
        Ok(())
    }

    /// Does nothing: memory is no disk.
    async fn reserve(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Does nothing: there is no journal to fold.
    async fn compact(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[async_trait(?Send)]
impl OperatorStore for MemoryStore {
    async fn history(&self) -> Result<History, StoreError> {
        let records = self.shared.borrow().records.clone();
        let numbered = (1..).zip(records);
        let events = numbered.flat_map(|(n, events)| events.into_iter().map(move |event| (n, event)));
        Ok(Box::new(events.map(|(n, event)| Ok(RecordedEvent { n, event }))))
    }

    async fn jobs(&self, period: Period) -> Result<JobHistory, StoreError> {
        let shared = self.shared.borrow();
        let mut part = PartBuilder::default();
        shared.records.iter().flatten().for_each(|event| part.take(event));
        let mut collector = Collector::new(period);
        collector.add(part.finish());
        let begins = collector.begins();
        let jobs = collector.finish(&shared.state);
        Ok(JobHistory { begins, jobs, unreadable: Vec::new() })
    }

    async fn verify(&self) -> Result<Diagnosis, StoreError> {
        let shared = self.shared.borrow();
        let last = shared.records.len() as u64;
        let inapplicable_events = shared.inapplicable_events;
        Ok(Diagnosis { last, inapplicable_events, ..Diagnosis::default() })
    }

    /// Does nothing: memory is not damaged.
    async fn repair(&self) -> Result<Option<Repaired>, StoreError> {
        Ok(None)
    }
}
