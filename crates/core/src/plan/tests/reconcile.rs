//! Recorded against observed, through the whole plan.

use std::sync::Arc;
use std::time::Duration;

use crate::inventory::StaticHost;
use crate::notation::{NOW, ago, does, notes, render, table, world};
use crate::plan::unconfirmed_absences;
use crate::report::Note;
use crate::time::BootId;

#[test]
fn a_launch_without_an_answer_is_repeated_after_a_while_with_the_same_token() {
    table(
        does,
        &[
            ("requested 29s", "i1 missed"),
            ("requested 30s", "i1 missed; repeat the launch of i1"),
            ("requested 30s missing 10s", "repeat the launch of i1"),
            // Half a minute after the last try, not after the first one.
            ("unknown 30s", "i1 missed"),
            ("unknown 31s", "i1 missed; repeat the launch of i1"),
            ("unknown 31s busy", "i1 missed"),
            ("max 2 | held 5m by 7; unknown 31s", "i2 missed; repeat the launch of i2"),
            ("max 1 | held 5m by 7; unknown 31s", "i2 missed; i2 drains: surplus; terminate i2"),
            ("unknown 31s failing 5s", "i1 missed"),
            ("unlisted | requested 40s", ""),
            ("partial | requested 40s", ""),
            // The list began before the launch was requested.
            ("list 50s | requested 40s", ""),
            ("repeats | requested 40s", "i1 missed"),
            ("reap | requested 40s", "i1 missed"),
            ("requested 40s starting", "probe i1"),
            ("requested 40s running", "probe i1"),
            ("requested 40s stopping", "i1 drains: stopped; terminate i1"),
        ],
    );
}

#[test]
fn a_launch_that_does_not_become_ready_in_time_is_given_up() {
    table(
        does,
        &[
            ("requested 599s missing 10s", "repeat the launch of i1"),
            ("requested 600s missing 10s", "i1 drains: neverready; terminate i1"),
            ("unlisted | requested 600s", "i1 drains: neverready; terminate i1"),
            ("booting 599s", "probe i1"),
            ("booting 600s", "i1 drains: neverready; terminate i1"),
            // Counted from the launch, half a minute before it was reached.
            ("checking 569s", "probe i1"),
            ("checking 570s", "i1 drains: neverready; terminate i1"),
            ("booting 10s busy", ""),
            ("static checking 2h", "probe h1"),
        ],
    );
}

#[test]
fn a_clock_that_was_set_back_before_a_reboot_keeps_no_launch_alive() {
    for launch in ["requested", "unknown", "booting", "checking"] {
        let mut world = world(&format!("durable | {launch} 10s old"));
        for instance in world.state.instances.values_mut().map(Arc::make_mut) {
            let launch = instance.launch.as_mut().unwrap();
            launch.requested_at.wall_ms += 86_400_000;
        }
        let done = render(&world.plan());
        assert!(done.ends_with("i1 drains: neverready; terminate i1"), "{launch}: {done}");
    }
}

#[test]
fn absence_takes_two_complete_lists_far_enough_apart_and_an_endpoint_that_says_no() {
    table(
        does,
        &[
            ("idle 5m gone", "i1 missed"),
            ("idle 5m denied", "i1 missed"),
            ("idle 5m missing 30s denied", ""), // the list began a second ago
            ("idle 5m missing 31s", ""),
            ("idle 5m missing 31s denied silent", "i1 drains: vanished; terminate i1"),
            ("idle 5m missing 31s denied-since", ""), // the list is older than the answer
            ("partial | idle 5m missing 31s denied", ""),
            ("unlisted | idle 5m missing 31s denied", ""),
            ("idle 5m missing 31s denied running", "i1 seen"),
            ("partial | idle 5m missing 31s running", "i1 seen"),
            ("booting 5m missing 31s denied", "i1 drains: vanished; terminate i1"),
            ("checking 5m missing 31s denied", "i1 drains: vanished; terminate i1"),
            ("static cleaning 5m missing 31s denied", "h1 forgotten"),
            ("static out-of-service 5m missing 31s denied", "h1 forgotten"),
            ("draining 5m missing 31s", "terminate i1"),
            ("draining 5m missing 31s denied", "forget i1"),
            ("draining 5m missing 31s denied busy", ""),
            ("draining 5m denied gone", "i1 missed; terminate i1"),
            // A list that began before the launch was answered proves nothing.
            ("list 20s | booting 5s gone", "probe i1"),
            ("list 20s | booting 20s gone", "probe i1"),
            ("list 19s | booting 20s gone", "i1 missed; probe i1"),
        ],
    );
}

