//! The launch to which a machine of the plugin's belongs ([`Book`]): the decisions, without a clock and without calls.
//!
//! A plugin takes a count and returns no ids: they appear in later updates. So a machine that appears belongs to the
//! oldest launch whose machine is expected, whichever one the plugin made for it: nothing distinguishes new machines.
//! Without such a launch, it belongs to the oldest one that was given up; the engine terminates it. What no launch can
//! have made is *foreign*: reported, and never touched.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_core::ids::InstanceId;
use greenroom_core::inventory::Tags;
use greenroom_core::time::Stamp;
use serde::{Deserialize, Serialize};

use super::group::{InstanceState, PluginStart, SeenInstance};

pub mod entry;
#[cfg(test)]
mod tests;

use entry::{BookMachine, Departure, FormerMachine, Intent, LaunchProgress, MISSED};

/// The time for which a launch that was given up, and a machine that is gone, are remembered.
const RETENTION: Duration = Duration::from_hours(24);
/// The most of each that are remembered.
const REMEMBERED: usize = 1_000;

/// A machine that no launch can have made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignMachine {
    pub state: InstanceState,
    /// True if it was being deleted in each update so far: a launch may have made it, and it may be there to stay.
    #[serde(default)]
    pub unsure: bool,
    /// Good updates in a row without it.
    #[serde(default)]
    pub missed: u32,
}

/// The launches and machines of one pool in one group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// Launches without a machine, the oldest first.
    intents: Vec<Intent>,
    machines: BTreeMap<InstanceId, BookMachine>,
    /// Machines that are gone, the first to go first.
    former: Vec<FormerMachine>,
    /// The foreign machines, by the plugin's id. Stored, so that no later launch takes one over.
    foreign: BTreeMap<String, ForeignMachine>,
}

/// The answer to a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantAnswer {
    /// A new launch: a call has to follow.
    New,
    /// A repeat of a known launch.
    Known,
    /// The instance has a machine, or expects one, of a launch with another token.
    OtherToken,
}

/// A book's entry of an instance.
#[derive(Debug, Clone, Copy)]
pub enum BookEntry<'a> {
    Intent(&'a Intent),
    Machine(&'a BookMachine),
    Former(&'a FormerMachine),
}

/// Launches of the next call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The instances that the call is for.
    pub asked: Vec<InstanceId>,
    /// Launches that a foreign machine serves: no call is needed.
    pub adopted: Vec<InstanceId>,
    /// Launches for which the group has no room.
    pub refused: Vec<InstanceId>,
}

/// The state of an instance that is to be terminated, as the [`Book`] has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// The instance does not exist, for this reason, if one is known.
    Gone(Option<Departure>),
    /// The instance's machine may appear.
    MayAppear,
    /// The instance's machine is to be removed; the plugin may have accepted that.
    Marked,
}

impl Book {
    /// A launch; `Known` for a repeat.
    pub fn want(&mut self, instance: &InstanceId, token: &str, tags: &Tags, now: Stamp) -> WantAnswer {
        if let Some(machine) = self.machines.get(instance) {
            return if machine.token == token { WantAnswer::Known } else { WantAnswer::OtherToken };
        }
        // The machine of this launch is gone: a repeat must not make a second one.
        if self.former.iter().any(|former| former.instance == *instance && former.machine.token == token) {
            return WantAnswer::Known;
        }
        let mut of_instance = self.intents.iter().filter(|intent| intent.instance == *instance);
        if of_instance.clone().any(|intent| intent.token == token) {
            return WantAnswer::Known;
        }
        if of_instance.any(|intent| intent.progress != LaunchProgress::GivenUp) {
            return WantAnswer::OtherToken;
        }
        let token = token.to_owned();
        let tags = tags.clone();
        let progress = LaunchProgress::Wanted;
        self.intents.push(Intent {
            instance: instance.clone(),
            token,
            tags,
            progress,
            at: now,
            made_by: None,
        });
        WantAnswer::New
    }

