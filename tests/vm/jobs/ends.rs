//! Machines that end, or fill up, under a job: who is blamed, and in which words.

use greenroom_core::ids::InstanceId;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};

use super::{Machines, expect_lost, machines};

/// A job that ends its machine, and the machine.
fn end_by(place: &Machines, id: u64, script: &str) -> (JobResult, InstanceId) {
    let handle = place.runner().start(&Job::new(id).script([script]));
    handle.wait_for_stage("build_script");
    let machine = place.grants().pop().expect("it has a machine").1;
    (handle.finish(), machine)
}

#[test]
fn a_machine_that_its_job_ends_is_replaced_and_the_job_reads_how_it_ended() {
    let place = Machines::open(machines().pool("max_instances", 1));
    let ends = [
        ("poweroff -f; sleep 60", "shut itself down"),
        (
            "echo c > /proc/sysrq-trigger; sleep 60",
            "was stopped: its kernel panicked (sysrq triggered crash)",
        ),
        ("reboot -f; sleep 60", "rebooted, which terminates a virtual machine"),
    ];
    for (id, (script, cause)) in (1..).zip(ends) {
        let (result, machine) = end_by(&place, id, script);
        expect_lost(&result, &machine, cause);
        eprintln!("{cause}: known after {:?}", result.call("build_script").took());
    }
    place.run(&Job::new(9)).expect_outcome(&Outcome::Success);
    place.expect_nothing_left(0);
}

/// A keeper lists its machines when it has launched the one that follows, takes that list for the truth for a while,
/// and has no reason of its own to make a pass.
#[test]
fn a_keeper_that_has_just_looked_looks_again_for_a_job_that_lost_its_machine() {
    let setting = machines().pool("idle_count", 1).timing("list_interval", "8s");
    let place = Machines::open(setting.timing("lease_free_timeout", "10m").timing("pass_interval", "1m"));
    let keeper = place.keep();
    place.warm_up(1);
    let (result, machine) = end_by(&place, 1, "poweroff -f; sleep 60");
    expect_lost(&result, &machine, "shut itself down");
    place.expect_nothing_left(1);
    keeper.kill();
}

#[test]
fn a_full_disk_in_the_guest_is_the_scripts_own_failure() {
    let place = Machines::open(machines());
    // Blocks are taken without being written: this machine's own disk is left alone.
    let fill = "i=0; for size in 512M 16M 1M 64K 4K; do while fallocate -l $size /fill-$i 2>/dev/null; \
                do i=$((i+1)); done; done; df / | tail -1";
    let job = Job::new(1).script([fill, "echo more > more.txt"]).after_script(["echo after"]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
    let script = result.call("build_script");
    assert!(script.stdout_text().contains("No space left on device"), "{}", result.describe());
    assert_eq!(super::told(script), [""; 0], "{}", result.describe());
    assert!(result.call("after_script").stdout_text().contains("after"), "{}", result.describe());
    place.expect_nothing_left(0);
}
