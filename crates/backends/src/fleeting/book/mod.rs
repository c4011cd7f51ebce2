//! Which launch a machine of the plugin's belongs to: the decisions, without a clock and without calls.
//!
//! A plugin takes a count and returns no ids: they appear in later updates. So a machine that appears belongs to the
//! oldest launch whose machine is expected, whichever one the plugin made for it: nothing distinguishes new machines.
//! Without such a launch, it belongs to the oldest one that was given up; the engine terminates it. What no launch can
//! have made is *foreign*: reported, and never touched.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod entry;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
mod update;

use greenroom_core::ids::InstanceId;
use greenroom_core::inventory::Tags;
use greenroom_core::time::Stamp;

use super::group::{Start, State};
use entry::{Former, How, Intent, Machine, Progress};

/// How long a launch that was given up, and a machine that is gone, are remembered.
const RETENTION: Duration = Duration::from_hours(24);
/// The most of each that are remembered.
const REMEMBERED: usize = 1_000;

/// A machine that no launch can have made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    pub state: State,
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
    machines: BTreeMap<InstanceId, Machine>,
    /// Machines that are gone, the first to go first.
    former: Vec<Former>,
    /// By the plugin's id. Stored, so that no later launch takes one over.
    foreign: BTreeMap<String, Foreign>,
}

/// The answer to a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// A new launch: a call has to follow.
    New,
    /// The same launch is known.
    Known,
    /// The instance has a machine, or expects one, of a launch with another token.
    OtherToken,
}

/// What a book has of an instance.
#[derive(Debug, Clone, Copy)]
pub enum Entry<'a> {
    Intent(&'a Intent),
    Machine(&'a Machine),
    Former(&'a Former),
}

/// What the next call is to request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The instances that the call is for.
    pub asked: Vec<InstanceId>,
    /// Launches that a foreign machine serves: no call is needed.
    pub adopted: Vec<InstanceId>,
    /// Launches for which the group has no room.
    pub refused: Vec<InstanceId>,
}

/// How an instance is to be terminated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// It does not exist, for the reason, if it is known.
    Gone(Option<How>),
    /// Its machine may appear.
    MayAppear,
    /// Its machine is to be removed; the plugin may have accepted that.
    Marked,
}

impl Book {
    /// A launch; `Known` for a repeat.
    pub fn want(&mut self, instance: &InstanceId, token: &str, tags: &Tags, now: Stamp) -> Want {
        if let Some(machine) = self.machines.get(instance) {
            return if machine.token == token { Want::Known } else { Want::OtherToken };
        }
        // The machine of this launch is gone: a repeat must not make a second one.
        if self.former.iter().any(|former| former.instance == *instance && former.machine.token == token) {
            return Want::Known;
        }
        let mut of_instance = self.intents.iter().filter(|intent| intent.instance == *instance);
        if of_instance.clone().any(|intent| intent.token == token) {
            return Want::Known;
        }
        if of_instance.any(|intent| intent.progress != Progress::GivenUp) {
            return Want::OtherToken;
        }
        let (token, tags, progress) = (token.to_owned(), tags.clone(), Progress::Wanted);
        self.intents.push(Intent {
            instance: instance.clone(),
            token,
            tags,
            progress,
            at: now,
            made_by: None,
        });
        Want::New
    }