#[test]
fn what_the_provider_says_of_an_instance_is_reported_and_is_why_it_is_suspected() {
    let mut world = world("held 5m by 7 stopping; idle 5m; idle 5m");
    let listed = &mut world.observed.listing.as_mut().unwrap().instances;
    listed[0].detail = Some("it powered itself off".to_owned());
    listed[1].detail = Some("resumed in 0.8 s".to_owned());
    let report = world.plan().report;
    let cause = Some("it powered itself off".to_owned());
    let ids: Vec<_> = world.state.instances.keys().cloned().collect();
    assert_eq!(report.notes, [Note::Suspect { instance: ids[0].clone(), cause, by_job: false }]);
    assert_eq!(report.detail(&ids[1]), Some("resumed in 0.8 s"));
    assert_eq!(report.detail(&ids[2]), None);
}

#[test]
fn a_job_is_blamed_for_the_end_of_an_instance_only_if_it_was_alone_there() {
    let blamed = |text: &str, by_job: bool, uses: u32| {
        let mut world = world(text);
        let id = world.state.instances.keys().next().unwrap().clone();
        Arc::make_mut(world.state.instances.get_mut(&id).unwrap()).uses = uses;
        world.observed.listing.as_mut().unwrap().instances[0].by_job = by_job;
        world.plan().report.notes.iter().any(|note| matches!(note, Note::Suspect { by_job: true, .. }))
    };
    for (text, by_job, uses, expected) in [
        ("held 5m by 7 stopping", true, 0, true),
        ("held 5m by 7 stopping", false, 0, false),
        ("held 5m by 7 stopping", true, 1, false),
        ("cap 2 | held 5m by 7,8 stopping", true, 0, false),
        ("held 5m by 7", true, 0, false),
    ] {
        assert_eq!(blamed(text, by_job, uses), expected, "{text} {by_job} {uses}");
    }
}

#[test]
fn an_instance_in_use_is_only_suspected() {
    table(
        does,
        &[
            ("held 5m by 7 missing 31s denied", ""),
            ("held 5m by 7 stopping", ""),
            ("held 5m by 7 starting", ""),
            ("draining 5m by 7 missing 31s denied", ""),
            ("static out-of-service 5m by 7 missing 31s denied", ""),
            ("idle 5m named 9 missing 31s denied", ""),
            ("booting 20m named 9 stopping", ""),
            ("static cleaning 5m named 9", ""),
        ],
    );
    table(
        notes,
        &[
            (
                "held 5m by 7 missing 31s denied; held 5m by 8 stopping; held 5m by 9",
                "suspect i1; suspect i2",
            ),
            ("draining 5m by 7 missing 31s denied", ""),
        ],
    );
}

#[test]
fn a_machine_that_was_rebooted_hands_nothing_out_that_it_recorded_before() {
    table(
        does,
        &[
            ("idle 5m old", "i1 drains: rebooted; terminate i1"),
            ("static idle 5m old", "h1 to clean; clean h1"),
            ("held 5m by 7 old", ""),
            // The lost end of the journal may have made it ready and granted it.
            ("requested 10s old", "i1 missed; i1 drains: rebooted; terminate i1"),
            ("booting 10s old", "i1 drains: rebooted; terminate i1"),
            ("checking 10s old", "i1 drains: rebooted; terminate i1"),
            ("static checking 10s old", "h1 to clean; clean h1"),
            ("static cleaning 10s old", "clean h1"),
            ("static out-of-service 10s old", ""),
            ("draining 10s old", "terminate i1"),
            ("bound | static idle 5m old of a", "h1 to clean; clean h1"),
            ("bound | static idle 5m old", "h1 to clean; clean h1"),
        ],
    );
}

