//! The ports of a simulated process: store, clock and configuration.

use std::rc::Rc;
use std::sync::Arc;

use async_trait::async_trait;
use greenroom_core::apply::InapplicableEvent;
use greenroom_core::event::{Change, Event};
use greenroom_core::execution::Shell;
use greenroom_core::ids::PoolName;
use greenroom_core::instance::Answer;
use greenroom_core::pool::PoolState;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::setup::{PoolSetup, Pulls, Recheck, Setup};
use greenroom_ports::store::{Committed, Decide, Store, StoreError};

use crate::fault::Fault;
use crate::images::SimPulls;
use crate::process::{Kind, Proc};
use crate::provider::SimProvider;
use crate::{check, keeping};

/// The [`Clock`] of a manager.
#[derive(Debug, Clone)]
pub struct SimClock(pub Proc);

impl Clock for SimClock {
    fn now(&self) -> Stamp {
        self.0.world.borrow_mut().cover.call("clock.now");
        self.0.now()
    }
}

/// The [`Store`] of a pool: its [`Journal`], as the process's manager has it.
#[derive(Debug, Clone)]
pub struct SimStore {
    pub proc: Proc,
    pub pool: PoolName,
}

impl SimStore {
    fn refuses(&self, writes: bool) -> Option<StoreError> {
        let mut world = self.proc.world.borrow_mut();
        let error = if world.strikes(Fault::StoreBusy) {
            StoreError::Busy { pool: self.pool.to_string(), waited: "5 s".into(), holder: "another".into() }
        } else if writes && world.strikes(Fault::StoreFails) {
            StoreError::Full { what: "cannot append: no space left on device".to_owned() }
        } else {
            return None;
        };
        world.log(self.proc.pid, format_args!("store: {error}"));
        world.truth.excused = world.now;
        world.truth.refused_by_store.insert(self.proc.pid);
        Some(error)
    }
}

#[async_trait(?Send)]
impl Store for SimStore {
    async fn load(&self) -> Result<PoolState, StoreError> {
        self.proc.step("store.load").await;
        let mut world = self.proc.world.borrow_mut();
        let state = world.journal(self.proc.manager, &self.pool).state().clone();
        keeping::state_read(&mut world, self.proc.manager, self.proc.pid, &self.pool);
        world.log(self.proc.pid, format_args!("store.load {} at {}", self.pool, state.revision));
        Ok(state)
    }

    async fn transact(&self, decide: Decide<'_>) -> Result<Committed, StoreError> {
        self.proc.step("store.transact").await;
        if let Some(error) = self.refuses(true) {
            return Err(error);
        }
        let mut events = decide(&self.state());
        // As with an optimistic store: the first decision is discarded, and another process commits in between. That
        // matters most when an instance was to be terminated.
        let drains = events.iter().any(|e| matches!(e.change, Change::DrainingBegun { .. }));
        let (often, most) = if drains && self.is_keeper() { (400, 3_000) } else { (20, 1) };
        if self.proc.world.borrow_mut().streams.scheduling.chance(often) {
            let took = self.proc.world.borrow_mut().streams.latency.within(0..most);
            self.proc.pause(took).await;
            self.proc.step("store.transact").await;
            events = decide(&self.state());
        }
        let mut world = self.proc.world.borrow_mut();
        let now = world.now;
        let journal = world.journal(self.proc.manager, &self.pool);
        if let Err(refused) = journal.commit(now, &events) {
            let (event, misfit) = *refused;
            world.broken(format!("{misfit}: {event:?}"));
            return Err(StoreError::Io { what: misfit.to_string() });
        }
        let state = journal.state().clone();
        world.log(self.proc.pid, format_args!("store.transact {} to {}", self.pool, state.revision));
        for event in &events {
            let change = serde_json::to_string(&event.change).unwrap_or_default();
            world.log(self.proc.pid, format_args!("  {change}"));
        }
        check::committed(&mut world, self.proc.manager, &self.pool, &events);
        if events.iter().any(is_refusal) && world.strikes(Fault::DiesRefused) {
            world.log(self.proc.pid, format_args!("dies with a refusal"));
            world.truth.excused = world.now;
            world.doom(self.proc.pid);
        }
        Ok(Committed { state, events })
    }