    pub fn entry(&self, instance: &InstanceId) -> Option<Entry<'_>> {
        if let Some(machine) = self.machines.get(instance) {
            return Some(Entry::Machine(machine));
        }
        // The last launch counts: earlier ones were given up.
        let intent = self.intents.iter().rev().find(|intent| intent.instance == *instance);
        let former = || self.former.iter().rev().find(|former| former.instance == *instance);
        intent.map(Entry::Intent).or_else(|| former().map(Entry::Former))
    }

    pub fn intents(&self) -> &[Intent] {
        &self.intents
    }

    pub fn machines(&self) -> &BTreeMap<InstanceId, Machine> {
        &self.machines
    }

    pub fn foreign(&self) -> &BTreeMap<String, Foreign> {
        &self.foreign
    }

    pub fn machine_mut(&mut self, instance: &InstanceId) -> Option<&mut Machine> {
        self.machines.get_mut(instance)
    }

    /// True if launches wait for a call.
    pub fn has_wanted(&self) -> bool {
        self.intents.iter().any(|intent| intent.progress == Progress::Wanted)
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
        let usable = |foreign: &Foreign| {
            adopt && foreign.missed == 0 && matches!(foreign.state, State::Running | State::Creating)
        };
        while let Some(at) = self.intents.iter().position(|intent| intent.progress == Progress::Wanted) {
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
                self.intents[at].progress = Progress::Asked;
                self.intents[at].at = now;
                batch.asked.push(instance);
            }
        }
        batch
    }

    /// The call goes to this start of the plugin.
    pub fn made_by(&mut self, asked: &[InstanceId], start: &Start) {
        self.of_call(asked).for_each(|intent| intent.made_by = Some(start.clone()));
    }

    /// The plugin has accepted this many of the call's launches: the oldest ones. Returns those that it has not.
    pub fn accepted(&mut self, asked: &[InstanceId], count: u32, now: Stamp) -> Vec<InstanceId> {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(asked.len());
        let (accepted, refused) = asked.split_at(count);
        for intent in self.of_call(accepted) {
            intent.progress = Progress::Accepted;
            intent.at = now;
        }
        self.intents
            .retain(|intent| intent.progress != Progress::Asked || !refused.contains(&intent.instance));
        refused.to_vec()
    }

    /// The call failed, and may have been carried out in part: what appears late is theirs.
    pub fn failed(&mut self, asked: &[InstanceId], now: Stamp) {
        for intent in self.of_call(asked) {
            intent.progress = Progress::GivenUp;
            intent.at = now;
        }
    }

    /// The call was not made.
    pub fn not_made(&mut self, asked: &[InstanceId]) {
        self.intents.retain(|intent| intent.progress != Progress::Asked || !asked.contains(&intent.instance));
    }

    /// The call has no answer: its machines are expected from now on.
    pub fn unanswered(&mut self, asked: &[InstanceId], now: Stamp) {
        self.of_call(asked).for_each(|intent| intent.at = now);
    }

    fn of_call<'a>(&'a mut self, asked: &'a [InstanceId]) -> impl Iterator<Item = &'a mut Intent> {
        self.intents
            .iter_mut()
            .filter(|intent| intent.progress == Progress::Asked && asked.contains(&intent.instance))
    }

    /// An instance is to end.
    pub fn remove(&mut self, instance: &InstanceId, appears_within: Duration, now: Stamp) -> Removal {
        if let Some(machine) = self.machines.get_mut(instance) {
            machine.unwanted = true;
            return Removal::Marked;
        }
        self.intents.retain(|intent| intent.instance != *instance || intent.progress != Progress::Wanted);
        let former = self.former.iter().rev().find(|former| former.instance == *instance);
        let mut may_appear = false;
        for intent in self.intents.iter_mut().filter(|intent| intent.instance == *instance) {
            intent.progress = Progress::GivenUp;
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
    fn bind(&mut self, at: usize, id: String, state: State, now: Stamp) {
        let Intent { instance, token, tags, at: requested, made_by, .. } = self.intents.remove(at);
        let expects = |intent: &Intent| intent.instance == instance && intent.progress != Progress::GivenUp;
        // A launch that was given up may have a successor: its machine gets a name of its own.
        let is_taken = self.machines.contains_key(&instance) || self.intents.iter().any(expects);
        let instance = if is_taken { self.late_name(&instance) } else { instance };
        let machine = Machine {
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
            history: vec![(requested, State::Creating), (now, state)],
        };
        self.machines.insert(instance, machine);
    }

    /// A free name for a machine that is no longer its instance's.
    fn late_name(&self, instance: &InstanceId) -> InstanceId {
        let late = |number: u32| InstanceId::new(format!("{instance}-late-{number}"));
        let free = |name: &InstanceId| !self.machines.contains_key(name);
        (1..=u32::MAX).map(late).find(free).unwrap_or_else(|| instance.clone())
    }
}
