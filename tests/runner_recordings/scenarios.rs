//! Each recorded scenario, played by the harness and compared with its recording.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use greenroom_testkit::gitlab_runner::runner::Runner;
use greenroom_testkit::pace::Pace;

use crate::driver::Lab;
use crate::recording::{Recording, Seen, Span, directory, played};

/// Every scenario is played; one that could not be would be listed here with the reason.
const NOT_PLAYED: [(&str, &str); 0] = [];

/// A tenth of the recorded waits, and what a busy machine may add to one.
const SCALE: f64 = 0.1;
const SLACK: f64 = 3.0;
/// Clocks of two processes, and a sleep that is rounded.
const CLOCKS: f64 = 0.05;

/// Plays a scenario with one job and compares it; `during` is what happens to it from outside.
fn hold(scenario: &str, change: impl FnOnce(Runner, Job) -> (Runner, Job), during: impl FnOnce(&mut Handle)) {
    let (lab, recording) = (Lab::new(), Recording::read(scenario));
    let job = recording.job(recording.job_ids()[0], &lab);
    let (runner, job) = change(lab.runner(), job);
    let mut handle = runner.start(&job);
    during(&mut handle);
    let result = handle.finish();
    compare(&lab, &recording, &[result]);
}

/// A scenario that needs a runner which is a process of its own.
fn hold_own_process(
    scenario: &str,
    change: impl FnOnce(Runner, Job) -> (Runner, Job),
    during: impl FnOnce(&Handle),
) {
    let (lab, recording) = (Lab::new(), Recording::read(scenario));
    let job = recording.job(recording.job_ids()[0], &lab);
    let (runner, job) = change(lab.runner(), job);
    let handle = runner.start_in_own_process(&job);
    during(&handle);
    let result = handle.finish();
    wait_until_all_ended(&lab, &result);
    compare(&lab, &recording, &[result]);
}

