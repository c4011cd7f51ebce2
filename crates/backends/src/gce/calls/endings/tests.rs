//! Ends of machines, as successive lists and operations show them.

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_testkit::clock::ManualClock;

use super::*;
use crate::cloud::machine::Addresses;

const ZONE: &str = "us-east1-b";

fn machine(name: &str, state: MachineState) -> Machine {
    let tags = Tags {
        pool: PoolName::new("linux"),
        owner: OwnerId::new("owner"),
        generation: Generation::new("c0ffee"),
        number: 1,
    };
    Machine {
        handle: Handle { name: name.to_owned(), zone: ZONE.to_owned() },
        instance: InstanceId::new(name),
        tags,
        token: None,
        disks: Vec::new(),
        state,
        created_ms: None,
        addresses: Addresses::default(),
        what: String::new(),
        why: None,
        by_job: false,
        refused: None,
        notice: None,
        metadata: None,
    }
}

fn list(all: Vec<Machine>) -> Machines {
    Machines { all, complete: true, location: None }
}

fn operation(kind: &str, name: &str) -> Operation {
    let target = format!("https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}/instances/{name}");
    let operation = Operation::new().set_operation_type(format!("{OWN}{kind}")).set_target_link(target);
    operation.set_end_time("2026-11-21T06:03:07.250-08:00")
}

struct Stage {
    clock: Rc<ManualClock>,
    endings: Endings,
}

impl Stage {
    fn new() -> Self {
        let clock = Rc::new(ManualClock::default());
        Self { endings: Endings::new(Rc::clone(&clock) as Rc<dyn Clock>), clock }
    }

    /// One list: whether operations are listed, and the resulting machines.
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
    let stage = Stage::new();
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
        let stage = Stage::new();
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
    let stage = Stage::new();
    let both = || vec![machine("a", MachineState::Running), machine("b", MachineState::Accepted)];
    stage.list(both(), &[]);
    stage.endings.expect_end(&both()[0].handle);
    assert_eq!(stage.list(Vec::new(), &[operation("preempted", "a")]), (false, vec![]));
}

#[test]
fn nobody_asks_for_ever_and_an_incomplete_look_ends_nothing() {
    let stage = Stage::new();
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
