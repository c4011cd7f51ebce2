//! Kind: a program's list is complete and empty for a while, although the machines run. Idle machines and jobs stay, and nothing is
//! launched above the limit. Machines that are really gone are replaced.

#![cfg(test)]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use greenroom_core::event::Change;
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::DrainReason;
use greenroom_harness::place::{Place, Service};
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::fixture::program;
use crate::platform::Platform;

const PATIENCE: Duration = Duration::from_mins(1);
/// The words of the status and the log about three machines, of which a job holds one.
const DOUBTED: &str = "the provider's list lacks all 3 instances that were ready, but 2 of them answer: those are kept and not \
                       replaced until the list has them again or they no longer answer";

/// A pool of at most three machines, two of them idle. Fields are dropped in this order: the platform outlives the place.
struct Site {
    keeper: Option<Service>,
    place: Place,
    platform: Platform,
}

impl Site {
    fn new() -> Self {
        let platform = Platform::new();
        let path = |name: &str| platform.dir.path().join(name).display().to_string();
        let account = Command::new("id").arg("-un").output().expect("the name of this account");
        let account = String::from_utf8(account.stdout).expect("a plain name");
        let settings = toml::Table::from_iter([("platform".to_owned(), path("").into())]);
        let mut setting = Setting::new()
            .pool("idle_count", 2)
            .pool("max_use_count", 1)
            .pool("builds_dir", path("builds"))
            .pool("cache_dir", path("cache"))
            .provider("kind", "external")
            .provider("program", program("machines.sh").display().to_string())
            .provider("user", account.trim())
            .provider("settings", settings);
        setting.patience = PATIENCE;
        let place = setting.open();
        Self { keeper: Some(place.keep()), place, platform }
    }

    /// Waits until the pool has this many idle machines, which the list has.
    #[track_caller]
    fn wait_until_idle(&self, idle: usize) -> BTreeSet<InstanceId> {
        let idle = wait_for("idle machines", PATIENCE, || {
            let ready: BTreeSet<InstanceId> = self.place.idle().into_iter().collect();
            let state = self.place.state();
            (ready.len() == idle && ready.iter().all(|id| state.instances[id].missing.is_none()))
                .then_some(ready)
        });
        eprintln!("idle: {idle:?}");
        idle
    }

