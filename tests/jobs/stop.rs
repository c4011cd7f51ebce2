//! Jobs that are stopped: cancelled, timed out, or abandoned by their runner.

use std::time::Duration;

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, Process, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{CallRecord, JobResult, Outcome};
use greenroom_testkit::pace::Pace;
use rustix::process::Signal;

/// Busy until it is stopped; sleeps in short pieces, with a child in the background.
const BUSY: &str =
    "echo \"home $HOME\"; (while :; do sleep 0.1; done) & while :; do echo tick; sleep 0.1; done";

fn busy(id: u64) -> Job {
    Job::new(id).script([BUSY]).after_script(["echo \"home $HOME\"", "echo \"status $CI_JOB_STATUS\""])
}

fn in_script(handle: &Handle) {
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", SOON); // not the echoed command
}

fn home(call: &CallRecord) -> String {
    let text = call.stdout_text();
    let line = text.lines().find(|line| line.starts_with("home "));
    line.unwrap_or_else(|| panic!("the script did not say where it is: {call:?}")).to_owned()
}

/// The stage was stopped and reported this, and the following stages ran on the same instance.
#[track_caller]
fn expect_stopped_and_kept(result: &JobResult, status: &str) {
    let script = result.call("build_script");
    assert_eq!(script.exit_code(), Some(2), "{}", result.describe());
    let message = "greenroom: the stage was stopped; the job keeps its instance for the remaining stages\n";
    assert!(script.stderr_text().ends_with(message), "{}", result.describe());
    let after = result.call("after_script");
    assert_eq!(home(after), home(script), "{}", result.describe());
    assert!(after.stdout_text().contains(&format!("status {status}")), "{}", result.describe());
    assert_eq!(result.calls.last().and_then(CallRecord::exit_code), Some(0), "{}", result.describe());
}

