//! More jobs than machines, and kill -9 of any process of ours meanwhile.

use std::collections::BTreeSet;

use greenroom_harness::onslaught::Onslaught;
use greenroom_harness::processes::Kind;
use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use super::{Machines, PATIENCE, machines};

/// Jobs ask at once for two or three machines: all are served, each by one that no other job had.
#[test]
fn jobs_share_a_few_machines_and_each_has_one_to_itself() {
    let jobs = number("GREENROOM_VM_JOBS", 6);
    let machines_at_once = if jobs > 6 { 3 } else { 2 };
    let place = Machines::open(machines().pool("max_instances", machines_at_once));
    let mut runner = place.runner();
    runner.patience = PATIENCE * 4;
    let one = |id| Job::new(id).script(["cat /etc/machine-id", "[ ! -e /touched ]", "touch /touched"]);
    let handles: Vec<_> = (1..=jobs).map(|id| runner.start(&one(id))).collect();
    let mut texts = BTreeSet::new();
    for result in handles.into_iter().map(Handle::finish) {
        result.expect_outcome(&Outcome::Success);
        texts.insert(result.call("build_script").stdout_text());
    }
    assert_eq!(texts.len() as u64, jobs, "each its own machine id");
    let served: BTreeSet<_> = place.grants().into_iter().map(|(_, machine)| machine).collect();
    assert_eq!(served.len() as u64, jobs, "each its own machine");
    place.expect_nothing_left(0);
}

/// Jobs run two at a time while processes of ours are killed; nothing is leaked, nothing is lost, no script is blamed.
#[test]
fn whatever_is_killed_no_machine_is_leaked_and_no_script_is_blamed() {
    let place = Machines::with_own_images(machines().pool("idle_count", 1));
    let onslaught = Onslaught {
        test: "--test vm crowd",
        kills: 5,
        kinds: &[Kind::Call, Kind::Keeper, Kind::Instance, Kind::Link, Kind::Qemu, Kind::Holder],
        script: "sleep 1",
        blows: 2,
        pause: 500..5500,
        patience: PATIENCE,
    };
    let last = onslaught.on(&place);
    place.reap();
    place.run(&Job::new(last + 1)).expect_outcome(&Outcome::Success);
    place.expect_nothing_left(1);
}
