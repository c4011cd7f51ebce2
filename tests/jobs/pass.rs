//! Jobs that run to their end: sources, exit statuses, output, stages.

use std::time::Duration;

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::Kind;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{Exit, Outcome};
use greenroom_testkit::gitlab_runner::repository::repository;

#[test]
fn a_job_clones_its_sources_and_passes() {
    let place = Setting::new().open();
    let job = Job::new(1)
        .repository(&repository(place.path()))
        .script(["cat README.md", "echo produced > out.txt"])
        .after_script(["cat out.txt", "echo \"status $CI_JOB_STATUS\""])
        .cache("vendor/", "always")
        .artifact("out.txt", "on_success");
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    let names = [
        "config",
        "prepare",
        "prepare_script",
        "get_sources",
        "restore_cache",
        "build_script",
        "after_script",
        "archive_cache",
        "upload_artifacts_on_success",
        "cleanup_file_variables",
        "cleanup",
    ];
    assert_eq!(result.call_names(), names, "{}", result.describe());
    assert!(result.calls.iter().all(|call| call.exit_code() == Some(0)), "{}", result.describe());
    let text = |name: &str| result.call(name).stdout_text();
    assert!(text("prepare_script").contains("Running on "), "{}", result.describe());
    assert!(text("get_sources").contains("Checking out "), "{}", result.describe());
    assert!(text("build_script").contains("a demonstration"), "{}", result.describe());
    assert!(text("after_script").contains("produced\n"), "the same machine\n{}", result.describe());
    assert!(text("after_script").contains("status success"), "{}", result.describe());
    assert!(result.log_text().contains("Using Custom executor with driver greenroom"));
    assert_eq!(result.runner_log_text(), "", "cleanup has nothing to say");
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn a_script_that_fails_with_42_reports_42_and_its_after_script_runs() {
    let place = Setting::new().open();
    let job = Job::new(1)
        .script(["echo before", "exit 42"])
        .after_script(["echo \"status $CI_JOB_STATUS\""])
        .artifact("log", "on_failure");
    let result = place.run(&job);
    result.expect_outcome(&Outcome::ScriptFailure { exit_code: 42 });
    let script = result.call("build_script");
    assert_eq!(script.exit_code(), Some(1));
    assert_eq!(script.stderr_text(), "", "our own words have no place in a failed script's output");
    assert_eq!(result.call("after_script").exit_code(), Some(0), "{}", result.describe());
    assert_eq!(result.call("after_script").stale_exit_code.as_deref(), Some(&b"42\n"[..]));
    assert!(result.call("after_script").stdout_text().contains("status failed"));
    assert_eq!(result.call("upload_artifacts_on_failure").stale_exit_code, None, "`run` removes it first");
    place.wait_until_settled(0);
}

#[test]
fn every_exit_status_of_a_script_arrives_as_it_is() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    for code in [1, 2, 42, 126, 127, 128, 143, 254, 255] {
        let run = attempt.run("build_script", &format!("exit {code}\n"));
        let verdict = attempt.verdict(&run).expect_err("a failed script");
        assert_eq!(verdict.outcome(), Outcome::ScriptFailure { exit_code: code }, "{}", run.stderr_text());
        assert_eq!(run.stderr_text(), "", "{code}");
    }
    let passed = attempt.run("build_script", "exit 0\n");
    assert_eq!(attempt.verdict(&passed), Ok(()));
    assert!(!attempt.tmpdir.join("build_exit_code").exists(), "an earlier stage's code was left behind");
    let killed = attempt.run("build_script", "kill -9 $$\n");
    let verdict = attempt.verdict(&killed).expect_err("a killed script");
    assert_eq!(verdict.outcome(), Outcome::ScriptFailure { exit_code: 137 }, "{}", killed.stderr_text());
    assert_eq!(killed.stderr_text().lines().count(), 1, "{}", killed.stderr_text());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
fn standard_output_and_standard_error_stay_apart_and_whole() {
    let place = Setting::new().pool("separate_stderr", true).open();
    let attempt = place.prepared(1);
    let script = "printf 'out \\377\\0 no newline'; printf 'err \\033[31m\\r' >&2\n\
                  for i in $(seq 2000); do echo \"line $i\"; echo \"problem $i\" >&2; done\n";
    let run = attempt.run("build_script", script);
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr_text());
    let lines = |word: &str| (1..=2000).map(|i| format!("{word} {i}\n")).collect::<String>();
    let out = [b"out \xff\0 no newline".as_slice(), lines("line").as_bytes()].concat();
    let err = [b"err \x1b[31m\r".as_slice(), lines("problem").as_bytes()].concat();
    assert!(run.stdout == out, "{}", run.stdout_text());
    assert!(run.stderr == err, "{}", run.stderr_text());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
fn a_hundred_megabytes_of_log_arrive_byte_by_byte() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let line = "0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 abcdefghi\n";
    let (size, count) = (100_000_000, 100_000_000_usize.div_ceil(line.len()));
    let script = format!("yes '{}' | head -n {count}\n", line.trim_end());
    let run = attempt.start_run("build_script", &script).wait(Duration::from_mins(5));
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr_text());
    assert!(run.stdout.len() >= size, "{} bytes", run.stdout.len());
    assert!(run.stdout.chunks(line.len()).all(|chunk| chunk == line.as_bytes()), "the log is damaged");
    eprintln!("{} bytes of log in {:?}", run.stdout.len(), run.took());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
