//! `prepare`: waiting, releasing, reporting reasons.

use std::time::Duration;

use greenroom_core::event::Change;
use greenroom_core::pool::PoolState;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::Kind;
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{CallRecord, Outcome};
use rustix::process::Signal;

/// Greenroom's lines: each a sentence for the job log.
fn lines(call: &CallRecord) -> Vec<String> {
    call.stderr_text().lines().map(str::to_owned).collect()
}

fn grants(place: &Place) -> usize {
    place.grants().len()
}

#[test]
fn prepare_called_again_for_an_attempt_changes_nothing() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    assert_eq!(attempt.prepare().exit_code(), Some(0));
    assert_eq!((grants(&place), place.instance_of(&attempt)), (1, instance));
    let second = place.runner().attempt(&Job::new(2));
    second.config();
    let both = [second.start_prepare(), second.start_prepare()].map(|prepare| prepare.wait(SOON));
    assert!(both.iter().all(|prepare| prepare.exit_code() == Some(0)), "{both:?}");
    assert_eq!(grants(&place), 2);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    assert_eq!(second.cleanup().exit_code(), Some(0));
    place.expect_sound();
}

#[test]
fn the_first_job_of_a_pool_whose_table_is_wrong_reads_what_is_wrong_with_it() {
    let place = Setting::new().provider("allow_rot", true).open();
    let attempt = place.runner().attempt(&Job::new(1));
    assert_eq!(attempt.config().exit_code(), Some(0));
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(2));
    let log = lines(&prepare);
    assert!(log[0].contains("`allow_rot`") && log[0].contains("`allow_root`"), "{log:?}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    place.expect_sound();
}

#[test]
fn a_broken_idle_instance_leaves_service_and_the_next_one_is_taken_in_the_same_call() {
    let place = Setting::new().pool("idle_count", 2).timing("list_interval", "1h").open();
    let mut idle = place.warm_up(2);
    // In the order of assignment: the instance that became ready last comes first.
    let state = place.state();
    idle.sort_by_key(|id| std::cmp::Reverse(state.instances[id].idle_since().uptime_ms));
    // RACE: a keeper that probes it before the job's request would replace it first.
    for keeper in place.of_kind(Kind::Keeper) {
        keeper.kill9();
    }
    let (broken, other) = (&idle[0], &idle[1]);
    assert!(place.server(broken).expect("an idle instance has a server").kill9());
    let attempt = place.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    let log = lines(&prepare);
    assert!(log[0].contains(&format!("{broken} does not respond (")), "{log:?}");
    assert!(log[0].ends_with("): trying another instance"), "{log:?}");
    let last = log.last().cloned().unwrap_or_default();
    assert!(last.starts_with(&format!("greenroom: instance {other} ready in ")), "{log:?}");
    assert!(last.contains("(warm, idle for "), "{log:?}");
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    let doubted = |change: &Change| match change {
        Change::BecameUnreachable { instance, .. } => instance == broken,
        _ => false,
    };
    assert!(place.events().iter().any(|event| doubted(&event.change)));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.wait_until_settled(2);
    place.expect_sound();
}

#[test]
fn when_every_idle_instance_is_broken_a_new_one_is_booted_in_the_same_call() {
    let place = Setting::new().pool("idle_count", 2).open();
    for instance in place.warm_up(2) {
        assert!(place.server(&instance).expect("an idle instance has a server").kill9());
    }
    let result = place.run(&Job::new(1));
    result.expect_outcome(&Outcome::Success);
    let log = lines(result.call("prepare"));
    assert!(log.last().is_some_and(|line| line.ends_with("(booted on demand)")), "{log:?}");
    place.wait_until_settled(2);
    place.expect_sound();
}

