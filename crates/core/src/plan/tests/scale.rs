//! Tests of how many instances are launched.

use std::time::Duration;

use crate::event::{Change, Event};
use crate::ids::Generation;
use crate::notation::{NOW, does, notes, render, table, world};
use crate::policy::{IdlePolicy, ScheduledIdle};
use crate::schedule::{Schedule, ScheduleText};
use crate::time::Stamp;

#[test]
fn one_instance_is_launched_for_each_job_that_nothing_on_its_way_will_serve() {
    table(
        does,
        &[
            ("waits 8", "i1 intended; launch i1"),
            ("waits 8; waits 9", "i1 intended; i2 intended; launch i1; launch i2"),
            ("booting 5s; waits 8", "probe i1"),
            ("requested 5s missing 1s; waits 8", ""),
            ("checking 5s; waits 8", "probe i1"),
            ("booting 5s; waits 8; waits 9", "i2 intended; probe i1; launch i2"),
            ("draining 5s; waits 8", "i2 intended; terminate i1; launch i2"),
            ("held 5m by 7; waits 8", "i2 intended; launch i2"),
            // Held back, too old, or another project's: not capacity for this job.
            ("idle 5m named 9; waits 8", "i2 intended; launch i2"),
            ("any, lifetime 1h | idle 5m; waits 8", "i2 intended; launch i2"),
            ("booting 5s named 9; waits 8", "i2 intended; launch i2"),
            ("idle 5m of b; waits 8", "i2 intended; launch i2"),
        ],
    );
}

#[test]
fn a_launch_lives_as_long_as_the_longest_waiting_job_needs_where_the_lifetime_is_a_default() {
    let lives = |text: &str| {
        let lifetime = |event: &Event| {
            let Change::LaunchIntended { lifetime, .. } = &event.change else { return None };
            Some(lifetime.map(|most| most.0.as_secs() / 60))
        };
        world(text).plan().events.iter().find_map(lifetime).expect("it launches")
    };
    for (given, minutes) in [
        ("waits 8 timeout 9h", None),
        ("lifetime 2h | waits 8 timeout 1h", Some(120)),
        ("lifetime 2h, target 1 | waits 8 timeout 9h", Some(120)),
        ("default_lifetime 2h | waits 8 timeout 1h", Some(120)),
        // `launch_timeout` more, for what comes before the job and after it.
        ("default_lifetime 2h | waits 8 timeout 2h", Some(130)),
        ("default_lifetime 2h | waits 8 timeout 1h; waits 9 timeout 9h; waits 10 timeout 3h", Some(550)),
    ] {
        assert_eq!(lives(given), minutes, "{given}");
    }
    table(
        does,
        &[
            // Too short-lived for this job, whatever is on its way: one more is launched.
            (
                "default_lifetime 2h | booting 5s lives 2h; waits 8 timeout 3h",
                "i2 intended; probe i1; launch i2",
            ),
            ("default_lifetime 2h | booting 5s lives 4h; waits 8 timeout 3h", "probe i1"),
            ("default_lifetime 2h | idle 5m lives 4h; waits 8 timeout 3h", "a8 gets i1"),
            (
                "max 1, default_lifetime 2h | idle 5m lives 2h; waits 8 timeout 3h",
                "i1 drains: maderoom; terminate i1",
            ),
        ],
    );
}

#[test]
fn jobs_share_a_new_instance_only_within_their_domain_and_its_uses() {
    let two = "i1 intended; i2 intended; launch i1; launch i2";
    let one = "i1 intended; launch i1";
    table(
        does,
        &[
            ("cap 2 | waits 8; waits 9", one),
            ("cap 2 | waits 8; waits 9; waits 10", two),
            ("cap 2 | waits 8 of a; waits 9 of b", two),
            ("cap 2, any | waits 8 of a; waits 9 of b", one),
            ("cap 2, namespace | waits 8 of a; waits 9 of b", one),
            ("cap 2, uses 1 | waits 8; waits 9", two),
            ("cap 2, uses 2 | waits 8; waits 9", one),
        ],
    );
}

