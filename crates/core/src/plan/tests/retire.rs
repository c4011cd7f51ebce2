//! Tests of which idle instances are drained.

use crate::notation::{NOW, does, instance, notes, render, span, table, world};
use crate::time::{BootId, Stamp};

#[test]
fn surplus_goes_after_its_patience_and_never_below_the_target() {
    table(
        does,
        &[
            ("idle 1199s", ""),
            ("idle 1200s", "i1 drains: surplus; terminate i1"),
            ("target 1 | idle 20m", ""),
            ("target 1 | idle 20m; idle 5s", "i1 drains: surplus; terminate i1"),
            (
                "target 1 | idle 21m; idle 22m; idle 20m",
                "i2 drains: surplus; i1 drains: surplus; terminate i2; terminate i1",
            ),
            ("target 2 | idle 21m; idle 22m; idle 20m", "i2 drains: surplus; terminate i2"),
            // Slots count: two of them on each.
            ("target 2, cap 2 | idle 21m; idle 22m", "i2 drains: surplus; terminate i2"),
            ("target 3, cap 2 | idle 21m; idle 22m", ""),
            // A small instance may be drained where a large one may not.
            ("target 2 | idle 22m cap 2; idle 21m cap 1", "i2 drains: surplus; terminate i2"),
            ("target 1, cap 2 | idle 21m uses 1; idle 20m uses 1", "i1 drains: surplus; terminate i1"),
            // Spare slots beside a job count too.
            ("target 1, cap 2, any | held 5m by 7; idle 21m", "i2 drains: surplus; terminate i2"),
            ("target 1 | held 5m by 7; idle 21m", ""),
        ],
    );
}

#[test]
fn an_instance_that_turned_surplus_while_it_booted_stays_a_minute_at_least() {
    table(
        does,
        &[
            ("idle_time 0s | idle 59s", ""),
            ("idle_time 0s | idle 60s", "i1 drains: surplus; terminate i1"),
            ("idle_time 90s | idle 89s", ""),
            // An instance that has served a job has been useful.
            ("idle_time 0s | idle 0s of a", "i1 drains: surplus; terminate i1"),
            ("idle_time 0s | checking 5s", "probe i1"),
        ],
    );
}

#[test]
fn what_is_bound_to_one_project_is_nobody_elses_spare_capacity() {
    table(
        does,
        &[
            ("target 1 | idle 20m of a; idle 5m", "i1 drains: surplus; terminate i1"),
            ("target 1 | idle 20m of a", "i1 drains: surplus; i2 intended; terminate i1; launch i2"),
            ("target 1 | idle 19m of a", "i2 intended; launch i2"),
            ("target 1, any | idle 20m of a", ""),
        ],
    );
}

#[test]
fn an_instance_bound_to_anybody_is_bound_once_the_operator_wants_walls() {
    use crate::notation::{render, world};
    let mut world = world("target 1, any | idle 5m of a");
    assert_eq!(render(&world.plan()), "");
    world.policy.reuse = crate::policy::Reuse::Project;
    assert_eq!(render(&world.plan()), "policy; i2 intended; launch i2");
}

#[test]
fn the_aged_go_when_they_are_idle_and_not_before() {
    table(
        does,
        &[
            ("lifetime 1h | idle 3569s", "i1 drains: surplus; terminate i1"),
            ("lifetime 10m | idle 569s", ""),
            ("lifetime 10m | idle 570s", "i1 drains: expired; terminate i1"),
            ("lifetime 10m | held 50m by 7", ""),
            // What was set at its launch counts: a shorter key does too, a default does not.
            ("lifetime 10m | idle 569s lives 9m", "i1 drains: expired; terminate i1"),
            ("lifetime 10m | idle 570s lives 15m", "i1 drains: expired; terminate i1"),
            ("default_lifetime 10m | idle 570s lives 15m", ""),
            ("default_lifetime 10m | idle 870s lives 15m", "i1 drains: expired; terminate i1"),
            ("idle 569s lives 9m", "i1 drains: expired; terminate i1"),
            ("lifetime 10m | static idle 50m", ""),
            ("lifetime 10m, target 1 | idle 50m", "i1 drains: expired; i2 intended; terminate i1; launch i2"),
        ],
    );
}

