//! The keeper: killed, replaced, evicted, and never two.

use std::path::{Path, PathBuf};
use std::process::Command;

use greenroom_core::event::Change;
use greenroom_core::instance::Phase;
use greenroom_harness::driver;
use greenroom_harness::place::{Place, SOON, Service};
use greenroom_harness::processes::{Kind, Process, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::process::LiveCall;
use greenroom_testkit::gitlab_runner::record::Outcome;
use rustix::process::Signal;
use toml::Table;

/// Kills every keeper that is running; returns them.
fn kill_keepers(place: &Place) -> Vec<Process> {
    let keepers = place.of_kind(Kind::Keeper);
    for keeper in &keepers {
        keeper.kill9();
    }
    wait_for("their end", SOON, || (!keepers.iter().any(Process::is_alive)).then_some(()));
    keepers
}

/// The number of different instances that were ever launched.
fn launched(place: &Place) -> usize {
    let events = place.events();
    let instance = |change: &Change| match change {
        Change::LaunchIntended { instance, .. } => Some(instance.clone()),
        _ => None,
    };
    let instances: std::collections::BTreeSet<_> =
        events.iter().filter_map(|event| instance(&event.change)).collect();
    instances.len()
}

/// The waiting job is prepared, and only one instance was ever launched.
#[track_caller]
fn expect_one_launch(place: &Place, attempt: &Attempt, prepare: &LiveCall) {
    let prepare = prepare.wait(SOON);
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    assert_eq!(launched(place), 1);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    // No stage ran there, so the instance is unused.
    place.wait_until_settled(1);
    place.expect_sound();
}

/// Replaces the file under the same name by a copy from another process: a file that this process has open for writing
/// cannot be executed.
fn install(program: &Path) {
    let fresh = program.with_extension("new");
    let copied = Command::new("cp").arg(driver()).arg(&fresh).status().expect("cp runs");
    assert!(copied.success(), "{copied}");
    std::fs::rename(&fresh, program).expect("the program can be put in place");
}

fn installed(place: &Place) -> PathBuf {
    let program = place.path().join("bin/greenroom");
    std::fs::create_dir(place.path().join("bin")).expect("a directory for the program");
    install(&program);
    program
}

#[test]
fn a_keeper_killed_while_a_job_waits_is_followed_by_another_and_nothing_is_launched_twice() {
    let place = Setting::new().provider("boot_delay", "1s").open();
    let attempt = place.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.start_prepare();
    prepare.wait_for_output("booting", SOON);
    let killed = kill_keepers(&place);
    assert_eq!(killed.len(), 1, "{killed:?}");
    expect_one_launch(&place, &attempt, &prepare);
}

/// The answer of the first launch is lost and no list shows the instance: only a repeated call, with the same token,
/// helps.
#[test]
fn a_launch_that_a_dead_keeper_had_no_answer_to_is_repeated_by_the_next_one() {
    let lost = Table::from_iter([("class".into(), "unknown".into()), ("first".into(), 1.into())]);
    let setting = Setting::new().provider("fail_launch", lost).provider("list_lag", "5m");
    let place = setting.timing("launch_timeout", "10m").open();
    let attempt = place.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.start_prepare();
    let answered = |change: &Change| matches!(change, Change::LaunchAnswered { .. });
    wait_for("an answer", SOON, || place.events().iter().any(|e| answered(&e.change)).then_some(()));
    kill_keepers(&place);
    expect_one_launch(&place, &attempt, &prepare);
}

#[test]
fn a_keeper_killed_again_and_again_in_the_middle_of_launches_loses_no_job() {
    let place = Setting::new().provider("boot_delay", "300ms").open();
    let runner = place.runner();
    let handles: Vec<_> = (1..=6).map(|id| runner.start(&Job::new(id))).collect();
    for _ in 0..6 {
        wait_for("a keeper", SOON, || {
            let served = place.grants().len() == handles.len();
            (served || !kill_keepers(&place).is_empty()).then_some(())
        });
    }
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
    }
    place.wait_until_settled(0);
    place.expect_sound();
}

