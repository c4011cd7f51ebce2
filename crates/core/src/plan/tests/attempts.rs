//! Attempts that are over, and what happens to their instances.

use std::sync::Arc;
use std::time::Duration;

use crate::attempt::{Closed, End, Presence};
use crate::event::Change;
use crate::notation::{NOW, World, ago, attempt, cleaned, does, render, table, world};
use crate::time::{BootId, ManagerId};

/// The plan after a change to the world of a line.
fn changed(text: &str, change: impl FnOnce(&mut World)) -> String {
    let mut world = world(text);
    change(&mut world);
    render(&world.plan())
}

#[test]
fn a_job_that_runs_is_left_alone() {
    table(does, &[("held 5m by 7", ""), ("held 74m by 7", ""), ("draining 5m by 7", "")]);
}

#[test]
fn an_attempt_whose_runner_is_gone_is_ended_by_whoever_gets_its_lease() {
    let ended = |change: fn(&mut crate::attempt::AttemptSeen)| changed("held 5m by 7", |w| change(w.seen(7)));
    assert_eq!(ended(|s| s.runner = Presence::Gone), "end attempt a7 (the runner is gone)");
    assert_eq!(ended(|s| s.tmpdir = Presence::Gone), "end attempt a7 (its temporary directory is gone)");
    assert_eq!(ended(|s| s.boot = crate::time::BootId(6)), "end attempt a7 (the runner host was rebooted)");
    assert_eq!(ended(|s| (s.runner, s.lease_held) = (Presence::Gone, true)), "");
    assert_eq!(does("held 75m by 7"), "end attempt a7 (it exceeded its job's timeout)");
}

/// The directories of another manager are not here: whatever its attempts look like, they go on.
#[test]
fn what_another_manager_has_recorded_is_not_judged() {
    let theirs = |text: &str, change: fn(&mut World)| {
        changed(text, |w| {
            w.observed.attempts.clear();
            w.observed.manager = ManagerId(2);
            change(w);
        })
    };
    assert_eq!(changed("held 5m by 7", |w| w.observed.attempts.clear()), "a7 leaves; check i1 between jobs");
    assert_eq!(theirs("held 5m by 7", |_| ()), "");
    assert_eq!(theirs("held 200h by 7", |_| ()), "", "nor its age");
    assert_eq!(theirs("max 1 | held 5m by 7; waits 8", |_| ()), "");
    assert_eq!(theirs("held 5m closing 7", |_| ()), "", "its call may still run");
    // One that was recorded without a manager is anybody's.
    let mut unknown = world("held 5m by 7");
    unknown.observed.attempts.clear();
    unknown.observed.manager = ManagerId(2);
    for grant in unknown.state.granted.values_mut() {
        Arc::make_mut(&mut grant.reservation).requested_at.manager = ManagerId(0);
    }
    assert_eq!(render(&unknown.plan()), "a7 leaves; check i1 between jobs");
}

#[test]
fn builds_that_outlived_their_attempt_are_removed_and_no_others() {
    let orphaned =
        |number| changed("held 5m by 7", |w| w.observed.orphaned_builds = [attempt(number)].into());
    assert_eq!(orphaned(9), "remove the directory of a9");
    assert_eq!(orphaned(7), "", "its attempt came meanwhile");
}

#[test]
fn an_attempt_that_holds_nothing_is_ended_only_when_nobody_is_at_it() {
    let idle = "static out-of-service 5m named 9";
    assert_eq!(changed(idle, |w| w.seen(9).runner = Presence::Gone), "end attempt a9 (the runner is gone)");
    let busy = |w: &mut World| (w.seen(9).begun, w.seen(9).lease_held) = (ago(Duration::from_hours(9)), true);
    assert_eq!(changed(idle, busy), "", "a call of it lives");
    let late = |w: &mut World| w.seen(9).begun = ago(Duration::from_hours(9));
    assert_eq!(changed(idle, late), "end attempt a9 (it exceeded its job's timeout)");
    let waits = |w: &mut World| w.seen(8).begun = ago(Duration::from_hours(9));
    assert_eq!(changed("max 0 | waits 8 dead", waits), "drop the request of a8", "not ended as well");
}

