//! Reasons why machines ended without a request of Greenroom.
//!
//! Compute Engine records them in the operations of a zone. Greenroom lists those only when a machine that was listed
//! before stops or is gone. A reclaimed machine is deleted soon after, so Greenroom keeps the reason for a while: its
//! job may need it late.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use google_cloud_compute_v1::model::Operation;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use jiff::Timestamp;

use crate::cloud::api::Machines;
use crate::cloud::machine::{CloudNotice, Handle, Machine, MachineState};
use crate::gce::announced::RECLAIMING;

/// How long a machine that is gone is listed with its reason.
const RETENTION: Duration = Duration::from_mins(10);
/// How often the operations are listed for one machine: they may appear slightly after its end.
const TRIES: u32 = 3;
/// Selects the cloud's own operations, as opposed to requested ones.
pub(super) const FILTER: &str = "operationType eq \"compute[.]instances[.].*\"";
const OWN: &str = "compute.instances.";
/// How the reason of a preempted machine starts.
const RECLAIMED: &str = "was reclaimed by Compute Engine";
/// Operations that a machine survives.
const HARMLESS: [&str; 2] = ["automaticRestart", "migrateOnHostMaintenance"];

/// The machines that were listed.
pub(super) struct Endings {
    clock: Rc<dyn Clock>,
    seen: RefCell<BTreeMap<Key, Seen>>,
}

/// Zone and name.
type Key = (String, String);

#[derive(Debug)]
struct Seen {
    /// The machine, as last listed.
    machine: Machine,
    /// True if it has had capacity. A machine without capacity is refused and has no reason.
    had_capacity: bool,
    /// True if Greenroom requested its termination.
    requested: bool,
    tries: u32,
    why: Option<String>,
    /// The time since which lists lack it.
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

    /// Records that Greenroom requests the termination.
    pub(super) fn expect_end(&self, handle: &Handle) {
        if let Some(seen) = self.seen.borrow_mut().get_mut(&key(handle)) {
            seen.requested = true;
        }
    }

    /// True if machines were listed in this zone and are not gone.
    pub(super) fn has_machines(&self, zone: &str) -> bool {
        self.seen.borrow().values().any(|seen| seen.gone.is_none() && seen.machine.handle.zone == zone)
    }

    /// Records a list. Returns the zones whose operations may contain reasons.
    pub(super) fn update(&self, machines: &Machines) -> BTreeSet<String> {
        let now = self.clock.now();
        let mut all = self.seen.borrow_mut();
        for machine in &machines.all {
            let had_capacity = machine.state > MachineState::Accepted;
            let seen = all.entry(key(&machine.handle)).or_insert_with(|| Seen::new(machine.clone()));
            seen.had_capacity |= had_capacity;
            seen.gone = None;
            seen.machine = machine.clone();
        }
        if machines.complete {
            let listed: BTreeSet<Key> = machines.all.iter().map(|machine| key(&machine.handle)).collect();
            for (_, seen) in all.iter_mut().filter(|(key, _)| !listed.contains(*key)) {
                seen.gone.get_or_insert(now);
            }
        }
        all.retain(|_, seen| seen.is_kept(now));
        let open = all.values().filter(|seen| seen.needs_reason());
        open.map(|seen| seen.machine.handle.zone.clone()).collect()
    }

    /// Reads the reasons from a zone's operations, which are ordered from the latest.
    pub(super) fn read_reasons(&self, zone: &str, operations: &[Operation]) {
        for seen in self.seen.borrow_mut().values_mut() {
            if seen.machine.handle.zone != zone || !seen.needs_reason() {
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

    /// Adds the reasons to a list, and the machines that are gone for a reason. A machine that stops still
    /// runs for up to 30 s: a notice tells its job.
    pub(super) fn add_reasons(&self, machines: &mut Machines) {
        let all = self.seen.borrow();
        for machine in &mut machines.all {
            let Some(seen) = all.get(&key(&machine.handle)) else { continue };
            machine.why.clone_from(&seen.why);
            if machine.state == MachineState::Ending && seen.had_capacity && !seen.requested {
                let is_reclaimed = seen.why.as_deref().is_some_and(|why| why.starts_with(RECLAIMED));
                let text = if is_reclaimed { RECLAIMING } else { "is stopping" };
                machine.notice = Some(CloudNotice { text: text.to_owned(), at_ms: None });
            }
        }
        let gone = all.values().filter(|seen| seen.gone.is_some() && seen.why.is_some());
        machines.all.extend(gone.map(|seen| Machine {
            state: MachineState::Gone,
            why: seen.why.clone(),
            notice: None,
            ..seen.machine.clone()
        }));
    }
}

impl Seen {
    fn new(machine: Machine) -> Self {
        Self { machine, had_capacity: false, requested: false, tries: 0, why: None, gone: None }
    }

    fn needs_reason(&self) -> bool {
        let ends = self.gone.is_some() || self.machine.state <= MachineState::Stopped;
        ends && self.had_capacity && !self.requested && self.why.is_none() && self.tries < TRIES
    }

    fn is_kept(&self, now: Stamp) -> bool {
        match self.gone {
            None => true,
            Some(gone) if self.why.is_some() => now.since(gone) < RETENTION,
            Some(_) => self.needs_reason(),
        }
    }
}

fn key(handle: &Handle) -> Key {
    (handle.zone.clone(), handle.name.clone())
}

/// The effect of an operation of the cloud's own, worded to follow "instance X"; `None` if the machine survived it.
fn why(operation: &Operation) -> Option<String> {
    let kind = operation.operation_type.as_deref()?.strip_prefix(OWN)?;
    if HARMLESS.contains(&kind) {
        return None;
    }
    let moment = operation.end_time.as_deref().or(operation.insert_time.as_deref());
    let moment = moment.and_then(|text| text.parse::<Timestamp>().ok());
    let at = moment.map(|at| at.strftime(" at %H:%M:%S UTC").to_string()).unwrap_or_default();
    Some(match kind {
        "preempted" => format!("{RECLAIMED}{at} (spot)"),
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
