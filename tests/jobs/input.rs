//! Invalid input: one clear sentence each, and nothing is lost.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::{Job, RawResponse};
use greenroom_testkit::gitlab_runner::record::Outcome;

/// A job under an invalid configuration is a system failure with the reason; once it is corrected, jobs run again.
#[test]
fn a_bad_configuration_is_named_in_the_jobs_log_and_nothing_is_lost() {
    for (bad, says) in [
        ("max_instances = 1\nidle_cuont = 1", "idle_cuont"),
        ("max_instances = \"many\"", "max_instances"),
        ("max_instances = -1", "max_instances"),
        ("max_instances = 1\n[pool.pool]\nmax_instances = 2", "pool"),
    ] {
        let place = Setting::new().open();
        let good = Setting::new().text(&place.path().join("state"));
        place.write_config(&format!("[pool.pool]\n{bad}\n[pool.pool.provider]\nkind = \"local\"\n"));
        let result = place.run(&Job::new(1));
        result.expect_outcome(&Outcome::RunnerSystemFailure);
        assert!(result.log_text().contains(says), "{bad}: {}", result.log_text());
        place.write_config(&good);
        place.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    }
}

#[test]
fn a_missing_or_broken_job_response_is_said_in_one_sentence() {
    let place = Setting::new().open();
    for (response, says) in [
        (RawResponse::Missing, "response"),
        (RawResponse::Bytes(b"{\"id\": 7, oops".to_vec()), "not valid JSON"),
    ] {
        let result = place.run(&Job::new(1).raw_response(response));
        result.expect_outcome(&Outcome::RunnerSystemFailure);
        assert!(result.log_text().contains(says), "{}", result.log_text());
    }
    place.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    place.expect_sound();
}

#[test]
fn a_variable_that_is_no_text_harms_nobody() {
    let place = Setting::new().open();
    let odd = OsString::from_vec(vec![b'x', 0xff, 0xfe]);
    let attempt = place.runner().with_env("CUSTOM_ENV_ODD", odd).attempt(&Job::new(1));
    attempt.config();
    assert_eq!(attempt.prepare().exit_code(), Some(0));
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
fn an_unknown_stage_is_run_like_any_other() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let run = attempt.run("step_never_heard_of", "echo here\n");
    assert_eq!((run.exit_code(), run.stdout_text().as_str()), (Some(0), "here\n"));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

/// A shell reads its script from a pipe byte by byte, a second for each few megabytes. So most of this one is input of
/// its first command, which reads it in blocks and compares it with the original.
#[test]
fn a_script_of_forty_megabytes_runs_to_its_end() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let lines: String = (0..500_000).map(|n| format!("# {n:078}\n")).collect();
    let original = place.path().join("original");
    std::fs::write(&original, &lines).expect("the original can be written");
    let original = original.display();
    let script = format!("head -c {} | cmp - '{original}' && echo whole\n{lines}echo the end\n", lines.len());
    let run = attempt.run("build_script", &script);
    assert_eq!(
        (run.exit_code(), run.stdout_text().as_str()),
        (Some(0), "whole\nthe end\n"),
        "{}",
        run.stderr_text()
    );
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}