#[test]
fn a_drained_pool_empties_as_its_jobs_end() {
    table(
        does,
        &[
            (
                "drained, target 1 | idle 5s; held 5m by 7; refused 5s; static idle 5m; waits 8",
                "i3 missed; i1 drains: byoperator; i3 drains: byoperator; terminate i1; terminate i3",
            ),
            ("drained | draining 5m", "terminate i1"),
        ],
    );
}

#[test]
fn the_least_recently_used_makes_room_for_a_job_of_another_project() {
    table(
        does,
        &[
            ("max 2 | idle 5m of a; idle 6m of b; waits 8 of c", "i2 drains: maderoom; terminate i2"),
            ("max 2 | idle 5m of a; held 6m by 7; waits 8 of c", "i1 drains: maderoom; terminate i1"),
            // Only as many as needed.
            ("max 3 | idle 5m of a; idle 6m of b; waits 8 of c", "i3 intended; launch i3"),
            ("max 2 | idle 5m of a; booting 5s; waits 8 of c", "probe i2"),
            ("max 2 | idle 5m of a; draining 5s; waits 8 of c", "terminate i2"),
            ("max 2 | idle 5m of a; refused 9m; waits 8 of c", "i2 missed; i2 intended (2); launch i2"),
            (
                "max 2, cap 2 | idle 5m of a; idle 6m of a; waits 8 of c; waits 9 of c",
                "i2 drains: maderoom; terminate i2",
            ),
            (
                "max 2 | idle 5m of a; idle 6m of a; waits 8 of c; waits 9 of d",
                "i2 drains: maderoom; i1 drains: maderoom; terminate i2; terminate i1",
            ),
            // An instance that is drained only when its job has ended makes no room.
            ("max 2 | idle 5m of a; draining 5s by 7; waits 8 of c", "i1 drains: maderoom; terminate i1"),
            // An instance without a record takes room, too.
            ("max 2 | idle 5m of a; orphan 5s; waits 8 of c", "i1 drains: maderoom; terminate i1"),
            ("max 1 | held 5m by 7; waits 8 of c", ""),
            ("max 0 | idle 5m of a; waits 8 of c", ""),
            ("max 2, reap | idle 5m of a; idle 6m of b; waits 8 of c", ""),
        ],
    );
}

#[test]
fn a_host_is_cleaned_for_a_job_of_another_project_if_a_clean_unbinds() {
    use crate::notation::{instance, render, world};
    let bound = |text: &str| {
        let mut world = world(text);
        for short in ["h1", "h2"] {
            if world.state.instance(&instance(short)).is_some_and(|i| i.phase.word() == "ready") {
                let change = crate::event::Change::CleaningBegun { instance: instance(short) };
                world.tell(crate::notation::NOW, change);
                let change = crate::event::Change::Cleaned { instance: instance(short), images: Vec::new() };
                world.tell(crate::notation::NOW, change);
            }
        }
        world.policy.clean_unbinds = !text.contains("stays");
        let text = render(&world.plan());
        text.strip_prefix("policy; ").unwrap_or(&text).to_owned()
    };
    assert_eq!(bound("hosts, bound | static idle 5m of b; waits 8 of a"), "h1 to clean; clean h1");
    let two = "hosts, bound | static idle 5m of b; static idle 6m of b; waits 8 of a";
    assert_eq!(bound(two), "h1 to clean; clean h1", "as many as needed");
    let under_way = "hosts, bound | static idle 5m of b; static cleaning 5s of b; waits 8 of a";
    assert_eq!(bound(under_way), "clean h2");
    assert_eq!(
        does("hosts | static idle 5m named 9 of b; waits 8 of a"),
        "h1 to clean",
        "when attempt 9 has ended"
    );
}

