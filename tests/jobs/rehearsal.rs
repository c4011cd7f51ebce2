//! Faults on purpose: the effects on a job of provider `local`'s fault injection.

use greenroom_core::event::Change;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{CallRecord, Outcome};

fn lines(call: &CallRecord) -> Vec<String> {
    call.stderr_text().lines().map(str::to_owned).collect()
}

/// A key of the provider that is a table.
fn failing(class: &str, first: i64) -> toml::Table {
    toml::Table::from_iter([("class".to_owned(), class.into()), ("first".to_owned(), first.into())])
}

fn launches(place: &Place) -> usize {
    let intended = |change: &Change| matches!(change, Change::LaunchIntended { .. });
    place.events().iter().filter(|event| intended(&event.change)).count()
}

#[test]
fn a_pool_whose_launches_fail_pauses_and_tells_the_waiting_job_why_and_until_when() {
    let setting = Setting::new().provider("fail_launch", failing("transient", 5));
    // Longer than a poll interval, so that the pause is observed.
    let place = setting.timing("launch_backoff_max", "3s").open();
    let result = place.run(&Job::new(1));
    result.expect_outcome(&Outcome::Success);
    let log = lines(result.call("prepare"));
    let pause = "greenroom: waiting: the pool is paused after 5 failed launches in a row \
                 (last: transient error: injected by `fail_launch` (5 of 5)); next try in ";
    let pauses: Vec<_> = log.iter().filter_map(|line| line.strip_prefix(pause)).collect();
    assert!(matches!(pauses[..], [left] if left.ends_with('s')), "{log:?}");
    assert!(log.last().is_some_and(|line| line.ends_with("(booted on demand)")), "{log:?}");
    assert_eq!(launches(&place), 6, "five failed, and after the pause one more was made");
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn a_job_is_told_what_the_provider_refuses_and_served_as_soon_as_it_does_not() {
    for class in ["quota", "denied", "no-capacity", "throttled", "unknown"] {
        let place = Setting::new().provider("fail_launch", failing(class, 1)).open();
        place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
        assert_eq!(place.grants().len(), 1, "{class}");
        place.wait_until_settled(0);
        place.expect_sound();
    }
}

#[test]
fn a_job_waits_for_capacity_that_the_provider_lacks_and_reads_so() {
    // Refusals that last longer than a poll interval: a pause after five of them gives the same reason.
    let setting = Setting::new().timing("launch_backoff", "1s").timing("launch_backoff_max", "2s");
    let place = setting.provider("no_capacity", 1).open();
    let holder = place.prepared(1);
    let second = place.runner().attempt(&Job::new(2));
    second.config();
    let prepare = second.start_prepare();
    let refusal = "no capacity (no_capacity): 1 instances exist (no_capacity = 1)";
    prepare.wait_for_output(refusal, SOON);
    prepare.wait_for_output("; next try in ", SOON);
    assert_eq!(holder.run("build_script", "true\n").exit_code(), Some(0));
    assert_eq!(holder.cleanup().exit_code(), Some(0));
    let prepare = prepare.wait(SOON);
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    assert_eq!(second.cleanup().exit_code(), Some(0));
    for attempt in [&holder, &second] {
        attempt.remove_tmpdir();
    }
    place.expect_sound();
}

#[test]
fn a_slow_boot_is_told_step_by_step() {
    let setting = Setting::new().provider("boot_delay", "1s").pool("ready_command", "sleep 1");
    let place = setting.open();
    let result = place.run(&Job::new(1));
    result.expect_outcome(&Outcome::Success);
    let log = lines(result.call("prepare"));
    let at = |text: &str| log.iter().position(|line| line.contains(text));
    let steps = ["booting pool-", " launched after ", " reachable after ", " ready in "].map(at);
    assert!(steps.iter().all(Option::is_some) && steps.is_sorted(), "{log:?}");
    assert!(log.iter().all(|line| line.starts_with("greenroom: ")), "{log:?}");
}

/// Dies while its job's script runs, or before it could begin: both are the instance's fault.
#[test]
fn an_instance_that_dies_under_its_job_is_a_system_failure_in_one_sentence() {
    let place = Setting::new().provider("die_after", "4s").open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    let run = attempt.run("build_script", "while :; do sleep 0.1; done\n");
    // The link may not have seen whether the script had left a line open.
    let log: Vec<_> = lines(&run).into_iter().filter(|line| !line.is_empty()).collect();
    assert_eq!(run.exit_code(), Some(2), "{log:?}");
    let begin = format!("greenroom: system failure: instance {instance} ");
    assert!(matches!(&log[..], [only] if only.starts_with(&begin)), "{log:?}");
    assert!(log[0].ends_with("`retry: when: runner_system_failure` retries the job."), "{log:?}");
    let after = attempt.run("after_script", "true\n");
    assert_eq!(after.exit_code(), Some(2), "{}", after.stderr_text());
    assert_eq!(lines(&after).len(), 1, "{}", after.stderr_text());
    let cleanup = attempt.cleanup();
    assert_eq!((cleanup.exit_code(), cleanup.stderr_text().as_str()), (Some(0), ""));
    attempt.remove_tmpdir();
    place.wait_until_settled(0);
    place.expect_sound();
    // The same as a whole job.
    let result = place.run(&Job::new(2).script(["while :; do sleep 0.1; done"]));
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn an_instance_that_no_list_shows_yet_is_not_taken_for_gone() {
    let place = Setting::new().provider("list_lag", "3s").open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    // Long enough for several lists without it, `absence_interval` apart.
    assert_eq!(attempt.run("build_script", "sleep 1.5\n").exit_code(), Some(0));
    assert_eq!(place.instance_of(&attempt), instance);
    assert_eq!(launches(&place), 1);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.wait_until_settled(0);
    place.expect_sound();
}
