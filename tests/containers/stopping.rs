//! Jobs in containers that are stopped, and processes that are killed: nothing of the job runs on, and its files stay.

use std::time::Duration;

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::process::LiveCall;
use greenroom_testkit::gitlab_runner::record::{CallRecord, Outcome};
use rustix::process::Signal;
use serde_json::json;

use crate::engine::engine;
use crate::inside::Inside;
use crate::pool::{job, plain, setting};
use crate::site::site;

/// Arguments that no other process has.
const MARK: &str = "sleep 47.11";

/// Leaves a file, and is busy until it is stopped, with a child in the background and one in a session of its own.
const BUSY: &str = "echo left > /file; setsid sleep 47.11 & (while sleep 47.11; do :; done) & \
                    echo busy; while :; do sleep 0.1; done";

/// Hears no TERM.
const DEAF: &str =
    "trap '' TERM; echo left > /file; setsid sleep 47.11 & echo busy; while :; do sleep 0.1; done";

fn busy(id: u64, image: &str) -> Job {
    job(id, image).script([BUSY]).after_script(["cat /file"])
}

/// Prepared, with its sources.
fn begun(place: &Place, job: &Job) -> Attempt {
    let attempt = place.prepared_as(job);
    assert_eq!(attempt.run_stage("get_sources").exit_code(), Some(0));
    attempt
}

/// A job whose script runs and stays busy.
fn running(place: &Place, image: &str, script: &str) -> (Attempt, Inside, LiveCall) {
    let attempt = begun(place, &busy(1, image));
    let inside = Inside::of(place, &attempt);
    let run = attempt.start_run("build_script", script);
    run.wait_for_output("busy", SOON);
    inside.wait_for(place, MARK);
    (attempt, inside, run)
}

/// Checks that nothing of the script is left, and that the job's next stage finds its file.
#[track_caller]
fn expect_ended(place: &Place, attempt: &Attempt, inside: &Inside) {
    wait_for("the end of the script's processes", SOON, || inside.running(MARK).is_empty().then_some(()));
    expect_next(place, attempt, inside);
}

/// Checks that, when the job's next stage has begun, nothing of the script is left, and that the stage finds its file.
#[track_caller]
fn expect_next(place: &Place, attempt: &Attempt, inside: &Inside) {
    let after = attempt.run_stage("after_script");
    assert_eq!(after.exit_code(), Some(0), "{}", after.stderr_text());
    assert!(after.stdout_text().ends_with("left\n"), "{after:?}");
    assert!(inside.running(MARK).is_empty(), "{:?}", inside.running(MARK));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
pub fn a_stopped_script_leaves_no_process_and_its_files() {
    let Some(site) = site() else { return };
    for (image, script) in [("bash:1", BUSY), ("ash:1", BUSY), ("exec:1", BUSY), ("ash:1", DEAF)] {
        let place = setting(site).open();
        let (attempt, inside, run) = running(&place, image, script);
        run.signal_group(Signal::TERM);
        let run = run.wait(SOON);
        assert_eq!(run.exit_code(), Some(2), "{image}: {}", run.stderr_text());
        assert!(inside.running(MARK).is_empty(), "{image}: {:?}", inside.running(MARK));
        expect_ended(&place, &attempt, &inside);
    }
}

#[test]
pub fn a_cancelled_job_runs_its_after_script_in_its_container() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let mut handle = place.runner().start(&busy(1, "bash:1").service(json!({"name": plain("backend:1")})));
    handle.wait_for_stage("build_script").wait_for_output("\nbusy\n", SOON);
    handle.cancel();
    let result = handle.finish();
    result.expect_outcome(&Outcome::JobCanceled);
    assert!(result.call("after_script").stdout_text().ends_with("left\n"), "{}", result.describe());
    assert_eq!(result.calls.last().and_then(CallRecord::exit_code), Some(0), "{}", result.describe());
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn a_job_that_is_cancelled_at_any_time_gives_its_machine_back() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let runner = place.runner();
    let steps = ["prepare", "prepare_script", "get_sources", "build_script", "after_script"];
    for (id, step) in (1..).zip(steps) {
        let job = job(id, "big:1").script(["sleep 0.3"]).after_script(["sleep 0.3"]);
        let mut handle = runner.start(&job);
        let call =
            if step == "prepare" { handle.wait_for_nth("prepare", 1) } else { handle.wait_for_stage(step) };
        if step == "prepare" {
            call.wait_for_output("big:1", SOON);
        }
        handle.abort();
        let result = handle.finish();
        result.expect_outcome(&Outcome::JobCanceled);
        assert_eq!(result.calls.last().and_then(CallRecord::exit_code), Some(0), "{}", result.describe());
        place.wait_until_settled(0);
    }
    place.expect_sound();
}

#[test]
pub fn a_script_whose_run_is_killed_ends() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let (attempt, inside, run) = running(&place, "ash:1", BUSY);
    run.kill9();
    run.wait_exit(SOON);
    expect_ended(&place, &attempt, &inside);
}

#[test]
pub fn a_script_whose_link_is_killed_ends_without_another_stage() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let (attempt, inside, run) = running(&place, "ash:1", BUSY);
    for link in place.of_kind(Kind::Link) {
        link.kill9();
    }
    let run = run.wait(SOON);
    assert_eq!(run.exit_code(), Some(2), "{}", run.stderr_text());
    expect_ended(&place, &attempt, &inside);
}

#[test]
pub fn a_script_whose_link_and_run_are_killed_ends_although_nothing_connects_again() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let (attempt, inside, run) = running(&place, "ash:1", BUSY);
    for process in place.of_kind(Kind::Keeper).into_iter().chain(place.of_kind(Kind::Link)) {
        process.kill9();
    }
    run.kill9();
    run.wait_exit(SOON);
    expect_ended(&place, &attempt, &inside);
}

#[test]
fn a_job_whose_runner_is_killed_gives_its_machine_back() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let handle = place.runner().start_in_own_process(&busy(1, "ash:1"));
    handle.wait_for_stage("build_script").wait_for_output("\nbusy\n", SOON);
    handle.kill_runner();
    assert_eq!(handle.finish().outcome, Outcome::None);
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
pub fn a_container_that_is_killed_ends_its_stage_and_the_next_one_starts_it_again() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let (attempt, inside, run) = running(&place, "ash:1", BUSY);
    let engine = engine().program();
    inside.sh(&format!("{engine} kill $({engine} ps --quiet)"));
    let run = run.wait(SOON);
    assert_ne!(run.exit_code(), Some(0), "{}", run.stderr_text());
    assert!(run.took().is_some_and(|took| took < Duration::from_secs(20)), "{:?}", run.took());
    expect_ended(&place, &attempt, &inside);
}