#[test]
fn an_attempt_that_cannot_be_read_keeps_its_instance_until_its_record_says_that_it_is_over() {
    let unreadable = |s: &mut crate::attempt::AttemptSeen| {
        s.job = None;
        s.unreadable = Some("`job` is damaged".to_owned());
        s.runner = Presence::Unknown;
        s.tmpdir = Presence::Unknown;
        s.begun = s.lease_at;
    };
    let with = |text: &str, change: fn(&mut crate::attempt::AttemptSeen)| {
        changed(text, |w| {
            unreadable(w.seen(7));
            w.seen(7).lease_at = ago(Duration::from_mins(1));
            change(w.seen(7));
        })
    };
    assert_eq!(with("held 5m by 7", |s| s.lease_held = true), "");
    assert_eq!(with("held 5m by 7", |_| ()), "", "between two stages");
    let unused = |s: &mut crate::attempt::AttemptSeen| s.lease_at = ago(Duration::from_mins(10));
    assert_eq!(with("held 20m by 7", unused), "end attempt a7 (unused for too long)");
    let by_record = "end attempt a7 (it exceeded its job's timeout)";
    assert_eq!(with("held 75m by 7", |s| s.lease_held = true), by_record, "by the request");
    assert_eq!(
        with("static out-of-service 5m named 7", |s| s.lease_held = true),
        "",
        "no record knows its timeout"
    );
    let notes = |text: &str| {
        let mut world = world(text);
        unreadable(world.seen(7));
        world.plan().report.notes.len()
    };
    assert_eq!(notes("held 5m by 7"), 1);
    assert_eq!(notes("static out-of-service 5m named 7"), 0, "it may belong to any pool");
}

#[test]
fn an_attempt_that_cannot_be_read_is_as_old_as_its_request() {
    let unreadable = |text: &str, requested_in: BootId| {
        changed(text, |w| {
            let seen = w.seen(7);
            seen.job = None;
            seen.unreadable = Some("`job` is damaged".to_owned());
            seen.begun = NOW;
            seen.lease_at = NOW;
            seen.lease_held = false;
            let grant = w.state.granted.get_mut(&attempt(7)).expect("it has a grant");
            Arc::make_mut(&mut grant.reservation).requested_at.boot = requested_in;
        })
    };
    assert_eq!(unreadable("held 5m by 7", NOW.boot), "");
    assert_eq!(unreadable("held 75m by 7", NOW.boot), "end attempt a7 (it exceeded its job's timeout)");
    assert_eq!(unreadable("held 5m by 7", BootId(6)), "end attempt a7 (the runner host was rebooted)");
}

#[test]
fn a_mark_that_stands_releases_what_the_dead_cleanup_did_not() {
    let closed = |change: fn(&mut crate::attempt::AttemptSeen)| {
        changed("uses 2 | held 5m by 7", |w| {
            w.seen(7).closed = Some(cleaned(ago(Duration::from_secs(1))));
            change(w.seen(7));
        })
    };
    assert_eq!(closed(|_| ()), "a7 leaves; check i1 between jobs");
    assert_eq!(closed(|s| s.used = false), "a7 leaves unused");
    assert_eq!(closed(|s| s.lease_held = true), "a7 lingers");
    // Its `cleanup` holds it, and is about to commit how the attempt ended.
    assert_eq!(
        closed(|s| (s.lease_held, s.closed) = (true, Some(cleaned(ago(Duration::from_millis(999)))))),
        ""
    );
    let last = |w: &mut World| w.seen(7).closed = Some(cleaned(NOW));
    let used_up = changed("uses 1 | held 5m by 7 uses 0", last);
    assert_eq!(used_up, "a7 leaves; i1 drains: usedup; terminate i1");
    assert_eq!(changed("static held 5m by 7", last), "a7 leaves; h1 to clean; clean h1");
}

#[test]
fn a_pass_that_goes_on_for_a_dead_call_records_why_the_attempt_was_closed() {
    for (text, job) in [("uses 2 | held 5m by 7", 7), ("max 0 | waits 8", 8)] {
        for how in [End::CleanedUp, End::Superseded, End::RunnerGone] {
            let mut world = world(text);
            let seen = world.seen(job);
            seen.closed = Some(Closed::new(ago(Duration::from_secs(1)), how));
            seen.lease_held = false;
            let recorded = world.plan().events.iter().find_map(|event| {
                if let Change::Released { release, .. } = &event.change {
                    return Some(release.how);
                }
                if let Change::Withdrawn { how, .. } = &event.change { Some(*how) } else { None }
            });
            assert_eq!(recorded, Some(how), "{text}");
        }
    }
}

#[test]
fn a_freed_slot_is_checked_for_the_next_job_in_the_same_pass() {
    let closed = |w: &mut World| w.seen(7).closed = Some(cleaned(NOW));
    assert_eq!(changed("max 1 | held 5m by 7; waits 8", closed), "a7 leaves; check i1 between jobs");
}