#[test]
fn the_target_counts_spare_slots_beside_the_waiting_jobs() {
    let intends = |text: &str| does(text).matches("intended").count();
    for (given, launched) in [
        ("target 2 |", 2),
        ("target 2 | idle 5m", 1),
        ("target 2 | idle 5m; idle 5m", 0),
        ("target 2 | idle 5m; booting 5s", 0),
        ("target 2 | waits 8", 3),
        ("max 9, target 3, cap 2 |", 2),
        ("max 9, target 1, cap 2 | waits 8", 2), // the slot beside the job will be its project's
        ("max 9, target 1, cap 2, any | waits 8", 1), // here all domains may use it
        ("max 9, target 2, cap 2, any | waits 8", 2),
        ("target 1 | idle 5m; waits 8", 1),
        ("target 1 | static idle 5m", 0),
        ("max 9, factor 0.5 | held 5m by 1; held 5m by 2; held 5m by 3", 2),
        ("max 9, cap 2, target 1, lifetime 10m | idle 11m", 1),
        // An instance on its way counts by its own slots, even after the policy changes.
        ("max 9, cap 2 | booting 5s cap 1; waits 8; waits 9", 1),
        ("max 9 | booting 5s cap 2; waits 8; waits 9", 0),
        ("max 9 | booting 5s cap 2; waits 8; waits 9 of b", 1),
        ("max 9, target 2 | booting 5s cap 3", 0),
        ("max 9, target 2 | booting 5s cap 3; waits 8", 2),
        ("max 9, target 2, any | booting 5s cap 3; waits 8", 0),
    ] {
        assert_eq!(intends(given), launched, "given `{given}`");
    }
}

#[test]
fn the_limit_counts_every_record_and_what_is_ours_without_one() {
    table(
        does,
        &[
            ("max 0 | waits 8", ""),
            ("max 1 | held 5m by 7; waits 8", ""),
            ("max 1 | unknown 5s missing 1s; waits 8; waits 9", ""),
            ("max 1 | draining 5s; waits 8", "terminate i1"),
            ("max 1 | orphan 5s; waits 8", ""),
            ("max 1 | stranger 5s; waits 8", ""),
            ("max 1 | foreign 5s; waits 8", "i1 intended; launch i1"),
            ("max 3 | held 5m by 7; orphan 5s; waits 8; waits 9", "i2 intended; launch i2"),
            ("max 2, target 9 |", "i1 intended; i2 intended; launch i1; launch i2"),
        ],
    );
    table(notes, &[("max 1 | idle 5m; orphan 5s", "2 over 1"), ("max 2 | idle 5m; orphan 5s", "")]);
}

#[test]
fn launches_under_way_and_launches_per_minute_are_limited() {
    table(
        does,
        &[
            ("launching 1 | waits 8; waits 9", "i1 intended; launch i1"),
            ("launching 2 | booting 5s; waits 8; waits 9; waits 10", "i2 intended; probe i1; launch i2"),
            ("launching 0 | waits 8", ""),
            (
                "rate 3, recent 1 59s | waits 8; waits 9; waits 10",
                "i1 intended; i2 intended; launch i1; launch i2",
            ),
            ("rate 1, recent 1 59s | waits 8", ""),
            ("rate 1, recent 1 60s | waits 8", "i1 intended; launch i1"),
            ("rate 1, recent 9 59s | waits 8", ""),
        ],
    );
}

#[test]
fn where_instances_boot_on_this_machine_refilling_waits_for_waiting_jobs() {
    table(
        does,
        &[
            ("here 2, target 1 |", "i1 intended; launch i1"),
            ("here 2, target 1 | waits 8", "i1 intended; launch i1"),
            ("here 2, target 1 | booting 5s; waits 8", "probe i1"),
            ("here 2, target 2 | booting 5s; held 5m by 7", "i3 intended; probe i1; launch i3"),
            ("here 2 | waits 8; waits 9; waits 10", "i1 intended; i2 intended; launch i1; launch i2"),
            ("here 2, launching 1 | waits 8; waits 9", "i1 intended; launch i1"),
            // A job that no new instance could serve delays no other.
            ("here 2, target 1, lifetime 59m | waits 8 timeout 1h", "i1 intended; launch i1"),
        ],
    );
    let waits_on = world("here 1 | booting 5s; waits 8; waits 9").plan().report.launches;
    let reason = waits_on.map(|on| on.to_string());
    assert_eq!(reason.as_deref(), Some("1 launches in progress, limit 1"));
}