#[test]
fn an_instance_that_only_an_open_attempt_names_serves_that_one_and_nobody_else() {
    table(
        does,
        &[
            ("idle 25m named 9", ""),
            ("drained | idle 25m named 9", ""),
            ("lifetime 10m | idle 25m named 9", ""),
            ("max 1 | idle 25m named 9 of b; waits 8 of a", ""),
            ("draining 5m named 9", ""),
            // A stage has run there: the record lacks a job, and the instance serves no further one.
            ("idle 5m user 9", "i1 drains: unaccounted"),
            ("cap 2 | held 5m by 7 user 9", "i1 drains: unaccounted"),
            ("booting 5m user 9", "i1 drains: unaccounted"),
            ("static idle 5m user 9", "h1 to clean"),
            ("static checking 5m user 9", "h1 to clean"),
            // Where cleaning does not unbind, the job may have been of any domain.
            ("bound | static idle 5m user 9", "h1 out-of-service"),
            ("bound | static idle 5m of a user 9", "h1 to clean"),
            ("static cleaning 5m user 9", ""),
            ("cap 2 | static held 5m by 7 user 9", ""),
            ("static out-of-service 5m user 9", ""),
            ("idle 5m user 9 missing 31s denied silent", ""),
        ],
    );
}

#[test]
fn an_attempt_that_left_after_the_directories_were_read_claims_nothing() {
    let mut world = world("idle 5m of a user 9");
    world.observed.attempts_at = ago(Duration::from_mins(5));
    assert_eq!(render(&world.plan()), "");
    world.observed.attempts_at = ago(Duration::from_millis(299_999));
    assert_eq!(render(&world.plan()), "i1 drains: unaccounted");
    let mut booting = crate::notation::world("booting 5m user 9");
    booting.observed.attempts_at = ago(Duration::from_mins(5));
    assert_eq!(render(&booting.plan()), "", "launched after the directories were read");
}

#[test]
fn a_copy_is_noted_and_nothing_is_done_about_it() {
    let mut world = world("orphan 6m; foreign 6m");
    let listing = world.observed.listing.as_mut().unwrap();
    let copies = crate::inventory::Resources::from(listing.clone()).found;
    let owned = copies[0].tags.as_ref().unwrap().owner == world.observed.owner;
    let own = if owned { copies[0].name.clone() } else { copies[1].name.clone() };
    listing.instances.clear();
    listing.copies = copies;
    let plan = world.plan();
    assert_eq!((render(&plan).as_str(), plan.report.notes), ("", vec![Note::Copies { names: vec![own] }]));
}

#[test]
fn what_is_ours_without_a_record_is_reaped_after_a_grace() {
    table(
        does,
        &[
            ("orphan 299s", ""),
            ("orphan 300s", "reap u1"),
            ("orphan 300s starting; orphan 301s stopping", "reap u1; reap u2"),
            ("orphan 6m named 9", ""),
            ("orphan 6m user 9", ""),
            ("foreign 6m", ""),
            // The missing part of the list may contain a stranger.
            ("partial | orphan 6m", ""),
            ("unlisted | orphan 6m", ""),
        ],
    );
}

#[test]
fn an_unrecorded_instance_without_a_birthday_is_as_old_as_we_know_it() {
    let mut world = world("orphan 6m");
    world.listing().instances[0].created = None;
    assert_eq!(render(&world.plan()), "");
    let id = world.listing().instances[0].id.clone();
    world.observed.first_seen.insert(id, ago(Duration::from_mins(5)));
    assert_eq!(render(&world.plan()), "reap u1");
}

