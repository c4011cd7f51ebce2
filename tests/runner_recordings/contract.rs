//! The facts that the runner's source states and no recording shows: held here, so that the harness does not forget
//! them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use greenroom_testkit::gitlab_runner::job::{Job, RawResponse};
use greenroom_testkit::gitlab_runner::record::{Exit, JobResult, Outcome};
use greenroom_testkit::gitlab_runner::repository::repository;
use greenroom_testkit::pace::Pace;

use crate::driver::Lab;

const SYSTEM: Outcome = Outcome::RunnerSystemFailure;
const TIMEOUT: Outcome = Outcome::JobExecutionTimeout;
const FAILED: Outcome = Outcome::ScriptFailure { exit_code: 1 };

/// A job with everything that brings stages of its own.
fn full_job() -> Job {
    let job = Job::new(1).after_script(["echo after"]).step("Release", ["echo released"]);
    job.cache("c", "always").artifact("a", "always").dependency(7, "other")
}

/// Makes the driver fail in one stage.
fn failing(stage: &str, code: &str) -> Job {
    full_job().variable("P_RCSTAGE", stage).variable("P_RC", code)
}

#[track_caller]
fn hold(result: &JobResult, outcome: &Outcome, calls: &str) {
    let names = result.expect_outcome(outcome).call_names().join(" ");
    let expected: Vec<&str> = calls.split_whitespace().collect();
    assert_eq!(names, expected.join(" "), "\n{}", result.describe());
}

#[test]
fn all_stages_come_in_the_order_of_the_runner() {
    let result = Lab::new().runner().run(&full_job());
    let calls = "config prepare prepare_script get_sources restore_cache download_artifacts build_script \
                 step_release after_script archive_cache upload_artifacts_on_success cleanup_file_variables cleanup";
    hold(&result, &Outcome::Success, calls);
    assert_eq!(result.call("step_release").ci_job_status, "running");
    assert!(result.log_text().contains("released"), "{}", result.describe());
}

#[test]
fn a_failed_stage_before_the_script_skips_script_and_after_script() {
    let head = "config prepare prepare_script get_sources";
    let tail = "archive_cache_on_failure upload_artifacts_on_failure cleanup_file_variables cleanup";
    for (stage, between) in [
        ("get_sources", ""),
        ("restore_cache", "restore_cache"),
        ("download_artifacts", "restore_cache download_artifacts"),
    ] {
        let result = Lab::new().runner().run(&failing(stage, "B"));
        hold(&result, &FAILED, &format!("{head} {between} {tail}"));
        assert_eq!(result.call("cleanup").ci_job_status, "running");
    }
}

#[test]
fn a_failed_prepare_script_goes_straight_to_cleanup() {
    let result = Lab::new().runner().run(&failing("prepare_script", "S"));
    hold(&result, &SYSTEM, "config prepare prepare_script cleanup");
    assert!(result.log_text().contains("prepare environment"), "{}", result.describe());
}

#[test]
fn a_cache_that_cannot_be_saved_fails_the_job_but_not_its_artifacts() {
    let result = Lab::new().runner().run(&failing("archive_cache", "S"));
    assert_eq!(result.call("upload_artifacts_on_success").exit_code(), Some(0));
    result.expect_outcome(&SYSTEM);
}

#[test]
fn a_failed_upload_fails_a_job_whose_script_passed() {
    Lab::new().runner().run(&failing("upload_artifacts_on_success", "B")).expect_outcome(&FAILED);
}

#[test]
fn the_first_failed_step_ends_the_steps() {
    let result = Lab::new().runner().run(&failing("build_script", "B"));
    assert!(!result.call_names().contains(&"step_release"), "{}", result.describe());
    let result = Lab::new().runner().run(&failing("step_release", "B"));
    assert_eq!(result.expect_outcome(&FAILED).call("after_script").ci_job_status, "failed");
}