    pub fn entry(&self, instance: &InstanceId) -> Option<BookEntry<'_>> {
        if let Some(machine) = self.machines.get(instance) {
            return Some(BookEntry::Machine(machine));
        }
        // The last launch counts: earlier ones were given up.
        let intent = self.intents.iter().rev().find(|intent| intent.instance == *instance);
        let former = || self.former.iter().rev().find(|former| former.instance == *instance);
        intent.map(BookEntry::Intent).or_else(|| former().map(BookEntry::Former))
    }

    pub fn intents(&self) -> &[Intent] {
        &self.intents
    }

    pub fn machines(&self) -> &BTreeMap<InstanceId, BookMachine> {
        &self.machines
    }

    pub fn foreign(&self) -> &BTreeMap<String, ForeignMachine> {
        &self.foreign
    }

    pub fn machine_mut(&mut self, instance: &InstanceId) -> Option<&mut BookMachine> {
        self.machines.get_mut(instance)
    }

    /// True if launches wait for a call.
    pub fn has_wanted(&self) -> bool {
        self.intents.iter().any(|intent| intent.progress == LaunchProgress::Wanted)
    }

    /// The instances that the group may still have beside those that exist and those that are expected.
    pub fn room(&self, max_size: Option<u32>) -> usize {
        let open = self.intents.iter().filter(|intent| intent.progress.is_open()).count();
        let used = open + self.machines.len() + self.foreign.len();
        max_size.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX).saturating_sub(used))
    }

    /// Takes all waiting launches into the next call, the oldest first, as far as the group has room. With `adopt`, foreign
    /// machines serve launches first.
    pub fn begin(&mut self, max_size: Option<u32>, adopt: bool, now: Stamp) -> Batch {
        let mut batch = Batch::default();
        let usable = |foreign: &ForeignMachine| {
            adopt
                && foreign.missed == 0
                && matches!(foreign.state, InstanceState::Running | InstanceState::Creating)
        };
        while let Some(at) = self.intents.iter().position(|intent| intent.progress == LaunchProgress::Wanted)
        {
            let instance = self.intents[at].instance.clone();
            let adoptable = self.foreign.iter().find(|(_, foreign)| usable(foreign));
            if let Some((id, state)) = adoptable.map(|(id, foreign)| (id.clone(), foreign.state)) {
                self.foreign.remove(&id);
                self.bind(at, id, state, now);
                batch.adopted.push(instance);
            } else if self.room(max_size) == 0 {
                self.intents.remove(at);
                batch.refused.push(instance);
            } else {
                self.intents[at].progress = LaunchProgress::Asked;
                self.intents[at].at = now;
                batch.asked.push(instance);
            }
        }
        batch
    }

    /// The call goes to this start of the plugin.
    pub fn made_by(&mut self, asked: &[InstanceId], start: &PluginStart) {
        self.of_call(asked).for_each(|intent| intent.made_by = Some(start.clone()));
    }

    /// The plugin has accepted this many of the call's launches: the oldest ones. Returns those that it has not.
    pub fn accepted(&mut self, asked: &[InstanceId], count: u32, now: Stamp) -> Vec<InstanceId> {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(asked.len());
        let (accepted, refused) = asked.split_at(count);
        for intent in self.of_call(accepted) {
            intent.progress = LaunchProgress::Accepted;
            intent.at = now;
        }
        self.intents
            .retain(|intent| intent.progress != LaunchProgress::Asked || !refused.contains(&intent.instance));
        refused.to_vec()
    }

    /// The call failed, and may have been carried out in part: what appears late is theirs.
    pub fn failed(&mut self, asked: &[InstanceId], now: Stamp) {
        for intent in self.of_call(asked) {
            intent.progress = LaunchProgress::GivenUp;
            intent.at = now;
        }
    }

    /// The call was not made.
    pub fn not_made(&mut self, asked: &[InstanceId]) {
        self.intents
            .retain(|intent| intent.progress != LaunchProgress::Asked || !asked.contains(&intent.instance));
    }

    /// The call has no answer: its machines are expected from now on.
    pub fn unanswered(&mut self, asked: &[InstanceId], now: Stamp) {
        self.of_call(asked).for_each(|intent| intent.at = now);
    }

    fn of_call<'a>(&'a mut self, asked: &'a [InstanceId]) -> impl Iterator<Item = &'a mut Intent> {
        self.intents
            .iter_mut()
            .filter(|intent| intent.progress == LaunchProgress::Asked && asked.contains(&intent.instance))
    }

    /// An instance is to end.
    pub fn remove(&mut self, instance: &InstanceId, appears_within: Duration, now: Stamp) -> Removal {
        if let Some(machine) = self.machines.get_mut(instance) {
            machine.unwanted = true;
            return Removal::Marked;
        }
        self.intents
            .retain(|intent| intent.instance != *instance || intent.progress != LaunchProgress::Wanted);
        let former = self.former.iter().rev().find(|former| former.instance == *instance);
        let mut may_appear = false;
        for intent in self.intents.iter_mut().filter(|intent| intent.instance == *instance) {
            intent.progress = LaunchProgress::GivenUp;
            // An earlier launch that failed keeps no instance whose machine has come and gone: what still appears is in a
            // list, and is reaped.
            let is_over = former.is_some_and(|former| !intent.at.is_after(former.at));
            may_appear |= !is_over && now.since(intent.at.seen_from(now)) < appears_within;
        }
        if may_appear {
            return Removal::MayAppear;
        }
        Removal::Gone(former.map(|former| former.how))
    }

    /// The ids whose removal a call has to request now.
    pub fn due(&self, now: Stamp) -> Vec<String> {
        self.machines
            .values()
            .filter(|machine| machine.is_due(now))
            .map(|machine| machine.id.clone())
            .collect()
    }

    /// The plugin has accepted the removal of these.
    pub fn removed(&mut self, ids: &[String], now: Stamp) {
        for machine in self.machines.values_mut().filter(|machine| ids.contains(&machine.id)) {
            machine.removal = Some(now);
        }
    }

    /// Gives the launch at `at` its machine.
    fn bind(&mut self, at: usize, id: String, state: InstanceState, now: Stamp) {
        let Intent { instance, token, tags, at: requested, made_by, .. } = self.intents.remove(at);
        let expects =
            |intent: &Intent| intent.instance == instance && intent.progress != LaunchProgress::GivenUp;
        // A launch that was given up may have a successor: its machine gets a name of its own.
        let is_taken = self.machines.contains_key(&instance) || self.intents.iter().any(expects);
        let instance = if is_taken { self.late_name(&instance) } else { instance };
        let machine = BookMachine {
            id,
            token,
            tags,
            state,
            appeared: now,
            missed: 0,
            unwanted: false,
            removal: None,
            host_key: None,
            made_by,
            history: vec![(requested, InstanceState::Creating), (now, state)],
        };
        self.machines.insert(instance, machine);
    }

    /// A free name for a machine that is no longer its instance's.
    fn late_name(&self, instance: &InstanceId) -> InstanceId {
        let late = |number: u32| InstanceId::new(format!("{instance}-late-{number}"));
        let free = |name: &InstanceId| !self.machines.contains_key(name);
        (1..=u32::MAX).map(late).find(free).unwrap_or_else(|| instance.clone())
    }

    /// Applies an update that did not break off. `appears_within` limits how long a machine is expected.
    pub fn update(&mut self, seen: &[SeenInstance], appears_within: Duration, now: Stamp) {
        // An id that comes twice counts once, with its last state.
        let mut seen: BTreeMap<&str, InstanceState> =
            seen.iter().map(|seen| (seen.id.as_str(), seen.state)).collect();
        self.update_machines(&mut seen, now);
        self.update_foreign(&mut seen);
        for (id, state) in seen {
            self.place(id, state, now);
        }
        self.expire(appears_within, now);
    }

    /// Takes the machines' own ids from `seen`.
    fn update_machines(&mut self, seen: &mut BTreeMap<&str, InstanceState>, now: Stamp) {
        let mut ended: Vec<(InstanceId, Departure)> = Vec::new();
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
                Some(InstanceState::Deleted | InstanceState::Timeout | InstanceState::Deleting) => {
                    seen.remove(former.machine.id.as_str());
                }
                Some(_) => {}
                // Counted no further than it matters: a change is a write to the disk.
                None => former.missed = (former.missed + 1).min(MISSED + 1),
            }
        }
        for (instance, how) in ended {
            if let Some(machine) = self.machines.remove(&instance) {
                self.former.push(FormerMachine { instance, machine, how, at: now, missed: 0 });
            }
        }
    }

    fn update_foreign(&mut self, seen: &mut BTreeMap<&str, InstanceState>) {
        self.foreign.retain(|id, foreign| {
            if let Some(state) = seen.get(id.as_str()).copied() {
                if foreign.unsure
                    && !matches!(
                        state,
                        InstanceState::Deleting | InstanceState::Deleted | InstanceState::Timeout
                    )
                {
                    // It is placed as one that this update shows first.
                    return false;
                }
                seen.remove(id.as_str());
                *foreign = ForeignMachine { state, unsure: foreign.unsure, missed: 0 };
                return state != InstanceState::Deleted;
            }
            foreign.missed += 1;
            foreign.missed <= MISSED
        });
    }

    /// A machine that the book does not have.
    fn place(&mut self, id: &str, state: InstanceState, now: Stamp) {
        let open = self.intents.iter().position(|intent| intent.progress.is_open());
        if let Some(at) = self.former.iter().rposition(|former| former.machine.id == id)
            && !(self.former[at].is_over() && open.is_some())
        {
            self.restore(at, state, now);
            return;
        }
        if matches!(state, InstanceState::Deleted | InstanceState::Timeout) {
            return;
        }
        let given_up = || self.intents.iter().position(|intent| intent.progress == LaunchProgress::GivenUp);
        let unsure = state == InstanceState::Deleting;
        match open.or_else(given_up).filter(|_| !unsure) {
            Some(at) => {
                self.former.retain(|former| former.machine.id != id);
                self.bind(at, id.to_owned(), state, now);
            }
            None => {
                self.foreign.insert(id.to_owned(), ForeignMachine { state, unsure, missed: 0 });
            }
        }
    }

    /// A machine is back, or was never gone: jobs may have run there, so no other launch gets it.
    fn restore(&mut self, at: usize, state: InstanceState, now: Stamp) {
        let FormerMachine { instance, mut machine, .. } = self.former.remove(at);
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
                intent.progress = LaunchProgress::GivenUp;
            }
        }
        self.intents
            .retain(|intent| intent.progress != LaunchProgress::GivenUp || age(intent.at) < RETENTION);
        self.former.retain(|former| age(former.at) < RETENTION);
        let surplus = self.former.len().saturating_sub(REMEMBERED);
        self.former.drain(..surplus);
    }
}
