//! A complete update of the plugin, applied to the book.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_core::ids::InstanceId;
use greenroom_core::time::Stamp;

use super::entry::{Former, How, MISSED, Progress};
use super::{Book, Foreign, REMEMBERED, RETENTION};
use crate::fleeting::group::{Seen, State};

impl Book {
    /// Applies an update that did not break off. `appears_within` limits how long a machine is expected.
    pub fn update(&mut self, seen: &[Seen], appears_within: Duration, now: Stamp) {
        // An id that comes twice counts once, with its last state.
        let mut seen: BTreeMap<&str, State> =
            seen.iter().map(|seen| (seen.id.as_str(), seen.state)).collect();
        self.update_machines(&mut seen, now);
        self.update_foreign(&mut seen);
        for (id, state) in seen {
            self.place(id, state, now);
        }
        self.expire(appears_within, now);
    }

    /// Takes the machines' own ids from `seen`.
    fn update_machines(&mut self, seen: &mut BTreeMap<&str, State>, now: Stamp) {
        let mut ended: Vec<(InstanceId, How)> = Vec::new();
        for (instance, machine) in &mut self.machines {
            let how = match seen.remove(machine.id.as_str()) {
                Some(state) => {
                    machine.note(state, now);
                    machine.ended(state)
                }
                None => machine.missing(),
            };
            ended.extend(how.map(|how| (instance.clone(), how)));
        }
        for former in &mut self.former {
            // Some plugins show what is deleted for a while.
            match seen.get(former.machine.id.as_str()) {
                Some(State::Deleted | State::Timeout | State::Deleting) => {
                    seen.remove(former.machine.id.as_str());
                }
                Some(_) => {}
                // Counted no further than it matters: a change is a write to the disk.
                None => former.missed = (former.missed + 1).min(MISSED + 1),
            }
        }
        for (instance, how) in ended {
            if let Some(machine) = self.machines.remove(&instance) {
                self.former.push(Former { instance, machine, how, at: now, missed: 0 });
            }
        }
    }

    fn update_foreign(&mut self, seen: &mut BTreeMap<&str, State>) {
        self.foreign.retain(|id, foreign| {
            if let Some(state) = seen.get(id.as_str()).copied() {
                if foreign.unsure && !matches!(state, State::Deleting | State::Deleted | State::Timeout) {
                    // It is placed as one that this update shows first.
                    return false;
                }
                seen.remove(id.as_str());
                *foreign = Foreign { state, unsure: foreign.unsure, missed: 0 };
                return state != State::Deleted;
            }
            foreign.missed += 1;
            foreign.missed <= MISSED
        });
    }

    /// A machine that the book does not have.
    fn place(&mut self, id: &str, state: State, now: Stamp) {
        let open = self.intents.iter().position(|intent| intent.progress.is_open());
        if let Some(at) = self.former.iter().rposition(|former| former.machine.id == id)
            && !(self.former[at].is_over() && open.is_some())
        {
            self.restore(at, state, now);
            return;
        }
        if matches!(state, State::Deleted | State::Timeout) {
            return;
        }
        let given_up = || self.intents.iter().position(|intent| intent.progress == Progress::GivenUp);
        let unsure = state == State::Deleting;
        match open.or_else(given_up).filter(|_| !unsure) {
            Some(at) => {
                self.former.retain(|former| former.machine.id != id);
                self.bind(at, id.to_owned(), state, now);
            }
            None => {
                self.foreign.insert(id.to_owned(), Foreign { state, unsure, missed: 0 });
            }
        }
    }

    /// A machine is back, or was never gone: jobs may have run there, so no other launch gets it.
    fn restore(&mut self, at: usize, state: State, now: Stamp) {
        let Former { instance, mut machine, .. } = self.former.remove(at);
        machine.note(state, now);
        // Its removal is requested once more.
        machine.removal = None;
        let is_taken = self.machines.contains_key(&instance)
            || self.intents.iter().any(|intent| intent.instance == instance);
        let instance = if is_taken { self.late_name(&instance) } else { instance };
        self.machines.insert(instance, machine);
    }

    /// Gives up machines that have not appeared in time, and forgets what is old.
    fn expire(&mut self, appears_within: Duration, now: Stamp) {
        let age = |at: Stamp| now.since(at.seen_from(now));
        for intent in self.intents.iter_mut().filter(|intent| intent.progress.is_open()) {
            if age(intent.at) >= appears_within {
                intent.progress = Progress::GivenUp;
            }
        }
        self.intents.retain(|intent| intent.progress != Progress::GivenUp || age(intent.at) < RETENTION);
        self.former.retain(|former| age(former.at) < RETENTION);
        let surplus = self.former.len().saturating_sub(REMEMBERED);
        self.former.drain(..surplus);
    }
}
