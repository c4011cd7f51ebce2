//! Instances on which jobs failed before their own scripts began.

use crate::early::EarlyFailures;
use crate::event::{Change, Event};
use crate::job_end::{JobEnd, JobResult};
use crate::notation::{NOW, World, attempt, instance, render, render_events, world};
use crate::plan::{early, recheck};

const REASON: &str = "`get_sources` failed after 0.3 s with exit status 128";

/// The world after jobs of these projects have failed early on an instance.
fn failed_on(short: &str, projects: &[&str], text: &str) -> World {
    let mut world = world(text);
    let known = std::sync::Arc::make_mut(world.state.instances.get_mut(&instance(short)).unwrap());
    for (number, project) in (100..).zip(projects) {
        let row = EarlyFailures::with(known.early.as_ref(), &attempt(number), project, REASON);
        known.early = row.or(known.early.take());
    }
    world
}

/// The same, and a job has passed elsewhere.
fn proven(short: &str, text: &str) -> World {
    let mut world = failed_on(short, &["a", "b"], text);
    let known = std::sync::Arc::make_mut(world.state.instances.get_mut(&instance(short)).unwrap());
    known.early.as_mut().unwrap().pass_elsewhere = true;
    world
}

#[test]
fn a_suspect_instance_comes_last_whatever_else_decides() {
    for (projects, text, expected) in [
        (&["a"][..], "max 2 | idle 4m; idle 5m; waits 8", "a8 gets i1"),
        (&["a", "b"], "max 2 | idle 4m; idle 5m; waits 8", "a8 gets i2"),
        (&["a", "b"], "max 2, cap 3, any | held 4m by 7; idle 5m; waits 8", "a8 gets i2"),
        (&["a", "b"], "max 1 | idle 4m; waits 8", "a8 gets i1"),
    ] {
        assert_eq!(render(&failed_on("i1", projects, text).plan()), expected, "{text}");
    }
}

#[test]
fn it_is_replaced_once_others_pass_elsewhere_and_the_keeper_has_checked_it() {
    for (text, expected) in [
        ("max 1 | idle 5m of a", "i1 drains: failsearly; terminate i1"),
        ("max 1 | idle 5m of a unchecked", "check i1 between jobs"),
        ("max 1 | held 5m of a by 7", ""),
    ] {
        assert_eq!(render(&proven("i1", text).plan()), expected, "{text}");
    }
    assert_eq!(render(&failed_on("i1", &["a", "b"], "max 1 | idle 5m of a").plan()), "");
    assert_eq!(render(&proven("h1", "hosts | static idle 5m").plan()), "", "a host cannot be replaced");
    let checked = |text: &str, short: &str| {
        let world = proven(short, text);
        let left = world.state.instance(&instance(short)).unwrap().released.unwrap();
        let events: Vec<Event> = recheck::passed(&world.state, &instance(short), left, NOW);
        render_events(&events)
    };
    assert_eq!(checked("max 1 | idle 5m of a unchecked; waits 8", "i1"), "i1 is fit; i1 drains: failsearly");
    assert_eq!(
        checked("hosts, cap 2 | static held 5m of a by 7 unchecked; waits 8", "h1"),
        "h1 is fit; a8 gets h1"
    );
}

#[test]
fn a_failure_counts_once_a_project_and_where_another_job_may_follow() {
    let failed = |text: &str| render_events(&early::failed(&world(text).state, &attempt(7), REASON, NOW));
    for (text, expected) in [
        ("held 5m by 7", "a7 fails early"),
        ("hosts | static held 5m by 7", "a7 fails early"),
        ("max 1 | held 5m by 7 uses 0", ""),
        ("draining 5m by 7", ""),
        ("idle 5m", ""),
    ] {
        assert_eq!(failed(text), expected, "{text}");
    }
}

#[test]
fn a_job_that_passes_acquits_its_instance_and_testifies_against_others() {
    let ends = |result: JobResult| {
        let mut world = failed_on("i1", &["a", "b"], "max 2 | idle 4m; held 5m by 7");
        world.tell(NOW, Change::JobEnded { attempt: attempt(7), end: JobEnd::new(result, "") });
        world.state.instance(&instance("i1")).unwrap().early.clone().unwrap().pass_elsewhere
    };
    assert!(ends(JobResult::Passed));
    assert!(!ends(JobResult::Failed) && !ends(JobResult::SystemFailed));
    let mut own = failed_on("i1", &["a", "b"], "max 1 | held 5m by 7");
    own.tell(NOW, Change::JobEnded { attempt: attempt(7), end: JobEnd::new(JobResult::Passed, "") });
    assert_eq!(own.state.instance(&instance("i1")).unwrap().early, None);
}