#[test]
fn what_a_rate_just_allows_waits_for_nothing() {
    let waits_on = |text: &str| world(text).plan().report.launches;
    assert_eq!(waits_on("rate 2 | waits 8; waits 9"), None);
    assert_eq!(
        waits_on("rate 2 | waits 8; waits 9; waits 10").map(|on| on.to_string()).as_deref(),
        Some("`launches_per_minute` is reached")
    );
}

#[test]
fn a_pool_with_periods_is_looked_at_when_the_minute_turns() {
    let mut world = world("max 4 |");
    assert_eq!(world.plan().report.next, None);
    let periods = vec!["* 7-19 * * mon-fri".to_owned()];
    let when = Schedule::parse(ScheduleText { periods, timezone: "UTC".to_owned() }).unwrap();
    world.policy.schedules = vec![ScheduledIdle { when, idle: IdlePolicy::default() }];
    for (past_the_minute, left) in [(0, 60_000), (1, 59_999), (59_999, 1)] {
        world.now = Stamp { wall_ms: NOW.wall_ms + past_the_minute, ..NOW };
        let next = world.plan().report.next.map(|next| world.now.until(next));
        assert_eq!(next, Some(Duration::from_millis(left)), "{past_the_minute} ms past");
    }
}

#[test]
fn a_refused_launch_is_tried_anew_as_its_next_attempt_or_dropped() {
    table(
        does,
        &[
            ("refused 9m missing 1s; waits 8", "i1 intended (2); launch i1"),
            ("max 1 | refused 9m missing 1s; waits 8", "i1 intended (2); launch i1"),
            ("refused 9m missing 1s", "i1 drains: surplus; terminate i1"),
            (
                "refused 9m missing 1s; refused 8m missing 1s; waits 8",
                "i2 drains: surplus; i1 intended (2); terminate i2; launch i1",
            ),
            ("refused 9m missing 1s; booting 5s; waits 8", "i1 drains: surplus; probe i2; terminate i1"),
            ("reap | refused 9m missing 1s; waits 8", ""),
            ("reap | refused 9m missing 1s", "i1 drains: surplus; terminate i1"),
            ("refused 9m missing 1s busy", "i1 drains: surplus"),
            // Its call has not exited yet: no room, and no second call beside it.
            ("max 1 | refused 9m missing 1s busy; waits 8", ""),
            ("max 1 | refused 9m missing 1s failing 5s; waits 8", ""),
            ("max 2 | refused 9m missing 1s busy; waits 8", "i2 intended; launch i2"),
            (
                "refused 9m running; waits 8",
                "i1 located in here; i1 drains: launchedafterrefusal; i2 intended; terminate i1; launch i2",
            ),
        ],
    );
}

#[test]
fn a_launch_is_numbered_after_the_highest_of_its_generation() {
    let mut world = world("held 5m by 6; held 5m by 7; waits 8");
    assert_eq!(render(&world.plan()), "i3 intended; launch i3");
    world.observed.launching.as_mut().unwrap().generation = Generation::new("h");
    assert_eq!(render(&world.plan()), "p-h-1 intended; launch p-h-1");
    let mut refused = self::world("refused 9m missing 1s; waits 8");
    refused.observed.launching.as_mut().unwrap().generation = Generation::new("h");
    assert_eq!(render(&refused.plan()), "i1 intended (2); launch i1", "it keeps its own number");
}

#[test]
fn nothing_is_launched_where_nothing_can_be_or_for_a_job_that_fits_nowhere() {
    table(
        does,
        &[
            ("hosts, target 2 | waits 8", ""),
            ("reap, target 2 | waits 8", ""),
            ("drained, target 2 | waits 8", ""),
            ("lifetime 59m | waits 8 timeout 1h", ""),
            ("lifetime 59m, any | waits 8 timeout 1h", ""),
            ("lifetime 60m | waits 8 timeout 1h", "i1 intended; launch i1"),
            ("max 1, lifetime 59m | idle 5m of b; waits 8 timeout 1h", ""),
        ],
    );
}

#[test]
fn retiring_and_launching_do_not_chase_each_other() {
    table(
        does,
        &[
            ("target 1 | idle 30m; booting 5s", "probe i2"),
            ("target 2, cap 2 | idle 30m", ""),
            ("target 1, cap 2 | idle 30m uses 1; idle 40m", "i2 drains: surplus; terminate i2"),
        ],
    );
}
