//! Kill -9 of each process that stands behind a machine: what its job reads, and what is left.

use greenroom_harness::processes::{Kind, Process, wait_for};
use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use super::{Machines, PATIENCE, expect_lost, machines};

/// Waits in its script for as long as it is let.
fn waiting(id: u64) -> Job {
    Job::new(id).script(["for i in $(seq 1000); do echo tick; sleep 0.2; done"])
}

/// A job in its script.
fn started(place: &Machines, id: u64) -> Handle {
    let handle = place.runner().start(&waiting(id));
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    handle
}

#[test]
fn a_job_whose_machine_is_killed_on_its_host_reads_so_and_the_pool_heals() {
    let place = Machines::open(machines().pool("max_instances", 1));
    let handle = started(&place, 1);
    let machine = place.grants()[0].1.clone();
    assert!(place.qemu(&machine).expect("it runs").kill9());
    let cause = "was killed on its host (QEMU was killed by signal 9)";
    expect_lost(&handle.finish(), &machine, cause);

    let handle = started(&place, 2);
    let machine = place.grants()[1].1.clone();
    let qemu = place.qemu(&machine).expect("it runs");
    assert!(place.server(&machine).expect("it is supervised").kill9());
    wait_for("QEMU goes with its supervisor", PATIENCE, || (!qemu.is_alive()).then_some(()));
    expect_lost(&handle.finish(), &machine, "was killed together with its supervisor");

    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
    place.expect_nothing_left(0);
}

#[test]
fn a_machine_that_dies_while_it_is_idle_costs_no_job() {
    let place = Machines::open(machines().pool("idle_count", 1));
    let [idle] = place.warm_up(1).try_into().expect("one idle machine");
    assert!(place.qemu(&idle).expect("it runs").kill9());
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    assert!(place.grants().iter().filter(|(job, _)| *job == 1).count() <= 2, "{:?}", place.grants());
    place.wait_until_idle(1);
    place.expect_nothing_left(1);
}

#[test]
fn a_keeper_killed_while_it_launches_loses_no_machine_and_no_job() {
    let place = Machines::with_own_images(machines());
    for (id, found) in [(1, 1), (2, 2), (3, 2)] {
        let handle = place.runner().start(&Job::new(id));
        // With the first directory, then with a machine half-way up.
        wait_for("a launch", PATIENCE, || (launched(&place) >= found).then_some(()));
        let keepers = place.of_kind(Kind::Keeper);
        assert!(keepers.iter().all(Process::kill9), "{keepers:?}");
        handle.finish().expect_outcome(&Outcome::Success);
        place.wait_until_settled(0);
    }
    place.expect_nothing_left(0);
}

/// The progress of the launch under way: one step for its directory, one for its machine.
fn launched(place: &Machines) -> usize {
    let dirs = super::entries(&place.pool_dir());
    usize::from(!dirs.is_empty()) + usize::from(!place.of_kind(Kind::Qemu).is_empty())
}

#[test]
fn a_killed_template_holder_is_missed_by_nobody() {
    let place = Machines::with_own_images(machines());
    // While it builds the template.
    let handle = place.runner().start(&Job::new(1));
    let holder = wait_for("a template under way", PATIENCE, || {
        let builds = !place.of_kind(Kind::Qemu).is_empty();
        place.of_kind(Kind::Holder).pop().filter(|_| builds)
    });
    assert!(holder.kill9());
    handle.finish().expect_outcome(&Outcome::Success);
    // While a clone runs.
    let handle = started(&place, 2);
    let holder = place.of_kind(Kind::Holder).pop().expect("it holds the memory of a clone that runs");
    assert!(holder.kill9());
    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
    let mut handle = handle;
    handle.cancel();
    handle.finish().expect_outcome(&Outcome::JobCanceled);
    place.expect_nothing_left(0);
}

#[test]
fn everything_killed_at_once_fails_the_jobs_as_ours_and_the_pool_heals() {
    let place = Machines::with_own_images(machines());
    let handles = [1, 2].map(|id| place.runner().start(&waiting(id)));
    for handle in &handles {
        handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    }
    for process in place.processes() {
        // One of them dies with another one.
        process.kill9();
    }
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::RunnerSystemFailure);
    }
    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
    place.expect_nothing_left(0);
}
