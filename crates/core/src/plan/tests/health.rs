//! Instances that do not respond, and whose fault that is.

use std::time::Duration;

use proptest::prelude::*;

use crate::event::Change;
use crate::notation::{World, ago, instance, notes_of, render, world};
use crate::plan::health::{Blame, HOLD, blame};

/// A world in which these instances became unreachable.
fn silent(text: &str, age: Duration, unreachable: &[&str]) -> World {
    let mut world = world(text);
    for short in unreachable {
        let reason = "no answer".to_owned();
        world.tell(ago(age), Change::BecameUnreachable { instance: instance(short), reason });
    }
    world
}

fn after(text: &str, unreachable: &[&str]) -> String {
    render(&silent(text, Duration::from_secs(5), unreachable).plan())
}

#[test]
fn the_majority_of_at_least_three_decides() {
    use Blame::{Instances, RunnerHost, Undecided};
    for (failed, responding, unknown, expected) in [
        (1, 0, 0, Instances),
        (2, 0, 0, Instances),
        (3, 0, 0, RunnerHost),
        (3, 2, 9, RunnerHost),
        (3, 3, 0, Instances),
        (1, 0, 1, Undecided),
        (2, 3, 1, Undecided),
        (3, 3, 1, Undecided),
        (3, 4, 99, Instances),
        (4, 4, 99, Instances),
        (5, 4, 99, RunnerHost),
    ] {
        assert_eq!(blame(failed, responding, unknown), expected, "{failed} {responding} {unknown}");
    }
}

proptest! {
    #[test]
    fn a_fault_that_hits_all_never_costs_three_instances(total in 3..50_usize, failed in 1..50_usize) {
        let failed = failed.min(total);
        prop_assert_ne!(blame(failed, 0, total - failed), Blame::Instances);
    }

    #[test]
    fn a_few_among_many_are_replaced_as_soon_as_the_others_respond(failed in 1..50_usize, rest in 0..50_usize) {
        prop_assert_eq!(blame(failed, failed + rest, 0), Blame::Instances);
    }

    #[test]
    fn a_decision_takes_only_a_few_probes(failed in 1..50_usize, responding in 4..50_usize, unknown in 0..99_usize) {
        prop_assert_ne!(blame(failed, responding, unknown), Blame::Undecided);
    }
}

#[test]
fn one_that_fails_alone_is_replaced_and_gets_no_job_until_then() {
    assert_eq!(
        after("target 1 | idle 5m", &["i1"]),
        "i1 drains: unresponsive; i2 intended; terminate i1; launch i2"
    );
    assert_eq!(
        after("target 2 | idle 5m; idle 5m", &["i1"]),
        "i1 drains: unresponsive; i3 intended; terminate i1; launch i3"
    );
    assert_eq!(
        after("target 2 | idle 5m; idle 5m unheard; waits 7", &["i1"]),
        "a7 gets i2; i1 drains: unresponsive; i3 intended; i4 intended; terminate i1; launch i3; launch i4",
    );
}

#[test]
fn others_are_probed_before_one_is_replaced() {
    let idle =
        "target 6 | idle 5m; idle 5m unheard; idle 5m unheard; idle 5m unheard; idle 5m; idle 5m unheard";
    assert_eq!(
        after(idle, &["i1"]),
        "check the health of i2; check the health of i3; check the health of i4; check the health of i6",
    );
}

#[test]
fn the_sample_counts_those_that_have_responded_since() {
    let mut world = silent(
        "target 7 | idle 5m; idle 5m; idle 5m; idle 5m; idle 5m; idle 5m",
        Duration::from_secs(5),
        &["i1"],
    );
    for short in ["i3", "i4", "i5", "i6"] {
        world.observed.healthy.insert(instance(short), ago(Duration::from_secs(10)));
    }
    world.observed.healthy.insert(instance("i2"), world.now);
    let probed = render(&world.plan());
    assert!(
        probed.ends_with("check the health of i3; check the health of i4; check the health of i5"),
        "{probed}"
    );
}

#[test]
fn most_of_them_are_kept_for_five_minutes_and_probed_again() {
    let idle = "target 4 | idle 5m; idle 5m; idle 5m; idle 5m";
    let kept = silent(idle, Duration::from_secs(299), &["i1", "i2", "i3"]);
    assert_eq!(
        render(&kept.plan()),
        "check the health of i1; check the health of i2; check the health of i3"
    );
    assert_eq!(notes_of(&kept), "suspect the runner host: 3 to 1");
    assert!(kept.plan().report.next.is_some());
    // Then they are probed once more, all of them, and replaced.
    let mut over = silent(idle, HOLD, &["i1", "i2", "i3"]);
    assert_eq!(notes_of(&over), "");
    assert!(render(&over.plan()).starts_with("check the health of i1; check the health of i2"));
    for short in ["i1", "i2", "i3"] {
        over.observed.unhealthy.insert(instance(short), ago(Duration::from_secs(1)));
    }
    assert!(!render(&over.plan()).contains("drains"), "probed before the time was over");
    for short in ["i1", "i2", "i3"] {
        over.observed.unhealthy.insert(instance(short), over.now);
    }
    assert!(
        render(&over.plan())
            .starts_with("i1 drains: unresponsive; i2 drains: unresponsive; i3 drains: unresponsive")
    );
}

#[test]
fn each_is_kept_for_its_own_five_minutes() {
    let text = "max 6, target 6 | idle 9m; idle 9m; idle 9m; idle 9m; idle 9m; idle 9m";
    let mut world = silent(text, HOLD, &["i1", "i2", "i3"]);
    for short in ["i4", "i5", "i6"] {
        let reason = "no answer".to_owned();
        world.tell(
            ago(Duration::from_mins(1)),
            Change::BecameUnreachable { instance: instance(short), reason },
        );
    }
    for short in ["i1", "i2", "i3", "i4", "i5", "i6"] {
        world.observed.unhealthy.insert(instance(short), world.now);
    }
    let plan = render(&world.plan());
    assert!(
        plan.starts_with("i1 drains: unresponsive; i2 drains: unresponsive; i3 drains: unresponsive"),
        "{plan}"
    );
    assert!(!plan.contains("i4 drains"), "{plan}");
    assert!(
        plan.contains("check the health of i4; check the health of i5; check the health of i6"),
        "{plan}"
    );
    assert_eq!(notes_of(&world), "suspect the runner host: 6 to 0");
}

#[test]
fn a_job_waits_for_one_that_may_respond_again() {
    let waiting =
        silent("max 3 | idle 5m; idle 5m; idle 5m; waits 7", Duration::from_secs(5), &["i1", "i2", "i3"]);
    let plan = waiting.plan();
    assert!(plan.events.is_empty(), "{}", render(&plan));
    assert_eq!(
        plan.report.waiting[0].1.to_string(),
        "p-g-1 does not respond, and is checked again: no answer"
    );
}
