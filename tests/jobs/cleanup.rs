//! `cleanup`: at any time, any number of times, without delay.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_harness::driver;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::pace::Pace;

use crate::frozen::Frozen;

/// A `cleanup` call of this attempt with streams of the test's own.
fn call(place: &Place, attempt: &Attempt) -> Command {
    let mut command = Command::new(driver());
    command.arg("--config").arg(&place.config).arg("cleanup").env_clear().envs(attempt.environment());
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn cleanup_may_come_again_and_before_anything_was_made() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    for _ in 0..3 {
        let cleanup = attempt.cleanup();
        assert_eq!(cleanup.exit_code(), Some(0), "{}", cleanup.stderr_text());
        assert_eq!((cleanup.stdout_text(), cleanup.stderr_text()), (String::new(), String::new()));
    }
    place.wait_until_settled(0);
    // Without `config` (no job_env), without `prepare`.
    let early = place.runner().attempt(&Job::new(2));
    assert_eq!(early.cleanup().exit_code(), Some(0));
    assert_eq!(early.cleanup().exit_code(), Some(0));
    early.config();
    assert_eq!(early.cleanup().exit_code(), Some(0));
    let late = early.prepare();
    assert_eq!(late.exit_code(), Some(2), "a `prepare` that comes after its cleanup gets nothing");
    assert!(
        late.stderr_text().contains("`cleanup` has already ended this attempt"),
        "{}",
        late.stderr_text()
    );
    assert_eq!(place.grants().len(), 1);
    let run = early.run("build_script", "echo no\n");
    assert_eq!((run.exit_code(), run.stdout_text().as_str()), (Some(2), ""), "{}", run.stderr_text());
    place.expect_sound();
}

#[test]
fn cleanup_returns_before_a_slow_provider_has_done_anything() {
    let place = Setting::new().open();
    let (mut took, pace) = (Vec::new(), Pace::watch());
    for id in 1..=5 {
        let attempt = place.prepared(id);
        assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
        let server = place.server(&place.instance_of(&attempt)).expect("its server");
        let frozen = Frozen::with_keeper(&place, [server]);
        let cleanup = attempt.start_cleanup().wait(SOON);
        assert_eq!(cleanup.exit_code(), Some(0), "{}", cleanup.stderr_text());
        took.push(cleanup.took().expect("it ended"));
        drop(frozen);
        attempt.remove_tmpdir();
    }
    // What it waited for would be in each of them; what else runs on this machine is not.
    let bound = pace.stretched(Duration::from_millis(100));
    eprintln!("cleanup: {took:?}, one in {bound:?} at most");
    assert!(took.iter().any(|took| *took < bound), "{took:?}, at most {bound:?}");
    place.wait_until_settled(0);
}

#[test]
fn cleanup_does_without_its_temporary_directory() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    let mut cleanup = call(&place, &attempt);
    attempt.remove_tmpdir();
    let status = cleanup.status().expect("it starts");
    assert!(status.success(), "{status}");
    assert!(place.state().granted.is_empty());
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn cleanup_beside_a_living_run_ends_both() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let run = attempt.start_run("build_script", "trap '' TERM\necho up\nwhile :; do sleep 0.1; done\n");
    run.wait_for_output("up", SOON);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    // The attempt is over even for processes that have not noticed: the instance is terminated, and `run` with it.
    place.wait_until_settled(0);
    let run = run.wait(SOON);
    assert_eq!(run.exit_code(), Some(2), "{}", run.stderr_text());
    assert_eq!(run.stderr_text().lines().count(), 1, "{}", run.stderr_text());
    assert_eq!(place.of_kind(Kind::Guest), []);
    place.expect_sound();
}

#[test]
fn cleanup_beside_a_waiting_prepare_ends_both() {
    let place = Setting::new().provider("boot_delay", "2s").pool("idle_time", "1s").open();
    let attempt = place.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.start_prepare();
    prepare.wait_for_output("booting", SOON);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    let prepare = prepare.wait(SOON);
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    place.wait_until_settled(0);
    assert!(place.grants().is_empty());
    place.expect_sound();
}

#[test]
fn cleanup_ends_its_work_though_nobody_reads_what_it_says() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    // Pipes whose readers are gone, as when the runner dies.
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Stdio::from(OwnedFd::from(writer))
    };
    let mut cleanup = call(&place, &attempt);
    let status = cleanup.stdout(closed()).stderr(closed()).status().expect("it starts");
    assert!(status.success(), "{status}");
    // A call that has an error to report: its configuration is gone, and its state directory too.
    place.wait_until_settled(0);
    let other = place.runner().attempt(&Job::new(2));
    let mut cleanup = call(&place, &other);
    cleanup.arg("--pool").arg("no such pool").stdout(closed()).stderr(closed());
    let status = cleanup.status().expect("it starts");
    assert!(matches!(status.code(), Some(0 | 2)), "{status}");
}

#[test]
fn a_slot_that_no_job_has_used_reaches_the_next_job_without_a_keeper() {
    let place = Setting::new().pool("max_instances", 1).pool("max_use_count", 0).open();
    let first = place.prepared(1);
    let second = place.runner().attempt(&Job::new(2));
    second.config();
    let prepare = second.start_prepare();
    prepare.wait_for_output("in use", SOON);
    let frozen = Frozen::with_keeper(&place, []);
    let began = Instant::now();
    assert_eq!(first.cleanup().exit_code(), Some(0));
    let prepare = prepare.wait(SOON);
    let took = began.elapsed();
    drop(frozen);
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    eprintln!("from cleanup to the next job's instance: {took:?}");
    assert_eq!(second.cleanup().exit_code(), Some(0));
}

#[test]
fn a_job_whose_config_failed_is_cleaned_up_without_a_word() {
    let place = Setting::new().open();
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    place.write_config("state_dir = 7\n");
    let result = place.run(&Job::new(2));
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    assert_eq!(result.call_names(), ["config", "cleanup", "config", "cleanup", "config", "cleanup"]);
    place.write_config(&place.setting.text(&place.state_dir));
    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
    wait_for("peace", SOON, || place.state().granted.is_empty().then_some(()));
}
