//! A job that is prepared again: its newer attempt supersedes the older one, whose calls report that.

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::process::LiveCall;
use greenroom_testkit::gitlab_runner::record::CallRecord;
use rustix::process::Signal;

/// The call ended as a system failure, and its last line names a newer attempt as the cause.
#[track_caller]
fn expect_superseded(call: &CallRecord) {
    assert_eq!(call.exit_code(), Some(2), "{}", call.stderr_text());
    let stderr = call.stderr_text();
    let cause = "greenroom: system failure: a newer attempt of this job has superseded this one. ";
    assert!(stderr.lines().last().is_some_and(|last| last.starts_with(cause)), "{stderr}");
}

/// The newer attempt of the job, which waits for its instance.
fn start_next(older: &Attempt) -> (Attempt, LiveCall) {
    let newer = older.next();
    newer.config();
    let prepare = newer.start_prepare();
    (newer, prepare)
}

/// The newer attempt gets its instance and works on it.
#[track_caller]
fn expect_served(place: &Place, newer: &Attempt, prepare: &LiveCall) {
    let prepare = prepare.wait(SOON);
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    assert_eq!(newer.run("build_script", "true\n").exit_code(), Some(0), "the newer one is untouched");
    assert_eq!(newer.cleanup().exit_code(), Some(0));
    newer.remove_tmpdir();
    place.wait_until_quiet();
    place.expect_sound();
}

/// The older attempt's runner calls cleanup, as after any failure. That prints nothing.
#[track_caller]
fn clean_up(older: &Attempt) {
    let cleanup = older.cleanup();
    assert_eq!((cleanup.exit_code(), cleanup.stderr_text()), (Some(0), String::new()));
    older.remove_tmpdir();
}

#[test]
fn an_earlier_attempt_of_the_job_gives_way_and_cannot_come_back() {
    let place = Setting::new().pool("max_instances", 1).open();
    let older = place.prepared(1);
    assert_eq!(older.run("build_script", "true\n").exit_code(), Some(0));
    // Its runner lost contact, and GitLab assigned the job again.
    let (newer, prepare) = start_next(&older);
    prepare.wait(SOON);
    let late = older.run("after_script", "echo too late\n");
    expect_superseded(&late);
    assert_eq!(late.stdout_text(), "");
    expect_superseded(&older.prepare());
    clean_up(&older);
    expect_served(&place, &newer, &prepare);
}

#[test]
fn a_prepare_that_waits_for_an_instance_says_that_it_was_superseded() {
    let place = Setting::new().pool("max_instances", 1).open();
    let holder = place.prepared(1);
    let older = place.runner().attempt(&Job::new(2));
    older.config();
    let waits = older.start_prepare();
    waits.wait_for_output("all 1 instances in use", SOON);
    let (newer, prepare) = start_next(&older);
    expect_superseded(&waits.wait(SOON));
    clean_up(&older);
    assert_eq!(holder.cleanup().exit_code(), Some(0));
    expect_served(&place, &newer, &prepare);
}

#[test]
fn a_prepare_whose_instance_does_not_answer_yet_says_that_it_was_superseded() {
    let place = Setting::new().pool("max_instances", 1).pool("idle_count", 1).open();
    let instance = place.warm_up(1).remove(0);
    let server = place.server(&instance).expect("an idle instance has a server");
    server.signal(Signal::STOP);
    let older = place.runner().attempt(&Job::new(2));
    older.config();
    let asks = older.start_prepare();
    wait_for("the grant", SOON, || (!place.state().granted.is_empty()).then_some(()));
    let (newer, prepare) = start_next(&older);
    expect_superseded(&asks.wait(SOON));
    server.signal(Signal::CONT);
    clean_up(&older);
    expect_served(&place, &newer, &prepare);
}

#[test]
fn a_stage_that_runs_is_stopped_and_says_that_it_was_superseded() {
    let place = Setting::new().pool("max_instances", 1).open();
    let older = place.prepared(1);
    let runs = older.start_run("build_script", "echo begun; while :; do sleep 0.1; done\n");
    runs.wait_for_output("begun\n", SOON);
    let (newer, prepare) = start_next(&older);
    let stopped = runs.wait(SOON);
    expect_superseded(&stopped);
    assert!(!stopped.stderr_text().contains("the instance stays"), "{}", stopped.stderr_text());
    clean_up(&older);
    expect_served(&place, &newer, &prepare);
}