#[test]
fn a_job_cancelled_in_its_script_runs_its_after_script_on_the_same_instance() {
    let place = Setting::new().open();
    let mut handle = place.runner().start(&busy(1));
    in_script(&handle);
    handle.cancel();
    let result = handle.finish();
    result.expect_outcome(&Outcome::JobCanceled);
    expect_stopped_and_kept(&result, "canceled");
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn a_script_out_of_time_runs_its_after_script_on_the_same_instance() {
    let place = Setting::new().open();
    let mut handle = place.runner().start(&busy(1));
    in_script(&handle);
    handle.script_timeout();
    let result = handle.finish();
    expect_stopped_and_kept(&result, "timedout");
    place.wait_until_settled(0);
}

#[test]
fn a_job_out_of_time_or_aborted_in_its_script_is_stopped_and_cleaned_up() {
    let place = Setting::new().open();
    for (id, outcome) in [(1, Outcome::JobExecutionTimeout), (2, Outcome::JobCanceled)] {
        let mut handle = place.runner().start(&busy(id));
        in_script(&handle);
        if id == 1 {
            handle.job_timeout();
        } else {
            handle.abort();
        }
        let result = handle.finish();
        result.expect_outcome(&outcome);
        assert_eq!(result.call("build_script").exit_code(), Some(2), "{}", result.describe());
        assert_eq!(result.call("cleanup").exit_code(), Some(0), "{}", result.describe());
    }
    place.wait_until_settled(0);
    assert_eq!(place.of_kind(Kind::Guest), []);
    place.expect_sound();
}

#[test]
fn a_job_cancelled_or_out_of_time_in_prepare_leaves_nothing_behind() {
    let place = Setting::new().provider("boot_delay", "3s").pool("idle_time", "1s").open();
    let mut cancelled = place.runner().start(&Job::new(1));
    cancelled.wait_for_log("booting");
    cancelled.cancel();
    let mut late = place.runner().start(&Job::new(2));
    late.wait_for_log("booting");
    late.job_timeout();
    for (handle, outcome) in [(cancelled, Outcome::JobCanceled), (late, Outcome::JobExecutionTimeout)] {
        let result = handle.finish();
        result.expect_outcome(&outcome);
        assert_eq!(result.call_names(), ["config", "prepare", "cleanup"], "{}", result.describe());
        assert_eq!(result.call("prepare").exit_code(), Some(2), "{}", result.describe());
    }
    let state = place.state();
    assert!(state.waiting.is_empty() && state.granted.is_empty(), "{state:#?}");
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn what_a_stopped_stage_started_is_gone_when_run_returns() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    // One that ignores TERM, one that is stopped, one in the background of a background.
    let script = "(trap '' TERM; while :; do sleep 0.1; done) &\n(kill -STOP $BASHPID; sleep 300) &\n\
                  ( (while :; do sleep 0.1; done) & )\necho up\nwhile :; do sleep 0.1; done\n";
    let run = attempt.start_run("build_script", script);
    run.wait_for_output("up", SOON);
    assert!(place.of_kind(Kind::Guest).len() >= 4);
    run.signal_group(Signal::TERM);
    let run = run.wait(SOON);
    assert_eq!(run.exit_code(), Some(2), "{}", run.stderr_text());
    // The sweeper itself may take a moment longer.
    wait_for("the stage's session is gone", SOON, || place.left_by_jobs().is_empty().then_some(()));
    let after = attempt.run("after_script", "echo still here\n");
    assert_eq!((after.exit_code(), after.stdout_text().as_str()), (Some(0), "still here\n"));
    assert_eq!(place.instance_of(&attempt), instance);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

/// A stop of the runner's service waits for everything in its control group.
#[test]
fn a_keeper_in_a_service_that_stops_goes_with_the_last_job_though_instances_are_idle() {
    let place = Setting::new().pool("idle_count", 1).open();
    let attempt = place.prepared(1);
    place.wait_until_idle(1);
    let keeper = place.of_kind(Kind::Keeper).pop().expect("it watches over the idle instance");
    assert!(keeper.signal(Signal::QUIT));
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    assert!(keeper.is_alive(), "a job is still there");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    wait_for("the keeper's end", SOON, || (!keeper.is_alive()).then_some(()));
    // The next keeper continues.
    place.reap();
    place.wait_until_settled(1);
    place.expect_sound();
}

#[test]
fn the_signals_of_a_graceful_shutdown_do_not_stop_a_job() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let run = attempt.start_run("build_script", "echo up\nsleep 1\necho done\n");
    run.wait_for_output("up", SOON);
    let all = [Signal::HUP, Signal::INT, Signal::QUIT];
    let ours: Vec<Process> = place.processes().into_iter().filter(|p| p.kind <= Kind::Instance).collect();
    assert!(ours.len() >= 3, "a call, a keeper, an instance: {ours:?}");
    for process in &ours {
        for signal in &all {
            assert!(process.signal(*signal), "{process:?}");
        }
    }
    let run = run.wait(SOON);
    assert_eq!(
        (run.exit_code(), run.stdout_text().as_str()),
        (Some(0), "up\ndone\n"),
        "{}",
        run.stderr_text()
    );
    assert!(ours.iter().filter(|process| process.kind != Kind::Call).all(Process::is_alive));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

/// Checks the state after the runner is gone: the attempt has ended, the instance is gone, and nothing of the job is
/// left in TMPDIR.
#[track_caller]
fn expect_no_trace(place: &Place, result: &JobResult) {
    let tmpdir = result.calls[0].tmpdir.clone();
    wait_for("the end of the calls", SOON, || place.of_kind(Kind::Call).is_empty().then_some(()));
    wait_for("the end of the attempt", SOON, || {
        place.reap();
        let left: Vec<_> = std::fs::read_dir(&tmpdir).into_iter().flatten().flatten().collect();
        (place.state().granted.is_empty() && place.state().waiting.is_empty() && left.is_empty())
            .then_some(())
    });
    place.wait_until_settled(0);
    assert_eq!(place.of_kind(Kind::Guest), []);
    place.expect_sound();
}

#[test]
fn a_runner_killed_in_the_script_takes_the_job_and_its_secrets_with_it() {
    let place = Setting::new().open();
    let handle = place.runner().start_in_own_process(&busy(1).masked("SECRET", "in-the-dark"));
    in_script(&handle);
    handle.kill_runner();
    let result = handle.finish();
    result.expect_outcome(&Outcome::None);
    expect_no_trace(&place, &result);
}

#[test]
fn a_runner_killed_in_prepare_leaves_no_request_behind() {
    let place = Setting::new().provider("boot_delay", "2s").pool("idle_time", "1s").open();
    let handle = place.runner().start_in_own_process(&Job::new(1));
    handle.wait_for_log("booting");
    handle.kill_runner();
    let result = handle.finish();
    result.expect_outcome(&Outcome::None);
    expect_no_trace(&place, &result);
    assert!(place.grants().is_empty(), "nobody was there to take it");
}

#[test]
fn a_runner_killed_between_two_stages_is_noticed_by_the_next_pass() {
    let place = Setting::new().open();
    let runner = place.runner();
    // The stages are retried: between two tries of this one the runner waits, and no call is running.
    let mut runner = runner;
    runner.pace.stage_retry = Duration::from_mins(1);
    let mut job = Job::new(1).get_sources_attempts(2);
    job.repository = Some(place.path().join("nowhere.git"));
    let handle = runner.start_in_own_process(&job);
    handle.wait_for_stage("get_sources").wait(SOON);
    assert_eq!(place.state().granted.len(), 1);
    handle.kill_runner();
    let result = handle.finish();
    expect_no_trace(&place, &result);
}

#[test]
fn a_runner_told_to_stop_ends_the_script_and_a_prepare_that_outlives_it_gives_back() {
    let place = Setting::new().open();
    let handle = place.runner().start_in_own_process(&busy(1));
    in_script(&handle);
    handle.terminate_runner();
    let result = handle.finish();
    result.expect_outcome(&Outcome::RunnerInterrupted);
    assert_eq!(result.call("cleanup").exit_code(), Some(0), "{}", result.describe());
    place.wait_until_settled(0);
    let place = Setting::new().provider("boot_delay", "3s").pool("idle_time", "1s").open();
    let mut runner = place.runner();
    runner.pace.shutdown = Duration::from_millis(300);
    let handle = runner.start_in_own_process(&Job::new(2));
    handle.wait_for_log("booting");
    handle.terminate_runner();
    let result = handle.finish();
    expect_no_trace(&place, &result);
}

#[test]
fn a_job_whose_temporary_directory_is_gone_ends_without_a_cleanup() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    assert_eq!(attempt.run("build_script", "sleep 300 </dev/null >/dev/null 2>&1 &\n").exit_code(), Some(0));
    // The stage's shell may still be exiting.
    wait_for("the stage's session is gone", SOON, || (place.left_by_jobs().len() == 1).then_some(()));
    attempt.remove_tmpdir();
    place.reap();
    place.wait_until_settled(0);
    assert_eq!(place.of_kind(Kind::Guest), []);
    place.expect_sound();
}

#[test]
fn a_job_that_outlives_its_timeout_without_a_cleanup_is_ended() {
    let place = Setting::new().timing("job_timeout_grace", "1s").open();
    let attempt = place.prepared_as(&Job::new(1).timeout(Pace::watch().stretched(Duration::from_secs(1))));
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    // The keeper schedules the moment itself, without a wake-up.
    place.wait_until_settled(0);
    let late = attempt.run("after_script", "echo too late\n");
    assert_eq!((late.exit_code(), late.stdout_text().as_str()), (Some(2), ""), "{}", late.stderr_text());
    assert!(late.stderr_text().contains("ended"), "{}", late.stderr_text());
    assert_eq!(attempt.cleanup().exit_code(), Some(0), "too late as well, and no error");
}
