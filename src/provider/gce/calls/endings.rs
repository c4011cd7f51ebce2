//! Why machines ended that nobody here has ended.
//!
//! Compute Engine says it in the operations of a zone, which are asked for only when a machine that was seen before stops or
//! is gone. A machine that is reclaimed is deleted soon after, so what was found out is remembered for a while: the job that
//! ran on it may ask late.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use google_cloud_compute_v1::model::Operation;
use jiff::Timestamp;

use crate::core::time::Stamp;
use crate::port::clock::Clock;
use crate::provider::cloud::api::Machines;
use crate::provider::cloud::machine::{Handle, Machine, MachineState};

/// How long the end of a machine that is gone is told.
const TOLD: Duration = Duration::from_mins(10);
/// How often the operations are asked for one machine's end: they may come a little later than the end itself.
const TRIES: u32 = 3;
/// The cloud's own operations, told from those that somebody asked for.
pub(super) const FILTER: &str = "operationType eq \"compute[.]instances[.].*\"";
const OWN: &str = "compute.instances.";
/// Of these, a machine goes on.
const HARMLESS: [&str; 2] = ["automaticRestart", "migrateOnHostMaintenance"];

/// What is known of the machines that were seen.
pub(super) struct Endings {
    clock: Rc<dyn Clock>,
    seen: RefCell<BTreeMap<Key, Seen>>,
}

/// Zone and name.
type Key = (String, String);

#[derive(Debug)]
struct Seen {
    /// As it was listed last.
    machine: Machine,
    /// Did it have a place once? What had none is refused, not ended.
    placed: bool,
    /// Somebody here asked for its end.
    ours: bool,
    tries: u32,
    why: Option<String>,
    /// Since when no list has it.
    gone: Option<Stamp>,
}

impl std::fmt::Debug for Endings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endings").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Endings {
    pub(super) fn new(clock: Rc<dyn Clock>) -> Self {
        Self { clock, seen: RefCell::default() }
    }

    /// An end that is our own doing.
    pub(super) fn expect(&self, handle: &Handle) {
        if let Some(seen) = self.seen.borrow_mut().get_mut(&key(handle)) {
            seen.ours = true;
        }
    }

    /// May there be machines in this zone?
    pub(super) fn saw(&self, zone: &str) -> bool {
        self.seen.borrow().values().any(|seen| seen.gone.is_none() && seen.machine.handle.zone == zone)
    }

    /// Takes note of a look. Gives the zones whose operations may say why something ended.
    pub(super) fn note(&self, machines: &Machines) -> BTreeSet<String> {
        let now = self.clock.now();
        let mut all = self.seen.borrow_mut();
        for machine in &machines.all {
            let placed = machine.state > MachineState::Accepted;
            let seen = all.entry(key(&machine.handle)).or_insert_with(|| Seen::new(machine.clone()));
            seen.placed |= placed;
            seen.gone = None;
            seen.machine = machine.clone();
        }
        if machines.complete {
            let listed: BTreeSet<Key> = machines.all.iter().map(|machine| key(&machine.handle)).collect();
            for (_, seen) in all.iter_mut().filter(|(key, _)| !listed.contains(*key)) {
                seen.gone.get_or_insert(now);
            }
        }
        all.retain(|_, seen| seen.is_of_interest(now));
        let questions = all.values().filter(|seen| seen.is_a_question());
        questions.map(|seen| seen.machine.handle.zone.clone()).collect()
    }

    /// What the operations of a zone say, the last ones first.
    pub(super) fn hear(&self, zone: &str, operations: &[Operation]) {
        for seen in self.seen.borrow_mut().values_mut() {
            if seen.machine.handle.zone != zone || !seen.is_a_question() {
                continue;
            }
            seen.tries += 1;
            let target = format!("/zones/{zone}/instances/{}", seen.machine.handle.name);
            let mut about = operations
                .iter()
                .filter(|one| one.target_link.as_deref().is_some_and(|link| link.ends_with(&target)));
            seen.why = about.find_map(why);
        }
    }

    /// Puts the reasons into a look, and the machines back that went for a reason.
    pub(super) fn tell(&self, machines: &mut Machines) {
        let all = self.seen.borrow();
        for machine in &mut machines.all {
            machine.why = all.get(&key(&machine.handle)).and_then(|seen| seen.why.clone());
        }
        let gone = all.values().filter(|seen| seen.gone.is_some() && seen.why.is_some());
        machines.all.extend(gone.map(|seen| Machine {
            state: MachineState::Gone,
            why: seen.why.clone(),
            ..seen.machine.clone()
        }));
    }
}

impl Seen {
    fn new(machine: Machine) -> Self {
        Self { machine, placed: false, ours: false, tries: 0, why: None, gone: None }
    }

    fn is_a_question(&self) -> bool {
        let ends = self.gone.is_some() || self.machine.state <= MachineState::Stopped;
        ends && self.placed && !self.ours && self.why.is_none() && self.tries < TRIES
    }

    fn is_of_interest(&self, now: Stamp) -> bool {
        match self.gone {
            None => true,
            Some(gone) if self.why.is_some() => now.since(gone) < TOLD,
            Some(_) => self.is_a_question(),
        }
    }
}

fn key(handle: &Handle) -> Key {
    (handle.zone.clone(), handle.name.clone())
}

/// What an operation of the cloud's own did, as what follows on "instance X"; `None`: the machine went on.
fn why(operation: &Operation) -> Option<String> {
    let kind = operation.operation_type.as_deref()?.strip_prefix(OWN)?;
    if HARMLESS.contains(&kind) {
        return None;
    }
    let moment = operation.end_time.as_deref().or(operation.insert_time.as_deref());
    let moment = moment.and_then(|text| text.parse::<Timestamp>().ok());
    let at = moment.map(|at| at.strftime(" at %H:%M:%S UTC").to_string()).unwrap_or_default();
    Some(match kind {
        "preempted" => format!("was reclaimed by Compute Engine{at} (spot)"),
        "hostError" => format!("was terminated by Compute Engine{at} (its host failed)"),
        "terminateOnHostMaintenance" => {
            format!("was terminated by Compute Engine{at} (maintenance of its host)")
        }
        "guestTerminate" => format!("shut itself down{at}"),
        life if life.contains("MaxRunDuration") => {
            format!("was terminated by Compute Engine{at}: it reached its maximum run duration")
        }
        other => format!("was terminated by Compute Engine{at} ({other})"),
    })
}

#[cfg(test)]
mod tests;
