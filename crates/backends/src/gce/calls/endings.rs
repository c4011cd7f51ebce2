//! Reasons why machines ended without a request of Greenroom, and the notices of such ends.
//!
//! Compute Engine records the reasons in the operations of a zone. Greenroom lists those only when a machine that was listed
//! before stops or is gone. A reclaimed machine is deleted soon after, so Greenroom keeps the reason for a while: its
//! job may need it late.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use google_cloud_compute_v1::model::Operation;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use jiff::Timestamp;

use crate::cloud::api::Machines;
use crate::cloud::machine::{CloudNotice, Handle, Machine, MachineState};

/// The time for which a machine that is gone is listed with its reason.
const RETENTION: Duration = Duration::from_mins(10);
/// The number of times that the operations are listed for one machine: they may appear slightly after its end.
const TRIES: u32 = 3;
/// Selects the cloud's own operations, as opposed to requested ones.
pub(super) const FILTER: &str = "operationType eq \"compute[.]instances[.].*\"";
const OWN: &str = "compute.instances.";
/// The beginning of the reason of a preempted machine.
const RECLAIMED: &str = "was reclaimed by Compute Engine";
/// Operations that a machine survives.
const HARMLESS: [&str; 2] = ["automaticRestart", "migrateOnHostMaintenance"];

/// The machines that were listed.
pub(super) struct Endings {
    clock: Rc<dyn Clock>,
    seen: RefCell<BTreeMap<ZoneAndName, ListedMachine>>,
}

/// Zone and name.
type ZoneAndName = (String, String);