#[test]
fn a_birthday_that_lies_ahead_of_our_clock_keeps_nothing_alive() {
    let mut world = world("orphan 1s");
    let tomorrow =
        crate::time::Stamp { wall_ms: NOW.wall_ms + 86_400_000, boot: BootId(0), uptime_ms: 0, ..NOW };
    world.listing().instances[0].created = Some(tomorrow);
    let due = world.plan().report.next.map(|at| NOW.until(at));
    assert_eq!((render(&world.plan()), due), (String::new(), Some(Duration::from_mins(5))));
    let id = world.listing().instances[0].id.clone();
    world.observed.first_seen.insert(id, ago(Duration::from_secs(299)));
    assert_eq!(render(&world.plan()), "");
    let due = world.plan().report.next.map(|at| NOW.until(at));
    assert_eq!(due, Some(Duration::from_secs(1)));
    world.observed.first_seen.values_mut().for_each(|seen| *seen = ago(Duration::from_mins(5)));
    assert_eq!(render(&world.plan()), "reap u1");
}

#[test]
fn a_stranger_with_our_name_stops_all_reaping_and_is_reported() {
    table(does, &[("orphan 6m; stranger 6m", ""), ("stranger 6m named 9", "")]);
    table(
        notes,
        &[("orphan 6m; stranger 6m; stranger 1s", "another manager: 2"), ("orphan 6m; foreign 6m", "")],
    );
    let mut unknown = world("orphan 6m");
    unknown.state.generations.clear();
    unknown.observed.generations.clear();
    assert_eq!(render(&unknown.plan()), "", "a generation that never began here");
    let mut known = world("orphan 6m");
    known.state.generations.clear();
    assert_eq!(render(&known.plan()), "", "begun here, but no number was given out");
}

#[test]
fn an_idle_instance_that_nobody_has_heard_of_for_a_while_is_asked() {
    table(
        does,
        &[
            ("hosts | static idle 60s unheard", "check the health of h1"),
            ("hosts | static idle 59s unheard", ""),
            ("hosts | static idle 60s", ""),
            ("hosts | static held 5m by 7 unheard", ""),
            ("hosts, bound | static idle 5m of a unheard; waits 8 of a", "a8 gets h1"),
            ("hosts | static idle 5m starting unheard", "h1 doubted"),
            ("hosts | static cleaning 5m unheard", "clean h1"),
            ("idle 60s unheard", "check the health of i1"),
            ("idle 59s unheard", ""),
            ("idle 5m", ""),
            ("held 5m by 7 unheard", ""),
        ],
    );
}

#[test]
fn another_capacity_is_recorded_as_soon_as_the_present_jobs_fit() {
    let resized = |text: &str, capacity: Option<u32>| {
        let mut world = world(text);
        let listing = world.observed.listing.as_mut().unwrap();
        listing.instances[0].static_host = Some(StaticHost { capacity, problem: None });
        render(&world.plan())
    };
    assert_eq!(resized("hosts | static idle 5s", Some(3)), "h1 holds 3");
    assert_eq!(resized("hosts, cap 2 | static idle 5s", None), "");
    assert_eq!(resized("hosts, cap 2 | static idle 5s cap 4", None), "h1 holds 2");
    assert_eq!(resized("hosts, cap 2 | static held 5s by 7,8", Some(1)), "");
}

#[test]
fn hosts_are_adopted_when_they_run() {
    table(
        does,
        &[
            ("hosts | host; host starting; host stopping", "adopt u1"),
            ("hosts, drained | host", "adopt u1"),
            // One that stops may start again: it waits, as it is.
            ("hosts | static idle 5m stopping; waits 8", "h1 doubted"),
            ("hosts | static idle 5m starting", "h1 doubted"),
            ("hosts, cap 2 | static held 5m by 7 starting", ""),
            ("hosts | static checking 5m", "probe h1"),
            ("hosts | static checking 5m starting", "probe h1"),
            ("hosts | static cleaning 5m stopping", ""),
            ("hosts | static idle 5m missing 31s denied", "h1 forgotten"),
            ("hosts | static checking 5m missing 31s denied", "h1 forgotten"),
        ],
    );
}

#[test]
fn a_state_directory_that_was_moved_changes_nothing_and_touches_nothing() {
    let mut world = world("moved, target 2 | idle 50m; requested 20m; draining 5m; orphan 6m; waits 8");
    world.policy.max_instances = 99;
    assert_eq!(render(&world.plan()), "");
    assert_eq!(world.plan().report.waiting.len(), 1);
    table(notes, &[("moved | orphan 6m", "moved")]);
}