#[test]
fn sigterm_while_waiting_gives_the_place_back_and_exits_2() {
    let place = Setting::new().provider("boot_delay", "2s").pool("idle_time", "1s").open();
    let attempt = place.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.start_prepare();
    prepare.wait_for_output("booting", SOON);
    assert_eq!(place.state().waiting.len(), 1);
    prepare.signal_group(Signal::TERM);
    let prepare = prepare.wait(SOON);
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    let log = lines(&prepare);
    let last = log.last().cloned().unwrap_or_default();
    assert!(last.contains("stopped while waiting for an instance; the job holds no slot"), "{log:?}");
    let state = place.state();
    assert!(state.waiting.is_empty() && state.granted.is_empty(), "{state:#?}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    // The launch is finished, becomes surplus, and is drained.
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn sigterm_with_the_first_instruction_is_not_taken_for_success() {
    let place = Setting::new().pool("idle_count", 1).open();
    place.warm_up(1);
    for id in 1..=8 {
        let attempt = place.runner().attempt(&Job::new(id));
        attempt.config();
        let prepare = attempt.start_prepare();
        // Within the first milliseconds: before its handlers, or in the middle of a grant.
        std::thread::sleep(Duration::from_micros(id * 1500));
        if prepare.record().exited.is_none() {
            prepare.signal_group(Signal::TERM);
        }
        let prepare = prepare.wait(SOON);
        if prepare.exit_code() != Some(0) {
            assert_ne!(prepare.exit_code(), Some(1), "{}", prepare.stderr_text());
        }
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
        let state = place.state();
        assert!(state.waiting.is_empty() && state.granted.is_empty(), "{state:#?}");
    }
    place.expect_sound();
}

#[test]
fn each_reason_to_wait_is_told_once_and_in_order() {
    let place = Setting::new().pool("max_instances", 1).provider("boot_delay", "300ms").open();
    let first = place.prepared(1);
    let runner = place.runner();
    let waiting: Vec<_> = (2..=3).map(|id| runner.attempt(&Job::new(id))).collect();
    let calls: Vec<_> = waiting
        .iter()
        .map(|attempt| {
            attempt.config();
            let prepare = attempt.start_prepare();
            prepare.wait_for_output("all 1 instances in use, limit 1 (`max_instances`)", SOON);
            prepare
        })
        .collect();
    calls[1].wait_for_output("1 job ahead", SOON);
    assert_eq!(first.run("build_script", "true\n").exit_code(), Some(0));
    assert_eq!(first.cleanup().exit_code(), Some(0));
    first.remove_tmpdir();
    let second = calls[0].wait(SOON);
    assert_eq!(second.exit_code(), Some(0), "{}", second.stderr_text());
    let log = lines(&second);
    let at = |text: &str| log.iter().position(|line| line.contains(text));
    let order = [at("all 1 instances in use"), at("booting pool-"), at("ready in")];
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{log:?}");
    assert!(log.iter().all(|line| line.starts_with("greenroom: ")), "{log:?}");
    let mut once = log.clone();
    once.dedup();
    assert_eq!(once, log, "nothing is said twice");
    calls[1].wait_for_output("limit 1 (`max_instances`)\n", SOON);
    assert_eq!(waiting[0].run("build_script", "true\n").exit_code(), Some(0));
    assert_eq!(waiting[0].cleanup().exit_code(), Some(0));
    assert_eq!(calls[1].wait(SOON).exit_code(), Some(0));
    assert_eq!(waiting[1].cleanup().exit_code(), Some(0));
    let order: Vec<u64> = place.grants().into_iter().map(|(job, _)| job).collect();
    assert_eq!(order, [1, 2, 3], "first come, first served");
    place.expect_sound();
}

/// The time that a job had left of its `acquire_timeout` at each of its requests.
fn time_left(place: &Place, id: u64) -> Vec<Duration> {
    let (mut state, mut left) = (PoolState::default(), Vec::new());
    for event in place.events() {
        assert!(state.apply(&event).is_ok(), "{event:?}");
        if let Change::Requested { attempt, job, .. } = &event.change
            && job.key.id == id
        {
            left.push(state.waiting_for(attempt).expect("it waits").remaining_timeout);
        }
    }
    left
}

#[test]
fn a_wait_that_took_too_long_names_its_cause_and_is_not_started_again() {
    let place = Setting::new().pool("max_instances", 1).open();
    let holder = place.prepared(1);
    place.let_jobs_wait_a_second();
    let result = place.run(&Job::new(2));
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let prepares: Vec<&CallRecord> = result.calls.iter().filter(|call| call.name() == "prepare").collect();
    assert_eq!(prepares.len(), 3, "{}", result.describe());
    for prepare in &prepares {
        assert_eq!(prepare.exit_code(), Some(2), "{}", result.describe());
        let log = lines(prepare);
        let last = log.last().cloned().unwrap_or_default();
        assert!(last.starts_with("greenroom: system failure: no instance within "), "{log:?}");
        assert!(last.contains("all 1 instances in use, limit 1 (`max_instances`)"), "{log:?}");
    }
    let took = prepares[0].took().expect("it ended");
    assert!(took >= Duration::from_secs(1), "{}", result.describe());
    assert_eq!(
        time_left(&place, 2),
        [Duration::from_secs(1), Duration::ZERO, Duration::ZERO],
        "the time is the job's"
    );
    assert!(place.state().waiting.is_empty());
    assert_eq!(holder.cleanup().exit_code(), Some(0));
}

#[test]
fn a_job_that_waits_at_a_drained_pool_is_told_and_goes_on_when_it_is_resumed() {
    let place = Setting::new().pool("idle_count", 1).open();
    place.warm_up(1);
    place.order(&["pool", "drain", "--wait"]);
    place.wait_until_settled(0);
    let handle = place.runner().start(&Job::new(1));
    handle.wait_for_log("the operator drained the pool (`greenroom pool resume` resumes it)");
    assert!(place.state().instances.is_empty());
    place.order(&["pool", "resume"]);
    handle.finish().expect_outcome(&Outcome::Success);
    place.wait_until_settled(1);
    place.expect_sound();
}

#[test]
fn a_job_longer_than_any_instance_lives_fails_at_once_as_its_own_doing() {
    let place = Setting::new().pool("max_lifetime", "30m").open();
    let result = place.run(&Job::new(1));
    result.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
    assert_eq!(result.call_names(), ["config", "prepare", "cleanup"]);
    let log = lines(result.call("prepare"));
    assert_eq!(log.len(), 1, "{log:?}");
    for part in ["the job's timeout of 1h", "pool `pool`", "30m", "`max_lifetime`"] {
        assert!(log[0].contains(part), "{log:?}");
    }
    assert!(place.state().waiting.is_empty() && place.state().instances.is_empty());
    let result = place.run(&Job::new(2).timeout(Duration::from_mins(10)));
    result.expect_outcome(&Outcome::Success);
}

#[test]
fn jobs_are_served_in_the_order_in_which_they_came() {
    let place = Setting::new().pool("max_instances", 1).open();
    let runner = place.runner();
    let holder = place.prepared(1);
    let handles: Vec<_> = (2..=6)
        .map(|id| {
            let handle = runner.start(&Job::new(id));
            let requested = usize::try_from(id - 1).expect("small");
            wait_for("the request", SOON, || (place.state().waiting.len() == requested).then_some(()));
            handle
        })
        .collect();
    assert_eq!(holder.cleanup().exit_code(), Some(0));
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
    }
    let order: Vec<u64> = place.grants().into_iter().map(|(job, _)| job).collect();
    assert_eq!(order, [1, 2, 3, 4, 5, 6]);
}