#[test]
fn a_failed_after_script_counts_only_where_the_job_says_so() {
    Lab::new().runner().run(&failing("after_script", "B")).expect_outcome(&Outcome::Success);
    let strict = failing("after_script", "B").variable("AFTER_SCRIPT_IGNORE_ERRORS", "false");
    Lab::new().runner().run(&strict).expect_outcome(&FAILED);
}

#[test]
fn a_sources_timeout_skips_even_the_removal_of_file_variables() {
    let lab = Lab::new();
    let mut runner = lab.runner();
    runner.get_sources_timeout = Some(Duration::from_millis(300));
    // The pause before the second attempt is longer than the timeout.
    let result = runner.run(&failing("get_sources", "B").get_sources_attempts(5));
    hold(&result, &TIMEOUT, "config prepare prepare_script get_sources cleanup");
}

#[test]
fn an_exec_timeout_of_prepare_leaves_the_verdict_to_its_exit_status() {
    let waiting = || Job::new(1).variable("P_PREPSLEEP", "60");
    let run = |job: &Job| {
        let lab = Lab::new();
        let mut runner = lab.runner();
        // By then it minds signals.
        let timeout = Pace::watch().stretched(Duration::from_millis(400));
        runner.prepare.as_mut().expect("the lab has a prepare").timeout = timeout;
        runner.run(job)
    };
    let cycle = "config prepare cleanup ";
    hold(&run(&waiting()), &SYSTEM, &cycle.repeat(3));
    hold(&run(&waiting().variable("P_TERMRC", "1")), &FAILED, cycle);
    let prepared = run(&waiting().variable("P_TERMRC", "0"));
    prepared.expect_outcome(&Outcome::Success);
    assert_eq!(prepared.call("prepare").signals.len(), 1, "{}", prepared.describe());
}

#[test]
fn exit_1_of_prepare_hides_the_timeout_that_caused_it() {
    let job = Job::new(1).variable("P_PREPSLEEP", "60").variable("P_TERMRC", "1");
    let lab = Lab::new();
    let mut handle = lab.runner().start(&job);
    handle.wait_for_log("preparing");
    handle.job_timeout();
    hold(&handle.finish(), &FAILED, "config prepare cleanup");
}

#[test]
fn cleanup_comes_beside_a_run_that_does_not_end() {
    let lab = Lab::new();
    let mut runner = lab.runner();
    runner.pace.run_end = Duration::from_millis(300);
    let job = Job::new(1).script(["echo begun; sleep 3"]).variable("P_IGNTERM", "1");
    let mut handle = runner.start(&job);
    let run = handle.wait_for_stage("build_script");
    run.wait_for_output("begun", Duration::from_secs(30));
    handle.job_timeout();
    let result = handle.finish();
    result.expect_outcome(&TIMEOUT);
    let left = result.call("build_script");
    assert!(left.is_running() && left.signals.len() == 1, "{}", result.describe());
    assert_eq!(result.call("cleanup").exit_code(), Some(0));
    assert!(result.runner_log_text().contains("Timed out waiting for the build to finish"));
    run.wait(Duration::from_secs(30));
}

#[test]
fn a_cancel_before_the_script_ends_the_whole_job_and_one_after_it_nothing() {
    let lab = Lab::new();
    let job = full_job().variable("P_RCSTAGE", "get_sources").variable("P_RC", "0").variable("P_BG", "1");
    let mut handle = lab.runner().start(&job);
    handle.wait_for_stage("get_sources");
    handle.cancel();
    hold(&handle.finish(), &Outcome::JobCanceled, "config prepare prepare_script get_sources cleanup");

    let lab = Lab::new();
    let mut handle = lab.runner().start(&full_job().after_script(["echo in after_script; sleep 0.5"]));
    handle.wait_for_log("in after_script");
    handle.cancel();
    handle.finish().expect_outcome(&Outcome::Success);
}