    /// The output of an operator's command, in one line.
    fn said(&self, command: &[&str]) -> String {
        let output = self.place.greenroom(command);
        String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Waits until the keeper has listed this many more times.
    fn wait_for_lists(&self, count: usize) {
        let lists =
            || std::fs::read_to_string(self.platform.dir.path().join("faults/empty")).map_or(0, |t| t.len());
        let until = lists() + count;
        wait_for("more lists", PATIENCE, || (lists() >= until).then_some(()));
    }

    /// The instances that were drained for this reason.
    fn drained(&self, is_it: impl Fn(&DrainReason) -> bool) -> BTreeSet<InstanceId> {
        let of = |change| match change {
            Change::DrainingBegun { instance, reason } if is_it(&reason) => Some(instance),
            _ => None,
        };
        self.place.events().into_iter().filter_map(|event| of(event.change)).collect()
    }

    /// The log of the keeper.
    fn log(&self) -> String {
        self.keeper.as_ref().expect("a keeper").log()
    }

    fn machines(&self) -> BTreeSet<String> {
        self.platform.remains().into_iter().collect()
    }
}

#[test]
fn a_list_that_loses_everything_for_a_while_costs_no_machine_and_no_job() {
    let site = Site::new();
    let before = site.wait_until_idle(2);
    let script =
        format!("echo runs; while [ ! -e '{}/go' ]; do sleep 0.05; done", site.place.path().display());
    let handle = site.place.runner().start(&Job::new(1).script([script]));
    handle.wait_for_log("runs");
    let idle = site.wait_until_idle(2);
    let machines = site.machines();
    assert_eq!(machines.len(), 3, "the pool is full: {machines:?}");

    site.platform.fault("empty", "");
    wait_for("the note", PATIENCE, || {
        let (status, log) = (site.said(&["pool", "status"]), site.log());
        (status.contains(DOUBTED) && log.contains(DOUBTED)).then_some(())
    });
    let doctor = site.said(&["doctor", "--json"]);
    assert!(doctor.contains("\"pool-list-implausible\""), "{doctor}");
    // Many times what proves an absence.
    site.wait_for_lists(30);
    assert_eq!(site.place.idle().into_iter().collect::<BTreeSet<_>>(), idle);
    assert_eq!(site.machines(), machines, "nothing is launched");

    // The job ends, and the list still lacks its machine: no call terminates it, and it takes its room.
    std::fs::write(site.place.path().join("go"), "").expect("a file");
    handle.finish().expect_outcome(&Outcome::Success);
    site.wait_for_lists(30);
    assert_eq!(site.place.idle().into_iter().collect::<BTreeSet<_>>(), idle);
    assert_eq!(site.machines(), machines, "nothing is launched or forgotten");
    assert_eq!(site.place.state().instances.len(), 3);
    // A job gets a machine that the list lacks.
    let handle = site.place.runner().start(&Job::new(2).script(["echo runs"]));
    handle.finish().expect_outcome(&Outcome::Success);
    assert_eq!(site.machines(), machines, "the pool is full");

    std::fs::remove_file(site.platform.dir.path().join("faults/empty")).expect("the fault");
    let after = site.wait_until_idle(2);
    wait_for("the end of the doubt", PATIENCE, || {
        let log = site.log();
        let over = log.contains("the provider's list no longer lacks every instance that answers");
        (over && !site.said(&["pool", "status"]).contains("lacks")).then_some(())
    });
    wait_for("the end of used machines", PATIENCE, || (site.platform.remains().len() == 2).then_some(()));
    assert!(after.iter().any(|id| idle.contains(id)), "{before:?}, {idle:?}, {after:?}");
    let lost = |reason: &DrainReason| {
        matches!(reason, DrainReason::Vanished | DrainReason::Unresponsive { .. } | DrainReason::Stopped)
    };
    assert_eq!(site.drained(lost), BTreeSet::new());
    let twice: Vec<_> = site.platform.made().into_iter().filter(|(_, count)| *count > 1).collect();
    assert_eq!(twice, [], "made twice");
    site.place.expect_sound();
}

/// A new keeper, and `reap` without one, have probed nothing yet.
#[test]
fn a_new_keeper_and_reap_probe_before_they_believe_an_empty_list() {
    let mut site = Site::new();
    let idle = site.wait_until_idle(2);
    site.platform.fault("empty", "");
    wait_for("the empty list", PATIENCE, || {
        site.place.state().instances.values().all(|i| i.missing.is_some()).then_some(())
    });
    site.keeper.take().expect("a keeper").kill();
    site.place.reap();
    site.keeper = Some(site.place.keep());
    site.wait_for_lists(10);
    assert_eq!(site.place.idle().into_iter().collect::<BTreeSet<_>>(), idle);
    std::fs::remove_file(site.platform.dir.path().join("faults/empty")).expect("the fault");
    assert_eq!(site.wait_until_idle(2), idle);
    site.place.expect_sound();
}

#[test]
fn machines_that_are_gone_with_the_whole_list_are_replaced() {
    let site = Site::new();
    let gone = site.wait_until_idle(2);
    site.platform.lose_all();
    let next = wait_for("other machines", PATIENCE, || {
        let idle: BTreeSet<InstanceId> = site.place.idle().into_iter().collect();
        (idle.len() == 2 && idle.is_disjoint(&gone)).then_some(idle)
    });
    wait_for("the records to go", PATIENCE, || {
        (!site.place.state().instances.keys().any(|id| gone.contains(id))).then_some(())
    });
    let machines: BTreeSet<String> = next.iter().map(ToString::to_string).collect();
    assert_eq!(site.platform.living(), machines);
    site.place.run(&Job::new(1).script(["true"])).expect_outcome(&Outcome::Success);
    site.place.expect_sound();
}