#[test]
fn an_attempt_without_a_directory_is_over_unless_it_came_after_the_look() {
    let lost = |text: &str| {
        changed(text, |w| {
            w.observed.attempts.clear();
            w.observed.attempts_at = ago(Duration::from_secs(30));
        })
    };
    assert_eq!(lost("max 1 | held 5m by 7"), "a7 leaves; check i1 between jobs");
    assert_eq!(lost("max 1 | held 29s by 7"), "");
    assert_eq!(lost("max 1 | held 30s by 7"), "");
    assert_eq!(lost("max 0 | waits 8 5m"), "a8 withdrawn");
    assert_eq!(lost("max 0 | waits 8 29s"), "");
    let old = "a7 leaves; i1 drains: rebooted; terminate i1";
    assert_eq!(lost("max 1 | held 29s by 7 old"), old, "requested in an earlier boot");
    // Names before, between and after the existing ones.
    let some =
        |w: &mut World| w.observed.attempts.retain(|name, _| *name == attempt(3) || *name == attempt(5));
    let left = changed("max 5 | held 5m by 2; held 5m by 3; held 5m by 4; held 5m by 5; held 5m by 6", some);
    let checks = "check i1 between jobs; check i3 between jobs; check i5 between jobs";
    assert_eq!(left, format!("a2 leaves; a4 leaves; a6 leaves; {checks}"));
}

#[test]
fn a_request_whose_call_is_dead_leaves_the_queue() {
    table(
        does,
        &[
            ("max 0 | waits 8 dead", "drop the request of a8"),
            ("max 0 | waits 8", ""),
            ("max 1 | idle 5m; waits 8 dead", "a8 gets i1; drop the request of a8"),
        ],
    );
    let closed = |w: &mut World| w.seen(8).closed = Some(cleaned(NOW));
    assert_eq!(changed("max 1 | idle 5m; waits 8; waits 9", closed), "a8 withdrawn; a9 gets i1");
    let later = |w: &mut World| w.observed.attempts_at = ago(Duration::from_secs(10));
    assert_eq!(changed("max 0 | waits 8 dead", later), "", "its request came when the directories were read");
}

#[test]
fn a_closing_call_keeps_its_slot_for_a_minute_at_most() {
    table(
        does,
        &[
            ("max 1 | held 59s closing 7; waits 8", ""),
            ("max 1 | held 60s closing 7; waits 8", "a7 departs; check i1 between jobs"),
            ("static held 60s closing 7", "a7 departs; h1 to clean; clean h1"),
            ("uses 1 | held 60s closing 7 uses 0", "a7 departs; i1 drains: usedup; terminate i1"),
            ("uses 1 | held 59s closing 7 uses 0", ""),
            // No wake-up is scheduled for an instance that is drained anyway.
            ("draining 59s closing 7", "terminate i1"),
        ],
    );
    let ended = |w: &mut World| w.seen(7).lease_held = false;
    let departed = "a7 departs; check i1 between jobs";
    assert_eq!(changed("held 5s closing 7", ended), departed);
    let forgotten = |w: &mut World| w.observed.attempts.clear();
    assert_eq!(changed("held 5s closing 7", forgotten), departed);
}

#[test]
fn directories_go_a_day_after_the_end() {
    let closed = |age: Duration| {
        changed("static out-of-service 5m named 9", move |w| w.seen(9).closed = Some(cleaned(ago(age))))
    };
    assert_eq!(closed(Duration::from_secs(86_399)), "");
    assert_eq!(closed(Duration::from_hours(24)), "remove the directory of a9");
}

#[test]
fn the_keeper_looks_in_on_open_attempts_at_each_pass_and_when_their_time_is_up() {
    let next = |text: &str, change: fn(&mut World)| {
        let mut world = world(text);
        change(&mut world);
        world.plan().report.next.map(|at| NOW.until(at))
    };
    let seconds = |s| Some(Duration::from_secs(s));
    assert_eq!(next("held 5m by 7", |_| ()), seconds(10));
    assert_eq!(next("held 4495s by 7", |_| ()), seconds(5), "its job's timeout and a quarter of an hour");
    let unjudged = |w: &mut World| w.seen(7).runner = Presence::Unknown;
    assert_eq!(next("held 597s by 7", unjudged), seconds(3), "unused for ten minutes");
    assert_eq!(next("held 5m by 7", |w| w.seen(7).closed = Some(cleaned(NOW))), seconds(10), "its check");
    let cleanup_at_work =
        |w: &mut World| (w.seen(7).closed, w.seen(7).lease_held) = (Some(cleaned(NOW)), true);
    assert_eq!(next("held 5m by 7", cleanup_at_work), seconds(1));
    let after_the_look = |w: &mut World| {
        w.observed.attempts.clear();
        w.observed.attempts_at = ago(Duration::from_secs(30));
    };
    assert_eq!(next("max 1 | held 29s by 7", after_the_look), seconds(10), "nobody else would look in on it");
}
