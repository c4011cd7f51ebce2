//! Calls made by hand, and the runner as a process of its own: what the crash tests are built on.

use std::time::Duration;

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{Exit, Outcome};
use rustix::process::Signal;

use crate::driver::Lab;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn calls_can_be_made_one_at_a_time() {
    let lab = Lab::new();
    let attempt = lab.runner().attempt(&Job::new(1));
    assert_eq!(attempt.config().exit_code(), Some(0));
    assert_eq!(attempt.prepare().exit_code(), Some(0));
    assert_eq!(attempt.run_stage("get_sources").exit_code(), Some(0));
    let failed = attempt.run("any_stage", "echo to stdout; echo to stderr >&2; exit 7");
    assert_eq!(
        (failed.stdout_text().as_str(), failed.stderr_text().as_str()),
        ("to stdout\n", "to stderr\n")
    );
    let verdict = attempt.verdict(&failed).expect_err("exit 1");
    assert_eq!(verdict.outcome(), Outcome::ScriptFailure { exit_code: 7 });
    assert_eq!(attempt.cleanup().stale_exit_code.as_deref(), Some(&b"7\n"[..]));
    assert_eq!(attempt.cleanup().exit_code(), Some(0), "again, as the directory is still there");
    attempt.remove_tmpdir();
    let second = attempt.next();
    assert_ne!(second.tmpdir, attempt.tmpdir);
    second.config();
    let names: Vec<String> = lab.sightings().iter().map(|seen| seen.fact("call").to_owned()).collect();
    assert_eq!(names, ["config", "prepare", "run", "run", "cleanup", "cleanup", "config"]);
}

#[test]
fn a_call_can_be_signalled_and_killed_while_others_are_made() {
    let lab = Lab::new();
    let attempt = lab.runner().attempt(&Job::new(1).variable("P_PREPSLEEP", "60"));
    attempt.config();
    let prepare = attempt.start_prepare();
    prepare.wait_for_output("preparing", SOON);
    let run = attempt.start_run("build_script", "echo here; exec sleep 60");
    run.wait_for_output("here", SOON);
    prepare.signal(Signal::TERM);
    assert_eq!(prepare.wait(SOON).exit_code(), Some(2));
    run.kill9();
    assert_eq!(run.wait_exit(SOON).exit, Some(Exit::Signal(9)));
    assert!(run.record().ended.is_none(), "the script still holds the pipes");
    run.signal_group(Signal::KILL);
    run.wait(SOON);
}

#[test]
fn a_runner_in_its_own_process_is_the_parent_of_the_calls_and_takes_orders() {
    let lab = Lab::new();
    let script = "for i in $(seq 600); do echo tick $i; sleep 0.1; done";
    let job = Job::new(1).script([script]).after_script(["echo after"]);
    let mut handle = lab.runner().start_in_own_process(&job);
    let runner = handle.runner_pid().as_raw_nonzero().to_string();
    handle.wait_for_log("tick 1\n");
    handle.cancel();
    let result = handle.finish();
    result.expect_outcome(&Outcome::JobCanceled);
    assert_eq!(result.call("after_script").ci_job_status, "canceled");
    assert!(result.call("after_script").stdout_text().contains("after"), "{}", result.describe());
    assert!(lab.sightings().iter().all(|seen| seen.fact("parent") == runner));
}

#[test]
fn a_handle_that_is_dropped_leaves_no_call_behind() {
    let lab = Lab::new();
    let handle = lab.runner().start(&Job::new(1).script(["echo begun; sleep 60"]));
    let run = handle.wait_for_stage("build_script");
    run.wait_for_output("begun", SOON);
    drop(handle);
    assert_eq!(run.wait(SOON).exit, Some(Exit::Signal(9)));
}

#[test]
fn an_attempt_that_is_dropped_leaves_no_call_behind() {
    let lab = Lab::new();
    let attempt = lab.runner().attempt(&Job::new(1));
    let run = attempt.start_run("build_script", "echo begun; exec sleep 60");
    run.wait_for_output("begun", SOON);
    drop(attempt);
    assert_eq!(run.wait(SOON).exit, Some(Exit::Signal(9)));
}

#[test]
fn a_runner_in_a_thread_can_be_told_to_stop_as_well() {
    let lab = Lab::new();
    let mut runner = lab.runner();
    runner.pace.shutdown = Duration::from_millis(300);
    let handle = runner.start(&Job::new(1).variable("P_PREPSLEEP", "2"));
    let prepare = handle.wait_for_stage("prepare");
    handle.terminate_runner();
    let result = handle.finish();
    assert_eq!(result.expect_outcome(&Outcome::None).call_names(), ["config", "prepare"]);
    assert_eq!(prepare.wait(SOON).exit_code(), Some(0), "nobody signalled it");
}