    async fn reserve(&self) -> Result<(), StoreError> {
        self.proc.step("store.reserve").await;
        let mut world = self.proc.world.borrow_mut();
        if world.strikes(Fault::DiskFull) {
            check::disk_full(&mut world, self.proc.manager, &self.pool);
            return Err(StoreError::Full { what: "no space left on device".to_owned() });
        }
        Ok(())
    }

    async fn sync(&self) -> Result<(), StoreError> {
        self.proc.step("store.sync").await;
        let (mark, took) = {
            let mut world = self.proc.world.borrow_mut();
            let took = world.streams.latency.within(1..40);
            (world.journal(self.proc.manager, &self.pool).mark(), took)
        };
        self.proc.pause(took).await;
        let mut world = self.proc.world.borrow_mut();
        world.journal(self.proc.manager, &self.pool).sync_to(mark);
        world.log(self.proc.pid, format_args!("store.sync {} to {mark}", self.pool));
        Ok(())
    }

    async fn compact(&self) -> Result<(), StoreError> {
        self.proc.step("store.compact").await;
        let mut world = self.proc.world.borrow_mut();
        let journal = world.journal(self.proc.manager, &self.pool);
        if journal.unsynced() > 200 {
            let mark = journal.mark();
            journal.sync_to(mark);
            world.log(self.proc.pid, format_args!("store.compact {} to {mark}", self.pool));
        }
        Ok(())
    }
}

impl SimStore {
    fn is_keeper(&self) -> bool {
        self.proc.world.borrow().processes.get(&self.proc.pid).is_some_and(|p| p.kind == Kind::Keep)
    }

    fn state(&self) -> PoolState {
        self.proc.world.borrow_mut().journal(self.proc.manager, &self.pool).state().clone()
    }
}

fn is_refusal(event: &Event) -> bool {
    matches!(&event.change, Change::LaunchAnswered { answer: Answer::Refused { .. }, .. })
}

/// The [`Setup`] of a pool, from the operator's configuration.
#[derive(Debug, Clone)]
pub struct SimSetup {
    proc: Proc,
    pool: PoolName,
    provider: Rc<SimProvider>,
}

impl SimSetup {
    pub fn new(proc: &Proc, pool: &PoolName) -> Self {
        let provider = SimProvider { proc: proc.clone(), pool: pool.clone() };
        Self { proc: proc.clone(), pool: pool.clone(), provider: Rc::new(provider) }
    }
}

#[async_trait(?Send)]
impl Setup for SimSetup {
    async fn current(&self) -> (PoolSetup, Option<String>) {
        self.proc.step("setup.current").await;
        let mut world = self.proc.world.borrow_mut();
        let problem =
            world.strikes(Fault::ConfigInvalid).then(|| "greenroom.toml:3: expected `=`".to_owned());
        let plan = Rc::clone(&world.config[&self.pool]);
        drop(world);
        let setup = PoolSetup {
            shell: Shell::Bash.into(),
            recheck: Recheck { builds_dir: "/builds".to_owned(), command: None },
            cleaning: None,
            policy: Arc::clone(&plan.policy),
            provider: Rc::<SimProvider>::clone(&self.provider),
            ready_command: Some("ready".to_owned()),
            clean_command: Some("clean".to_owned()),
            pulls: (!plan.policy.warm.is_off()).then(|| Rc::new(SimPulls) as Rc<dyn Pulls>),
        };
        (setup, problem)
    }
}

// A pool's journal, and what a power cut leaves of it.
//
// Synced records survive, and so do those that the kernel has already written back. A power cut takes the last of the
// others.

/// `vm.dirty_expire_centisecs`, and a few seconds for the flusher.
const WRITE_BACK_MS: u64 = 35_000;