#[derive(Debug)]
struct ListedMachine {
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
            let seen = all.entry(key(&machine.handle)).or_insert_with(|| ListedMachine::new(machine.clone()));
            seen.had_capacity |= had_capacity;
            seen.gone = None;
            seen.machine = machine.clone();
        }
        if machines.complete {
            let listed: BTreeSet<ZoneAndName> =
                machines.all.iter().map(|machine| key(&machine.handle)).collect();
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

impl ListedMachine {
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

fn key(handle: &Handle) -> ZoneAndName {
    (handle.zone.clone(), handle.name.clone())
}

/// The effect of an operation of the cloud's own, as the predicate of a sentence about the instance; `None` if the machine
/// survived it.
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

/// Compute Engine preempts a spot instance, as its list says, too.
pub(super) const RECLAIMING: &str = "is being reclaimed by Compute Engine (spot)";
/// Maintenance of the host, in the list's words without a time.
pub(super) const MAINTENANCE: &str = "has host maintenance by Compute Engine";

/// The notice in the answers of the metadata server. The instance may have forged them: only what Compute Engine documents
/// counts, and none of their words is repeated. Maintenance that moves the instance while it runs is no notice.
pub(super) fn announced(answers: &MetadataAnswers) -> Option<&'static str> {
    let is = |key: &str, value: &str| answers.get(key).is_some_and(|answer| answer == value);
    if is("instance/preempted", "TRUE") {
        return Some(RECLAIMING);
    }
    is("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE").then_some(MAINTENANCE)
}

#[cfg(test)]
mod tests {
    use greenroom_core::metadata::MetadataService;
    use greenroom_testkit::clock::ManualClock;

    use super::*;
    use crate::cloud::machine::tests::machine as sample;

    const ZONE: &str = "us-east1-b";

    fn machine(name: &str, state: MachineState) -> Machine {
        let handle = Handle { name: name.to_owned(), zone: ZONE.to_owned() };
        Machine { handle, ..sample(name, state) }
    }

    fn list(all: Vec<Machine>) -> Machines {
        Machines { all, complete: true, location: None }
    }

    fn operation(kind: &str, name: &str) -> Operation {
        let target =
            format!("https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}/instances/{name}");
        let operation = Operation::new().set_operation_type(format!("{OWN}{kind}")).set_target_link(target);
        operation.set_end_time("2026-11-21T06:03:07.250-08:00")
    }

    struct EndingsFixture {
        clock: Rc<ManualClock>,
        endings: Endings,
    }

    impl EndingsFixture {
        fn new() -> Self {
            let clock = Rc::new(ManualClock::default());
            Self { endings: Endings::new(Rc::clone(&clock) as Rc<dyn Clock>), clock }
        }

        /// Makes one list: whether operations are listed, and the resulting machines.
        fn list(
            &self,
            all: Vec<Machine>,
            operations: &[Operation],
        ) -> (bool, Vec<(MachineState, Option<String>)>) {
            let mut machines = list(all);
            let zones = self.endings.update(&machines);
            for zone in &zones {
                self.endings.read_reasons(zone, operations);
            }
            self.endings.add_reasons(&mut machines);
            let reported = machines.all.into_iter().map(|machine| (machine.state, machine.why)).collect();
            (!zones.is_empty(), reported)
        }
    }

    #[test]
    fn a_reclaimed_machine_is_told_of_while_it_stops_and_for_a_while_after() {
        let stage = EndingsFixture::new();
        let preempted = [operation("preempted", "a")];
        assert_eq!(
            stage.list(vec![machine("a", MachineState::Running)], &preempted),
            (false, vec![(MachineState::Running, None)])
        );
        let why = Some("was reclaimed by Compute Engine at 14:03:07 UTC (spot)".to_owned());
        let stopping = stage.list(vec![machine("a", MachineState::Ending)], &preempted);
        assert_eq!(stopping, (true, vec![(MachineState::Ending, why.clone())]));
        assert_eq!(
            stage.list(Vec::new(), &[]),
            (false, vec![(MachineState::Gone, why.clone())]),
            "nobody is asked again"
        );
        stage.clock.pass(Duration::from_secs(599));
        assert_eq!(stage.list(Vec::new(), &[]), (false, vec![(MachineState::Gone, why)]));
        stage.clock.pass(Duration::from_secs(2));
        assert_eq!(stage.list(Vec::new(), &[]), (false, vec![]));
    }

    #[test]
    fn a_stopping_machine_has_a_notice_unless_greenroom_stops_it() {
        for (operations, requested, text) in [
            (vec![operation("preempted", "a")], false, Some("is being reclaimed by Compute Engine (spot)")),
            (vec![operation("guestTerminate", "a")], false, Some("is stopping")),
            (vec![], false, Some("is stopping")),
            (vec![], true, None),
        ] {
            let stage = EndingsFixture::new();
            stage.list(vec![machine("a", MachineState::Running)], &[]);
            if requested {
                stage.endings.expect_end(&machine("a", MachineState::Running).handle);
            }
            let mut machines = list(vec![machine("a", MachineState::Ending)]);
            for zone in stage.endings.update(&machines) {
                stage.endings.read_reasons(&zone, &operations);
            }
            stage.endings.add_reasons(&mut machines);
            let notice = machines.all[0].notice.clone();
            assert_eq!(notice.map(|notice| notice.text).as_deref(), text, "{operations:?}, {requested}");
        }
    }

    #[test]
    fn what_somebody_here_ended_or_what_never_had_a_place_is_no_question() {
        let stage = EndingsFixture::new();
        let both = || vec![machine("a", MachineState::Running), machine("b", MachineState::Accepted)];
        stage.list(both(), &[]);
        stage.endings.expect_end(&both()[0].handle);
        assert_eq!(stage.list(Vec::new(), &[operation("preempted", "a")]), (false, vec![]));
    }

    #[test]
    fn nobody_asks_for_ever_and_an_incomplete_look_ends_nothing() {
        let stage = EndingsFixture::new();
        stage.list(vec![machine("a", MachineState::Running)], &[]);
        let cut = Machines { all: Vec::new(), complete: false, location: None };
        assert!(stage.endings.update(&cut).is_empty() && stage.endings.has_machines(ZONE));
        for _ in 0..TRIES {
            assert_eq!(stage.list(Vec::new(), &[operation("preempted", "other")]), (true, vec![]));
        }
        assert_eq!(stage.list(Vec::new(), &[operation("preempted", "a")]), (false, vec![]));
        assert!(!stage.endings.has_machines(ZONE));
    }

    #[test]
    fn an_end_is_told_in_words_that_follow_its_name() {
        for (kind, reported) in [
            ("hostError", Some("was terminated by Compute Engine at 14:03:07 UTC (its host failed)")),
            ("guestTerminate", Some("shut itself down at 14:03:07 UTC")),
            ("somethingNew", Some("was terminated by Compute Engine at 14:03:07 UTC (somethingNew)")),
            ("migrateOnHostMaintenance", None),
            ("automaticRestart", None),
        ] {
            assert_eq!(why(&operation(kind, "a")).as_deref(), reported, "{kind}");
        }
        let life = why(&operation("terminateOnMaxRunDuration", "a")).unwrap();
        assert!(life.ends_with("it reached its maximum run duration"), "{life}");
    }

    #[test]
    fn what_compute_engine_documents_is_a_notice_and_all_else_is_none() {
        for (preempted, maintenance, expected) in [
            ("FALSE", "NONE", None),
            ("TRUE", "NONE", Some(RECLAIMING)),
            ("TRUE", "TERMINATE_ON_HOST_MAINTENANCE", Some(RECLAIMING)),
            ("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", Some(MAINTENANCE)),
            ("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", None),
            ("true", "terminate", None),
            ("", "", None),
        ] {
            let keys = MetadataService::Gce.keys().iter().map(|key| (*key).to_owned());
            let answers = keys.zip([preempted, maintenance].map(str::to_owned)).collect();
            assert_eq!(announced(&answers), expected, "{answers:?}");
        }
        assert_eq!(announced(&MetadataAnswers::new()), None);
    }
}
