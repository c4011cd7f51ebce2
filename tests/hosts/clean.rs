//! The remains of a job on a host: none.

use greenroom_core::instance::Phase;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::machine::{Hosts, Machine, Make, possible};

/// Starts processes in every way that a shell knows, none of which ends by itself or minds a TERM.
const LINGERERS: &str = "trap '' TERM; for how in '' setsid 'env -i' 'nohup'; do \
     $how sleep 1000 >/dev/null 2>&1 </dev/null & done";

#[track_caller]
fn expect_clean(host: &Machine) {
    let left =
        host.sh("ls -A /home/ci/builds /home/ci/cache /tmp; ls -A /home/ci/.greenroom; pgrep -a -x sleep");
    let dirs = "/home/ci/builds:\n\n/home/ci/cache:\n\n/tmp:\n";
    let without_cache = "/home/ci/builds:\n\n/tmp:\n";
    assert!(left == dirs || left == without_cache, "{}: {left}", host.name);
}

/// The reason for which a host went out of service.
fn set_aside(place: &Place) -> Option<String> {
    let state = place.state();
    state.instances.values().find_map(|i| match &i.phase {
        Phase::OutOfService { reason: why } => Some(why.clone()),
        _ => None,
    })
}

#[test]
fn a_job_runs_on_a_host_and_leaves_neither_files_nor_processes_there() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("linux-1")]);
    let place = hosts.setting().open();
    let job = Job::new(1).script([
        "echo \"user $(id -un), temporary $TMPDIR, in $PWD\"",
        "echo secret > secret; echo secret > \"$(mktemp)\"",
        "mkdir -p locked/in; touch locked/in/it; chmod -R a-w locked",
        LINGERERS,
    ]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(log.contains("user ci, temporary /home/ci/builds/0.tmp"), "{log}");
    place.wait_until_idle(1);
    expect_clean(&hosts.machines[0]);
    place.expect_sound();
}

#[test]
fn cleaning_needs_no_login_of_its_own() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make { config: "LogLevel VERBOSE", ..Make::named("linux-1") }]);
    let place = hosts.setting().open();
    for id in 1..4 {
        place.run(&Job::new(id).script(["echo secret > secret"])).expect_outcome(&Outcome::Success);
        place.wait_until_idle(1);
        expect_clean(&hosts.machines[0]);
    }
    assert_eq!(hosts.machines[0].sh("grep -c 'Accepted publickey' /mnt/log").trim(), "1");
    place.expect_sound();
}

#[test]
fn hosts_come_back_clean_when_the_runner_is_killed_in_the_middle_of_jobs() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a"), Make::named("b")]);
    let place = hosts.setting().open();
    let runner = place.runner();
    let script = ["echo \"$CI_JOB_TOKEN\" > \"$TMPDIR/token\"", LINGERERS, "echo here we go", "sleep 1000"];
    let handles: Vec<_> =
        (1..3).map(|id| runner.start_in_own_process(&Job::new(id).script(script))).collect();
    for handle in handles {
        handle.wait_for_log("here we go");
        handle.kill_runner();
        assert_eq!(handle.finish().outcome, Outcome::None);
    }
    place.wait_until_idle(2);
    for host in &hosts.machines {
        expect_clean(host);
    }
    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
    place.expect_sound();
}

#[test]
fn a_full_disk_is_the_jobs_own_doing_and_the_next_one_has_room() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make { disk: 150, ..Make::named("a") }]);
    let place = hosts.setting().open();
    let result = place.run(&Job::new(1).script(["dd if=/dev/zero of=big bs=1M"]));
    assert!(matches!(result.outcome, Outcome::ScriptFailure { .. }), "{:?}", result.outcome);
    place
        .run(&Job::new(2).script(["dd if=/dev/zero of=big bs=1M count=100"]))
        .expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    // Filled by somebody else: cleaning does not help, so it gets no further job.
    hosts.machines[0].sh("dd if=/dev/zero of=/home/other bs=1M count=100");
    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
    let why = wait_for("the host to be set aside", SOON, || set_aside(&place));
    assert!(
        why.starts_with("cleaning after job 3 of `g/demo` failed: exit status 1: only ")
            && why.contains("MiB are free"),
        "{why}"
    );
    let status = place.order(&["pool", "status"]);
    assert!(status.contains("pool resume pool --instance a"), "{status}");
    hosts.machines[0].sh("rm /home/other");
    place.order(&["pool", "resume", "--instance", "a"]);
    place.wait_until_idle(1);
    place.expect_sound();
}

#[test]
fn the_operators_command_comes_last_and_its_failure_sets_the_host_aside() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let command =
        "ls /home/ci/builds > /tmp/seen; [ ! -e /tmp/broken ] || { echo the printer is on fire; exit 3; }";
    let place = hosts.setting().pool("clean_command", command).open();
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    assert_eq!(hosts.machines[0].sh("cat /tmp/seen; touch /tmp/broken"), "", "the builds were gone by then");
    place.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    let why = wait_for("the host to be set aside", SOON, || set_aside(&place));
    assert_eq!(why, "cleaning after job 2 of `g/demo` failed: exit status 3: the printer is on fire");
    place.expect_sound();
}

#[test]
fn the_first_login_to_a_clean_host_may_take_as_long_as_a_jobs() {
    if !possible() {
        return;
    }
    // Longer than any limit of Greenroom's own for the start of a command.
    let hosts = Hosts::boot(&[Make { profile: "[ ! -e /run/slow ] || sleep 17\n", ..Make::named("a") }]);
    let place =
        hosts.cleaned_by("root").timing("connect_timeout", "1m").timing("launch_timeout", "2m").open();
    let handle = place.runner().start(&Job::new(1).script(["until [ -e /run/slow ]; do sleep 0.05; done"]));
    handle.wait_for_stage("build_script");
    hosts.machines[0].sh("touch /run/slow");
    handle.finish().expect_outcome(&Outcome::Success);
    let ready = |place: &Place| place.idle().len() == 1;
    wait_for("the host to be clean", SOON * 2, || {
        (ready(&place) || set_aside(&place).is_some()).then_some(())
    });
    assert_eq!(set_aside(&place), None);
    hosts.machines[0].sh("rm /run/slow");
    place.expect_sound();
}