/// Calls that lost their runner end by themselves; their last words are the driver's.
fn wait_until_all_ended(lab: &Lab, result: &JobResult) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while lab.sightings().iter().any(|sighting| sighting.get("end").is_none()) {
        assert!(Instant::now() < deadline, "a call never ended:\n{}", result.describe());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn compare(lab: &Lab, recording: &Recording, results: &[JobResult]) {
    let story: String = results.iter().map(JobResult::describe).collect();
    let outcomes: Vec<Outcome> = results.iter().map(|result| result.outcome.clone()).collect();
    assert_eq!(outcomes, recording.outcomes(), "what is reported\n{story}");
    let (seen, expected) = (played(lab), recording.seen());
    for job in recording.job_ids() {
        let of_job = |calls: &[(Seen, Span)]| -> Vec<(Seen, Span)> {
            calls.iter().filter(|(seen, _)| seen.job == job).cloned().collect()
        };
        let (seen, expected) = (of_job(&seen), of_job(&expected));
        let calls = |all: &[(Seen, Span)]| all.iter().map(|(seen, _)| seen.clone()).collect::<Vec<_>>();
        assert_eq!(calls(&seen), calls(&expected), "the calls of job {job}\n{story}");
        compare_gaps(&seen, &expected, &story);
    }
}

/// Compares the times between calls: the harness waits a tenth of the time that the real runner waited.
#[track_caller]
fn compare_gaps(seen: &[(Seen, Span)], expected: &[(Seen, Span)], story: &str) {
    let gap = |pair: &[(Seen, Span)]| Some(pair[1].1.began - pair[0].1.ended?);
    for (ours, real) in seen.windows(2).zip(expected.windows(2)) {
        let (Some(our_gap), Some(real_gap)) = (gap(ours), gap(real)) else { continue };
        let least = if real_gap > 1.0 { real_gap * SCALE - CLOCKS } else { 0.0 };
        let within = our_gap >= least && our_gap <= real_gap * SCALE + SLACK;
        assert!(within, "{our_gap:.3} s before {:?}, recorded {real_gap:.3} s\n{story}", ours[1].0);
    }
}

fn same(runner: Runner, job: Job) -> (Runner, Job) {
    (runner, job)
}

fn nothing(_: &mut Handle) {}

fn in_script(handle: &Handle) {
    handle.wait_for_stage("build_script").wait_for_output("tick 1", Duration::from_secs(30));
}

#[test]
fn every_recording_is_played_or_listed() {
    let source = include_str!("scenarios.rs");
    let files = std::fs::read_dir(directory().join("calls")).expect("the recordings can be listed");
    let names: BTreeSet<String> = files
        .map(|file| file.expect("an entry").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    assert!(!names.is_empty());
    for name in &names {
        let is_listed = NOT_PLAYED.iter().any(|(listed, _)| listed == name);
        assert!(is_listed || source.contains(&format!("\"{name}\"")), "{name} is neither played nor listed");
    }
    for (listed, reason) in NOT_PLAYED {
        assert!(names.contains(listed), "{listed} ({reason}) is no recording");
    }
}

#[test]
fn a_minimal_job_succeeds() {
    hold("success-minimal", same, nothing);
}

#[test]
fn a_job_with_sources_cache_and_artifacts_succeeds() {
    hold("success-full", same, nothing);
}

#[test]
fn a_script_that_fails_with_42_reports_42() {
    hold("script-fails-42", same, nothing);
}

#[test]
fn exit_1_without_a_code_file_reports_1() {
    hold("exit-1-without-file", same, nothing);
}

#[test]
fn a_code_file_with_a_blank_is_a_system_failure() {
    hold("exit-1-code-file-unreadable", same, nothing);
}

#[test]
fn exit_2_is_a_system_failure_and_after_script_still_runs() {
    hold("exit-2", same, nothing);
}

#[test]
fn any_other_exit_code_is_a_system_failure() {
    hold("exit-99", same, nothing);
}

#[test]
fn sources_are_tried_three_times_with_one_clearing() {
    hold("get-sources-fails-3", same, nothing);
}

#[test]
fn prepare_is_tried_three_times_with_a_cleanup_each() {
    hold("prepare-exit-2", same, nothing);
}

#[test]
fn prepare_that_exits_1_is_not_tried_again() {
    hold("prepare-exit-1", same, nothing);
}

#[test]
fn config_that_is_no_json_is_tried_three_times() {
    hold("config-not-json", same, nothing);
}

#[test]
fn a_cleanup_that_fails_changes_nothing() {
    hold("cleanup-exit-1", same, nothing);
}

#[test]
fn image_and_services_reach_the_driver() {
    hold("image-and-services", same, nothing);
}

#[test]
fn a_job_canceled_in_its_script_runs_its_after_script() {
    hold("cancel-in-script-canceling", same, |handle| {
        in_script(handle);
        handle.cancel();
    });
}

#[test]
fn a_job_aborted_in_its_script_is_only_cleaned_up() {
    hold("cancel-in-script-canceled", same, |handle| {
        in_script(handle);
        handle.abort();
    });
}

#[test]
fn a_job_canceled_in_prepare_is_only_cleaned_up() {
    hold("cancel-in-prepare", same, |handle| {
        handle.wait_for_log("preparing");
        handle.cancel();
    });
}

#[test]
fn a_job_out_of_time_in_its_script_is_only_cleaned_up() {
    hold("job-timeout-in-script", same, |handle| {
        in_script(handle);
        handle.job_timeout();
    });
}

#[test]
fn a_job_out_of_time_in_prepare_is_only_cleaned_up() {
    let time = Pace::watch().stretched(Duration::from_millis(1500));
    let short = |runner, job: Job| (runner, job.timeout(time));
    hold("job-timeout-in-prepare", short, nothing);
}

#[test]
fn a_script_out_of_time_runs_its_after_script() {
    let time = Pace::watch().stretched(Duration::from_secs(1));
    let short = |runner, job: Job| (runner, job.script_timeout(time));
    hold("runner-script-timeout", short, nothing);
}

#[test]
fn a_run_that_ignores_sigterm_is_killed_and_given_up() {
    // The script in its own session lives for 30 s; here it need not outlive the two kill timeouts by so much.
    let short = |runner: Runner, job: Job| {
        let runner = runner.with_kill_timeouts(Duration::from_millis(400), Duration::from_millis(200));
        (runner, job.script(["for i in $(seq 8); do echo tick $i; sleep 0.5; done"]))
    };
    hold("run-ignores-sigterm", short, |handle| {
        in_script(handle);
        handle.abort();
    });
}

#[test]
fn a_child_that_keeps_the_output_open_holds_the_runner_up() {
    // Recorded with 5 s; the wait must be a tenth of the recorded one.
    hold("background-child-keeps-stdout", |runner, job| (runner, job.variable("P_BG", "0.6")), nothing);
}

#[test]
fn two_jobs_of_one_project_get_the_same_directory() {
    let (lab, recording) = (Lab::new(), Recording::read("two-jobs-of-one-project"));
    let runner = lab.runner();
    let jobs: Vec<Job> = recording.job_ids().into_iter().map(|id| recording.job(id, &lab)).collect();
    let handles: Vec<Handle> = jobs.iter().map(|job| runner.start(job)).collect();
    let results: Vec<JobResult> = handles.into_iter().map(Handle::finish).collect();
    compare(&lab, &recording, &results);
}

#[test]
fn a_runner_told_to_stop_ends_the_script_and_cleans_up() {
    hold_own_process("runner-sigterm-in-script", same, |handle| {
        in_script(handle);
        handle.terminate_runner();
    });
}

#[test]
fn a_runner_told_to_stop_in_prepare_leaves_it_alone() {
    let short = |mut runner: Runner, job: Job| {
        runner.pace.shutdown = Duration::from_millis(500);
        (runner, job.variable("P_PREPSLEEP", "2"))
    };
    hold_own_process("runner-sigterm-in-prepare", short, |handle| {
        handle.wait_for_log("preparing");
        handle.terminate_runner();
    });
}

#[test]
fn a_runner_that_is_killed_leaves_the_call_alone_and_cleans_nothing_up() {
    hold_own_process("runner-sigkill-in-script", same, |handle| {
        in_script(handle);
        handle.kill_runner();
    });
}