#[test]
fn a_host_is_cleaned_once_after_its_job_whatever_a_reboot_did_to_the_clock() {
    let mut world = world("bound | static idle 5m of a");
    let ready = world.state.instance(&instance("h1")).and_then(|i| i.ready).expect("it is idle");
    let mut left = |at: Stamp| {
        let host = world.state.instances.get_mut(&instance("h1")).expect("it is there");
        std::sync::Arc::make_mut(host).released = Some(at);
        render(&world.plan())
    };
    assert_eq!(left(ready), "h1 to clean; clean h1");
    let tomorrow = ready.wall_ms + 86_400_000;
    assert_eq!(left(Stamp { wall_ms: tomorrow, boot: BootId(6), uptime_ms: 900_000_000, ..NOW }), "");
}

#[test]
fn what_began_in_this_very_millisecond_is_not_begun_by_this_plan() {
    // The host's cleaning starts already; only the surplus launch is this plan's.
    assert_eq!(
        does("max 0, target 0 | requested 30s; static cleaning 0s starting"),
        "i1 missed; i1 drains: surplus; terminate i1"
    );
}

// Announced ends of instances, through the whole plan.

#[test]
fn an_instance_without_a_job_is_replaced_before_it_ends() {
    table(
        does,
        &[
            ("idle 5m ends now", "i1 drains: announced; terminate i1"),
            ("target 1 | idle 5m ends 1h", "i1 drains: announced; i2 intended; terminate i1; launch i2"),
            ("target 1 | idle 5m ends 2h", ""),
            // It becomes ready first, or dies.
            ("booting 5s ends now", "probe i1"),
            // A waiting job gets another instance.
            ("idle 5m ends now; waits 8", "i1 drains: announced; i2 intended; terminate i1; launch i2"),
            ("idle 5m ends now; idle 5m; waits 8", "i1 drains: announced; a8 gets i2; terminate i1"),
            ("static idle 5m ends now", ""),
            ("draining 5m ends now", "terminate i1"),
            ("idle 5m ends now named 8", ""),
        ],
    );
}

#[test]
fn what_only_an_instance_can_know_counts_like_what_is_listed() {
    table(
        does,
        &[
            ("idle 5m announced", "i1 drains: announced; terminate i1"),
            ("idle 5m announced ends now", "i1 drains: announced; terminate i1"),
            ("idle 5m announced ends 2h", "i1 drains: announced; terminate i1"),
            // The list is late, or fails.
            ("unlisted | idle 5m announced", "i1 drains: announced; terminate i1"),
            ("booting 5s announced", "probe i1"),
            ("static idle 5m announced", ""),
            ("held 5m by 7 announced", ""),
            ("idle 5m announced named 8", ""),
            ("idle 5m announced; waits 8", "i1 drains: announced; i2 intended; terminate i1; launch i2"),
        ],
    );
    table(
        notes,
        &[
            ("held 5m by 7 announced", "announced i1"),
            ("held 5m by 7 announced ends 2h", "announced i1"),
            // One after the other, in different words.
            ("held 5m by 7 announced ends now", "announced i1; announced i1"),
        ],
    );
}

#[test]
fn a_notice_from_two_sources_is_told_once() {
    let mut world = world("held 5m by 7 announced ends now");
    for notice in world.observed.announced.values_mut() {
        notice.text = "will end".to_owned();
    }
    let told = world.plan().report.notes;
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn a_job_keeps_its_instance_and_is_told() {
    table(does, &[("held 5m by 7 ends now", "")]);
    table(
        notes,
        &[
            ("held 5m by 7 ends now", "announced i1"),
            ("held 5m by 7 ends 1h", "announced i1"),
            ("held 5m by 7 ends 2h", ""),
            ("idle 5m ends now", ""),
        ],
    );
}

#[test]
fn a_pool_whose_provider_announces_ends_is_looked_at_while_it_has_instances() {
    let next = |line: &str| world(line).plan().report.next.map(|next| NOW.until(next));
    assert!(next("idle 5m") > Some(span("2s")));
    assert_eq!(next("notices 2s | idle 5m"), Some(span("2s")));
    assert_eq!(next("notices 2s | refused 5s"), next("refused 5s"));
    assert_eq!(next("notices 2s | "), None);
}