/// A job whose runner died, and a keeper that died with it: the next process finds the state that they left.
fn abandon(place: &Place) {
    let attempt = place.prepared(1);
    let run = attempt.run("build_script", "true\n");
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr_text());
    kill_keepers(place);
    attempt.remove_tmpdir();
    assert_eq!(place.state().granted.len(), 1, "nobody is there to end it");
}

#[test]
fn what_a_dead_keeper_left_is_repaired_by_the_next_prepare() {
    let place = Setting::new().pool("max_instances", 1).open();
    abandon(&place);
    place.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    assert_eq!(launched(&place), 2, "the first one was used, and made room");
    place.wait_until_settled(0);
    place.expect_sound();
}

#[test]
fn what_a_dead_keeper_left_is_repaired_by_reap() {
    let place = Setting::new().open();
    abandon(&place);
    // As cron calls it. The first time, it makes the passes itself.
    wait_for("peace", SOON, || {
        place.reap();
        let state = place.state();
        (state.granted.is_empty() && state.instances.is_empty()).then_some(())
    });
    place.wait_until_settled(0);
    place.expect_sound();
}

/// The drain is neither a call nor a waiting job: without a successor of the keeper, the launch would stay incomplete.
#[test]
fn a_drain_that_waits_starts_a_keeper_after_the_one_that_ended() {
    let place = Setting::new().pool("idle_count", 1).open();
    place.warm_up(1);
    kill_keepers(&place);
    // The killed keeper has not given up its lock yet.
    let dying = std::fs::File::open(place.state_dir.join("keeper.lock")).expect("the keeper's lock");
    dying.lock().expect("no keeper holds it");
    let mut drain = place.start(&["pool", "drain", "--wait"]);
    wait_for("the drain", SOON, || place.state().drained);
    drop(dying);
    let end = wait_for("the end of the drain", SOON, || drain.try_wait().expect("our child"));
    assert!(end.success(), "{end}");
    assert!(place.state().instances.is_empty());
}