#[test]
fn a_changed_policy_is_recorded_first() {
    let mut world = world("waits 8");
    world.policy.max_instances = 99;
    assert_eq!(render(&world.plan()), "policy; i1 intended; launch i1");
}

#[test]
fn operators_hear_what_is_wrong() {
    table(
        notes,
        &[
            ("unlisted | idle 5m", "list failed"),
            ("partial | idle 5m", "list incomplete"),
            ("draining 5m failing 5s", "failing i1"),
            ("max 1 | idle 5m; idle 6m; orphan 1m", "3 over 1"),
            ("max 3 | idle 5m; idle 6m; orphan 1m; foreign 1m", ""),
        ],
    );
}

#[test]
fn a_request_that_is_awaited_is_neither_repeated_nor_reported() {
    table(
        |text| render(&world(text).plan()),
        &[
            ("draining 5m", "terminate i1"),
            ("draining 5m awaited 5s", ""),
            ("draining 5m awaited 0s", "terminate i1"),
            ("draining 5m awaited 5s failing 0s", ""),
            ("draining 5m awaited 0s failing 5s", ""),
        ],
    );
    table(notes, &[("draining 5m awaited 5s", ""), ("draining 5m awaited 0s failing 5s", "failing i1")]);
    let plan = world("draining 5m awaited 5s").plan();
    assert_eq!(plan.report.next, Some(NOW.plus(Duration::from_secs(5))));
}

#[test]
fn only_what_has_been_missing_for_long_is_asked_about() {
    let absences = |text: &str| {
        let mut world = world(text);
        let policy = world.policy.clone();
        let state = world.state.clone();
        unconfirmed_absences(&state, world.listing(), &policy).len()
    };
    assert_eq!(absences("idle 5m missing 31s; idle 5m missing 30s; idle 5m gone; idle 5m"), 1);
    assert_eq!(absences("idle 5m missing 31s running"), 0);
    assert_eq!(absences("partial | idle 5m missing 31s"), 0);
    assert_eq!(absences("refused 1m missing 31s"), 0);
    assert_eq!(absences("list 40s | booting 5s missing 90s"), 0);
}

#[test]
fn each_instance_stands_in_the_report_with_its_row() {
    let rows = |text: &str| world(text).plan().report.rows.iter().map(|r| r.1).collect::<Vec<_>>();
    assert_eq!(rows("idle 5m; held 5m by 7; orphan 6m"), [11, 16, 27]);
    assert_eq!(rows("refused 10s; refused 10s running; host"), [9, 10, 24]);
}

/// The keeper sleeps until `next`: a plan that does nothing and wakes immediately would spin.
#[test]
fn a_plan_wakes_the_keeper_when_the_next_thing_falls_due() {
    let next = |text: &str| world(text).plan().report.next.map(|at| NOW.until(at).as_secs());
    for (given, seconds) in [
        ("idle 5m", Some(15 * 60)),
        ("target 1 | idle 5m", None),
        ("held 5m by 7", Some(10)),
        ("booting 595s", Some(5)),
        ("booting 10s", Some(10)),
        ("static checking 20m", Some(10)),
        ("static cleaning 20m", Some(10)),
        ("static idle 20m", None),
        ("idle 5m gone", Some(30)),
        ("idle 5m missing 10s silent", Some(20)),
        // It answers, which the list may soon know of.
        ("idle 5m missing 10s", Some(10)),
        // Missing for long enough, but this list is older than that.
        ("list 5s | idle 5m missing 32s silent", Some(5)),
        ("idle 5m missing 40s silent", Some(30)),
        ("orphan 1m", Some(240)),
        ("partial | orphan 6m", None),
        ("draining 5s failing 7s", Some(7)),
        ("lifetime 10m | idle 5m", Some(4 * 60 + 30)),
        ("held 50s closing 7", Some(1)),
        ("failures 5 1m | waits 8", Some(10)),
        ("failures 5 299s | waits 8 dead", Some(1)),
    ] {
        assert_eq!(next(given), seconds, "given `{given}`");
    }
}

