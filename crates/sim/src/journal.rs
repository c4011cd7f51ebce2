//! A pool's journal, and what a power cut leaves of it.
//!
//! Synced records survive, and so do those that the kernel has already written back. A power cut takes the last of the
//! others.

use greenroom_core::apply::InapplicableEvent;
use greenroom_core::event::Event;
use greenroom_core::pool::PoolState;

/// `vm.dirty_expire_centisecs`, and a few seconds for the flusher.
const WRITE_BACK_MS: u64 = 35_000;

/// The recorded state with the records that are not on disk yet.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    state: PoolState,
    /// What would certainly survive a power cut.
    synced: PoolState,
    /// Records since then, with when they were written.
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

    /// What a power cut would certainly leave.
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

    /// How many records have ever been written; a mark for `sync_to`.
    pub fn mark(&self) -> u64 {
        self.state.revision
    }

    /// Everything up to `mark` is on disk.
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
    use greenroom_core::event::Change;
    use greenroom_core::ids::Generation;
    use greenroom_core::time::{BootId, ManagerId, Stamp};

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