#[test]
fn a_keeper_whose_executable_is_replaced_hands_its_work_to_the_new_one() {
    let place = Setting::new().pool("idle_count", 1).pool("max_instances", 2).open();
    let program = installed(&place);
    let attempt = place.runner_with(&program).attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    place.wait_until_idle(1);
    place.write_config(&place.setting.clone().provider("boot_delay", "5s").text(&place.state_dir));
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    let second = place.runner_with(&program).attempt(&Job::new(2));
    second.config();
    assert_eq!(second.prepare().exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    let booting = || place.state().instances.values().any(|i| i.phase == Phase::Launching && i.uses == 0);
    wait_for("a launch", SOON, || booting().then_some(()));
    install(&program);
    let message = "the executable was replaced: the new one takes over";
    wait_for("the hand-over", SOON, || place.log().contains(message).then_some(()));
    place.wait_until_idle(1);
    assert_eq!(place.of_kind(Kind::Call), []);
    assert_eq!(second.run("build_script", "true\n").exit_code(), Some(0));
    assert_eq!(second.cleanup().exit_code(), Some(0));
    for attempt in [&attempt, &second] {
        attempt.remove_tmpdir();
    }
    place.expect_sound();
}

#[test]
fn a_service_whose_executable_is_replaced_ends_and_leaves_the_start_to_its_supervisor() {
    let place = Setting::new().open();
    let program = installed(&place);
    let mut keeper = place.keep_with(&program);
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    install(&program);
    let (status, log) = (keeper.wait(), keeper.log());
    assert!(
        status.success() && log.contains("the executable was replaced: the new one takes over"),
        "{status} {log}"
    );
    place.run(&Job::new(2)).expect_outcome(&Outcome::Success);
}

#[test]
fn a_keeper_whose_state_directory_is_gone_says_so_and_leaves_without_bringing_it_back() {
    let place = Setting::new().provider("boot_delay", "30s").timing("launch_timeout", "5m").open();
    let attempt = place.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.start_prepare();
    prepare.wait_for_output("booting", SOON);
    let keepers = place.of_kind(Kind::Keeper);
    assert_eq!(keepers.len(), 1, "{keepers:?}");
    prepare.signal_group(Signal::KILL);
    prepare.wait(SOON);
    let away = place.path().join("moved");
    std::fs::rename(&place.state_dir, &away).expect("the directory can be moved");
    wait_for("the keeper's end", SOON, || (!keepers[0].is_alive()).then_some(()));
    let log = std::fs::read_to_string(away.join("keeper.log")).expect("its log");
    assert!(log.contains("was removed or replaced: the keeper exits"), "{log}");
    assert!(!place.state_dir.exists(), "it was brought back");
    // The instance checks its state directory itself, every 5 s.
    wait_for("the instance's end", SOON, || place.of_kind(Kind::Instance).is_empty().then_some(()));
}

#[test]
fn of_keepers_that_start_at_once_one_stays_and_jobs_start_no_other() {
    let place = Setting::new().timing("keeper_start_timeout", "2s").open();
    place.order(&["pool", "status"]);
    let mut services: Vec<_> = (0..5).map(|_| place.keep()).collect();
    let beaten = wait_for("all but one to leave", SOON, || {
        let ended: Vec<_> = services.iter_mut().filter_map(Service::ended).collect();
        (ended.len() == 4).then_some(ended)
    });
    assert!(beaten.iter().all(|status| status.code() == Some(2)), "{beaten:?}");
    let alone = place.of_kind(Kind::Keeper);
    assert_eq!(alone.len(), 1, "{alone:?}");
    let runner = place.runner();
    let handles: Vec<_> = (1..=4).map(|id| runner.start(&Job::new(id))).collect();
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
        assert_eq!(place.of_kind(Kind::Keeper), alone);
    }
    // Once killed, it is replaced by one that the next job starts, and by one only.
    alone[0].kill9();
    for service in &mut services {
        service.wait();
    }
    let handles: Vec<_> = (5..=8).map(|id| runner.start(&Job::new(id))).collect();
    let mut seen = std::collections::BTreeSet::new();
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
        seen.extend(place.of_kind(Kind::Keeper).iter().map(|keeper| keeper.pid));
    }
    let holders = std::fs::read_to_string(place.state_dir.join("keeper.log")).expect("its log");
    assert!(!holders.contains("ERROR"), "{holders}");
    place.wait_until_settled(0);
    place.expect_sound();
}

/// The keeper gets its state directory as an argument, and still uses the intervals of the file.
#[test]
fn a_keeper_that_a_job_started_takes_its_intervals_from_the_configuration() {
    let place = Setting::new().timing("half_made_retention", "1ms").open();
    let attempt = place.prepared(1);
    let half_made = place.state_dir.join("attempts/.half-made");
    std::fs::create_dir(&half_made).expect("a directory as a killed call leaves it");
    wait_for("its removal", SOON, || (!half_made.exists()).then_some(()));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.expect_sound();
}

/// An idle instance whose guest stops responding is found and replaced before a job gets it, and the reason is
/// recorded.
#[test]
fn an_idle_instance_that_stopped_answering_is_replaced_before_a_job_gets_it() {
    let setting = Setting::new().pool("idle_count", 1).timing("health_interval", "200ms");
    let place = setting.timing("connect_timeout", "1s").timing("probe_interval", "50ms").open();
    let keeper = place.keep();
    place.wait_until_idle(1);
    let silent = place.idle().remove(0);
    let server = place.server(&silent).expect("it runs");
    assert!(server.signal(Signal::STOP));
    let other = wait_for("another instance", SOON, || place.idle().into_iter().find(|id| *id != silent));
    let attempt = place.prepared(1);
    assert_eq!(place.instance_of(&attempt), other);
    let explained = place.order(&["explain", silent.as_str()]);
    assert!(explained.contains("stopped responding while idle"), "{explained}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    server.signal(Signal::CONT);
    keeper.kill();
}