#[test]
fn a_list_that_lacks_every_instance_is_not_believed_while_they_answer() {
    let gone = "missing 31s denied";
    let both = |first: &str, second: &str| {
        does(&format!("target 2, max 9 | idle 5m {gone}{first}; idle 5m {gone}{second}"))
    };
    assert_eq!(both("", ""), "");
    let note = notes(&format!("target 2 | idle 5m {gone}; idle 5m {gone}"));
    assert_eq!(note, "implausible 2 of 2");
    // Nothing is known of them yet: they are probed first.
    assert_eq!(both(" unheard", " unheard"), "check the health of i1; check the health of i2");
    // So is the only one.
    assert_eq!(does(&format!("target 1 | idle 5m {gone}")), "");
    assert_eq!(notes(&format!("target 1 | idle 5m {gone}")), "implausible 1 of 1");
    // One beside others that are listed is absent as always.
    let vanishes = |text: &str| does(text).contains("i1 drains: vanished");
    let beside = "target 2 | idle 5m missing 31s denied; idle 5m";
    assert!(vanishes(beside), "{}", does(beside));
    // So is one that does not answer, whatever the others do.
    let mut silent = world(&format!("target 2, max 9 | idle 5m {gone} unheard; idle 5m {gone}"));
    silent.observed.unhealthy.insert(crate::notation::instance("i1"), ago(Duration::from_secs(5)));
    assert!(render(&silent.plan()).contains("i1 drains: vanished"), "{}", render(&silent.plan()));
    assert!(!render(&silent.plan()).contains("i2 drains"), "{}", render(&silent.plan()));
    // An answer from before the list proves nothing; nor does a probe that tells nothing, after five minutes.
    let mut before = world(&format!("target 2, max 9 | idle 5m {gone}; idle 5m {gone}"));
    for id in ["i1", "i2"] {
        let at = ago(Duration::from_secs(40));
        before.observed.healthy.insert(crate::notation::instance(id), at);
    }
    assert_eq!(render(&before.plan()), "check the health of i1; check the health of i2");
    let late = |probed: &str| {
        let gone = format!("missing 301s denied unheard{probed}");
        does(&format!("target 2, max 9 | idle 9m {gone}; idle 9m {gone}"))
    };
    assert!(late(" failing 5s").contains("i1 drains: vanished"), "{}", late(" failing 5s"));
    // A new keeper, or `reap`, has no result yet: it probes first, however long the list is empty.
    assert_eq!(late(""), "check the health of i1; check the health of i2");
    // What boots is not given up either, and what is to end is terminated again instead of forgotten.
    let booting =
        format!("target 2, max 9 | idle 5m {gone}; idle 5m {gone}; booting 50s {gone}; draining 5m {gone}");
    assert_eq!(does(&booting), "probe i3; terminate i4");
}

/// A job on an instance that is gone ends soon. Until then, the list proves nothing about what cannot be probed.
#[test]
fn a_list_that_lacks_every_instance_is_not_believed_while_jobs_hold_them() {
    let others = "booting 50s missing 31s denied; draining 5m missing 31s denied";
    let held = format!("max 9 | held 5m by 7 missing 31s denied; {others}");
    assert_eq!(does(&held), "probe i2; terminate i3");
    // Their jobs decide about themselves.
    assert_eq!(world(&held).plan().report.rows[0].1, 17);
    let alone = does(&format!("max 9 | {others}"));
    assert!(alone.contains("i1 drains: vanished") && alone.contains("forget i2"), "{alone}");
    // One that was missing before all others went missing, too, is in the same list.
    assert_eq!(does("target 1 | idle 5m gone; draining 5m missing 31s denied"), "i1 missed; terminate i2");
    // An idle one is probed before the list proves anything about the others.
    let unheard = format!("target 1, max 9 | idle 5m missing 31s denied unheard; {others}");
    assert_eq!(does(&unheard), "probe i2; terminate i3; check the health of i1");
}
