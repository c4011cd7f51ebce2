//! One pool's trouble, or one attempt's, is its own: all others go on.

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::reconfigured::with_another;

/// The keeper's threads with this name.
fn threads(place: &Place, name: &str) -> usize {
    let keeper = place.of_kind(Kind::Keeper).pop().expect("a keeper runs");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", keeper.pid)).into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

#[test]
fn a_lock_that_one_pools_launch_waits_for_delays_no_other_pool() {
    let place = Setting::new().open();
    let service = place.keep();
    wait_for("the first pass", SOON, || {
        place.order(&["pool", "status"]).contains("policy: the default").then_some(())
    });
    // Another process that was stopped in the middle of a launch.
    let dir = place.state_dir.join("instances/other");
    std::fs::create_dir_all(&dir).expect("the pool's directory");
    let holder = std::fs::File::create(dir.join(".lock")).expect("the pool's lock file");
    holder.lock().expect("nobody holds it");
    with_another(&place, "");
    wait_for("a launch that waits", SOON, || (threads(&place, "flock") == 1).then_some(()));
    for id in 1..=2 {
        place.run(&Job::new(id)).expect_outcome(&Outcome::Success);
    }
    assert_eq!(threads(&place, "flock"), 1, "{}", service.log());
    drop(holder);
    wait_for("the other pool's instance", SOON, || {
        place.order(&["pool", "status", "other"]).contains("phases: 1 ready").then_some(())
    });
}

#[test]
fn an_attempt_with_a_damaged_file_fails_alone_and_keeps_its_instance() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    let grants = place.grants().len();
    let dirs = std::fs::read_dir(place.state_dir.join("attempts")).expect("attempts").flatten();
    for dir in dirs {
        std::fs::write(dir.path().join("job"), "{\"for").expect("the file can be damaged");
    }
    place.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    assert_eq!(place.grants().len(), grants + 1);
    // Long lines are wrapped.
    let status = place.order(&["pool", "status"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(status.contains("cannot be read") && status.contains("is damaged"), "{status}");
    let doctor = String::from_utf8_lossy(&place.greenroom(&["doctor"]).stdout).into_owned();
    assert!(doctor.contains("[attempts-unreadable]"), "{doctor}");
    let holds = place.state().instance(&instance).is_some_and(|held| !held.holders.is_empty());
    assert!(holds, "its slot is not free: {status}");
    let run = attempt.run("build_script", "echo never\n");
    let verdict = attempt.verdict(&run).expect_err("it has no file");
    assert_eq!(verdict.outcome(), Outcome::RunnerSystemFailure, "{}", run.stderr_text());
    assert!(run.stderr_text().contains("is damaged"), "{}", run.stderr_text());
    attempt.cleanup();
    // No script ran on its instance, which serves another job.
    place.wait_until_settled(1);
}

#[test]
fn a_report_that_cannot_be_read_replaces_no_cause_in_the_job_log() {
    let place = Setting::new().pool("max_instances", 1).open();
    let holder = place.prepared(1);
    place.let_jobs_wait_a_second();
    let report = place.state_dir.join("pools/pool/report.json");
    wait_for("a directory in the report's place", SOON, || {
        let _moved = std::fs::rename(&report, place.path().join("report"));
        std::fs::create_dir(&report).ok()
    });
    let result = place.run(&Job::new(2));
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let prepare = result.calls.iter().find(|call| call.name() == "prepare").expect("it was called");
    let log = prepare.stderr_text();
    assert!(log.contains("no instance within 1 s (`acquire_timeout`): all 1 instances in use"), "{log}");
    std::fs::remove_dir(&report).expect("the directory is empty");
    holder.cleanup();
    place.wait_until_settled(1);
}