/// The recorded state with the records that are not on disk yet.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    state: PoolState,
    /// The state that would certainly survive a power cut.
    synced: PoolState,
    /// The records after `synced`, each with the moment when it was written.
    tail: Vec<(u64, Event)>,
}

impl Journal {
    /// An empty journal. One that survives a reboot writes each record to the disk at once.
    pub fn new(survives_reboot: bool) -> Self {
        let mut journal = Self::default();
        journal.state.survives_reboot = survives_reboot;
        journal
    }

    pub fn state(&self) -> &PoolState {
        &self.state
    }

    /// The state that a power cut would certainly leave.
    pub fn synced(&self) -> &PoolState {
        &self.synced
    }

    /// Appends all events. If one does not fit, the state stays unchanged.
    pub fn commit(&mut self, now: u64, events: &[Event]) -> Result<(), Box<(Event, InapplicableEvent)>> {
        let mut next = self.state.clone();
        for event in events {
            next.apply(event).map_err(|misfit| Box::new((event.clone(), misfit)))?;
        }
        self.state = next;
        self.tail.extend(events.iter().map(|event| (now, event.clone())));
        if self.state.survives_reboot {
            self.sync_to(self.mark());
        }
        Ok(())
    }

    /// Records not on the disk yet.
    pub fn unsynced(&self) -> usize {
        self.tail.len()
    }

    /// The number of records that have ever been written; a mark for [`sync_to`](Self::sync_to).
    pub fn mark(&self) -> u64 {
        self.state.revision
    }

    /// Moves everything up to `mark` to the disk.
    pub fn sync_to(&mut self, mark: u64) {
        if mark >= self.state.revision {
            self.tail.clear();
            self.synced = self.state.clone();
            return;
        }
        let count = usize::try_from(mark.saturating_sub(self.synced.revision)).unwrap_or(0);
        for (_, event) in self.tail.drain(..count.min(self.tail.len())) {
            let _fitted_before = self.synced.apply(&event);
        }
    }

    /// The files are repaired by hand, and lack something afterwards.
    pub fn mend(&mut self, mut change: impl FnMut(&mut PoolState)) {
        change(&mut self.state);
        self.synced = self.state.clone();
        self.tail.clear();
    }

    /// Power is cut: at most the last `count` records are lost, never one that was synced or that the kernel must have
    /// written back by its age. Returns the number of lost records.
    pub fn lose(&mut self, now: u64, count: usize) -> usize {
        let young = self.tail.iter().rev().take_while(|(at, _)| now < at + WRITE_BACK_MS).count();
        let lost = count.min(young);
        if lost == 0 {
            return 0;
        }
        self.tail.truncate(self.tail.len() - lost);
        self.state = self.synced.clone();
        for (_, event) in &self.tail {
            let _fitted_before = self.state.apply(event);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::Generation;
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;

    fn events(names: &[&str]) -> Vec<Event> {
        let at = Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 };
        names.iter().map(|n| Change::GenerationBegun { generation: Generation::new(n) }.at(at)).collect()
    }

    fn known(journal: &Journal) -> String {
        journal.state().generations.keys().map(Generation::as_str).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_power_cut_takes_the_last_records_and_never_a_synced_one() {
        let mut journal = Journal::default();
        journal.commit(0, &events(&["a", "b", "c"])).unwrap();
        journal.sync_to(2);
        assert_eq!((journal.unsynced(), known(&journal)), (1, "a b c".into()));
        journal.commit(90_000, &events(&["d"])).unwrap();
        assert_eq!(journal.lose(90_000, 9), 1);
        assert_eq!(known(&journal), "a b c");
        assert_eq!(journal.lose(1, 9), 1);
        assert_eq!(known(&journal), "a b");
    }

    #[test]
    fn events_that_do_not_fit_change_nothing() {
        let mut journal = Journal::default();
        let mut wrong = events(&["a"]);
        wrong.push(Change::Forgotten { instance: greenroom_core::ids::InstanceId::new("x") }.at(wrong[0].at));
        assert!(journal.commit(0, &wrong).is_err());
        assert_eq!((journal.mark(), known(&journal)), (0, String::new()));
    }
}