fn a_stage_that_nobody_knows_yet_is_run_like_any_other() {
    let place = Setting::new().open();
    let job = Job::new(1).step("Release", ["echo released"]).script(["true"]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    assert!(result.call("step_release").stdout_text().contains("released"));
    let attempt = place.prepared(2);
    let run = attempt.run("a stage of 2031, with blanks", "echo here\n");
    assert_eq!((run.exit_code(), run.stdout_text().as_str()), (Some(0), "here\n"), "{}", run.stderr_text());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
fn two_jobs_of_one_project_at_the_same_time_have_directories_of_their_own() {
    let place = Setting::new().open();
    // Each waits for the other, so both are certainly running at the same time.
    let meet = |mine: u64, other: u64| {
        let (mine, other) = (place.path().join(mine.to_string()), place.path().join(other.to_string()));
        format!(
            "touch {} ; for i in $(seq 600); do [ -e {} ] && break; sleep 0.05; done; [ -e {} ]; pwd; ls",
            mine.display(),
            other.display(),
            other.display()
        )
    };
    let script = |mine, other| [format!("echo {mine} > whose"), meet(mine, other), "cat whose".to_owned()];
    let runner = place.runner();
    let handles =
        [runner.start(&Job::new(1).script(script(1, 2))), runner.start(&Job::new(2).script(script(2, 1)))];
    let results = handles.map(greenroom_testkit::gitlab_runner::handle::Handle::finish);
    let directories = results.each_ref().map(|result| {
        result.expect_outcome(&Outcome::Success);
        result.call("build_script").ci_project_dir.clone()
    });
    assert_ne!(directories[0], directories[1]);
    for (result, own) in results.iter().zip(["1", "2"]) {
        let text = result.call("build_script").stdout_text();
        assert!(text.lines().any(|line| line == own), "{text}");
    }
    place.wait_until_settled(0);
}

#[test]
fn a_background_child_that_keeps_the_output_open_holds_nobody_up() {
    let place = Setting::new().open();
    let job = Job::new(1).script(["sleep 300 &", "echo \"child $!\""]).after_script(["echo after"]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    assert!(result.took < Duration::from_secs(30), "{}", result.describe());
    assert!(result.call("after_script").stdout_text().contains("after"));
    place.wait_until_settled(0);
    assert_eq!(place.of_kind(Kind::Guest), [], "it went with its instance");
}

#[test]
fn a_job_in_a_runner_process_of_its_own_passes_too() {
    let place = Setting::new().open();
    let result = place.runner().start_in_own_process(&Job::new(1).script(["echo here"])).finish_within(SOON);
    result.expect_outcome(&Outcome::Success);
    assert!(result.calls.iter().all(|call| call.exit == Some(Exit::Code(0))), "{}", result.describe());
    place.wait_until_settled(0);
}

#[test]
fn warm_and_on_demand_are_told_in_one_line() {
    let place: Place = Setting::new().pool("idle_count", 1).open();
    let [idle] = place.warm_up(1).try_into().expect("one idle instance");
    let result = place.run(&Job::new(1));
    result.expect_outcome(&Outcome::Success);
    let stderr = result.call("prepare").stderr_text();
    let start = format!("greenroom: instance {idle} ready in ");
    assert!(stderr.starts_with(&start) && stderr.ends_with(")\n"), "{stderr}");
    assert!(stderr.contains("(warm, idle for "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    eprintln!("warm prepare: {:?}; it said: {stderr}", result.call("prepare").took());
    place.wait_until_settled(1);
    let cold = Setting::new().provider("boot_delay", "300ms").open();
    let stderr = cold.run(&Job::new(1)).call("prepare").stderr_text();
    let last = stderr.lines().last().unwrap_or_default();
    assert!(stderr.lines().next().is_some_and(|line| line.starts_with("greenroom: ")), "{stderr}");
    assert!(stderr.contains("no idle instance in pool `pool`: booting pool-"), "{stderr}");
    assert!(
        last.starts_with("greenroom: instance pool-") && last.ends_with("(booted on demand)"),
        "{stderr}"
    );
}