#[test]
fn the_numbers_of_a_finished_job_are_free_for_the_next() {
    let lab = Lab::new();
    let runner = lab.runner();
    for _ in 0..3 {
        runner.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    }
    let concurrent: Vec<String> =
        lab.sightings().iter().map(|seen| seen.fact("concurrent").to_owned()).collect();
    assert!(concurrent.iter().all(|number| number == "0"), "{concurrent:?}");
}

#[test]
fn a_job_that_shares_its_builds_directory_gets_a_directory_per_slot() {
    let config =
        r#"{"builds_dir": "/b", "cache_dir": "/c", "builds_dir_is_shared": true, "hostname": "vm-1"}"#;
    let lab = Lab::new();
    // Every stage but the first is answered by the driver: nothing is written below these directories.
    let result = lab.runner().run(&failing("get_sources", "S").raw("P_CONFIG", config));
    assert_eq!(result.call("prepare").ci_project_dir, "/b/lab-rec/0/g/demo");
    let attempt = lab.runner().attempt(&full_job().raw("P_CONFIG", config));
    attempt.config();
    let script = attempt.stage_script("prepare_script").expect("every job has this stage");
    assert!(script.contains("via vm-1"), "{script}");
}

#[test]
fn a_missing_builds_directory_is_a_configuration_error_and_not_tried_again() {
    let result = Lab::new().runner().run(&Job::new(1).raw("P_CONFIG", r#"{"builds_dir": ""}"#));
    hold(&result, &Outcome::RunnerConfigurationError, "config cleanup");
    let result = Lab::new().runner().run(&Job::new(1).raw("P_CONFIG", r#"{"shell": "fish"}"#));
    hold(&result, &SYSTEM, &"config cleanup ".repeat(3));
}

#[test]
fn a_variable_of_128_kib_keeps_every_call_from_starting() {
    let lab = Lab::new();
    let result = lab.runner().run(&Job::new(1).file("HUGE", "x".repeat(131_072)));
    hold(&result, &SYSTEM, &"config cleanup ".repeat(3));
    assert!(result.calls.iter().all(|call| matches!(call.exit, Some(Exit::NotStarted(_)))));
    assert!(lab.sightings().is_empty());
}

#[test]
fn the_job_response_can_be_missing_or_broken() {
    let lab = Lab::new();
    let job = Job::new(1).raw_response(RawResponse::Missing);
    assert!(!lab.runner().attempt(&job).tmpdir.join("response.json").exists());
    let job = job.raw_response(RawResponse::Bytes(b"{".to_vec()));
    let file = lab.runner().attempt(&job).tmpdir.join("response.json");
    assert_eq!(std::fs::read(file).expect("the file is there"), b"{");
}

#[test]
fn the_script_sees_the_sources_and_all_kinds_of_variables() {
    let lab = Lab::new();
    let bytes = OsStr::from_bytes(b"caf\xe9");
    let job = Job::new(1)
        .repository(&repository(lab.path()))
        .file("KUBECONFIG", "a: 'b'\n\tc\n")
        .variable("WHERE", "at $KUBECONFIG")
        .raw("RAW", "$WHERE `x` \\ '\"")
        .variable("BYTES", bytes)
        .script([
            "cat README.md",
            "echo \"[$WHERE] [$RAW]\"",
            "cat $KUBECONFIG",
            "printf $BYTES | od -An -tx1",
        ])
        .script_timeout(Duration::from_secs(20));
    let result = lab.runner().run(&job);
    let out = result.expect_outcome(&Outcome::Success).call("build_script").stdout_text();
    let temp = format!("{}/builds/g/demo.tmp/KUBECONFIG", lab.path().display());
    for expected in
        ["a demonstration", &format!("[at {temp}] [$WHERE `x` \\ '\"]"), "a: 'b'\n\tc\n", "63 61 66 e9"]
    {
        assert!(out.contains(expected), "{expected}\n{out}");
    }
    assert!(!std::path::Path::new(&temp).exists(), "file variables are removed at the end");
    // A second job of the project fetches into what is there.
    lab.runner().run(&job).expect_outcome(&Outcome::Success);
}
