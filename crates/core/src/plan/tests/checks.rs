//! Instances that respond and begin no stages.

use std::sync::Arc;

use crate::attempt::End;
use crate::event::{Change, Event};
use crate::ids::TrustDomain;
use crate::instance::Release;
use crate::job_end::{JobEnd, JobResult};
use crate::notation::{NOW, World, attempt, does, instance, render, render_events, table, waits, world};
use crate::plan::{checks, request};
use crate::time::{BootId, Stamp};
use crate::unbegun::{CheckKind, EarlyFailures, Unbegun};

/// Carries out the transaction of a `run` whose stage did not begin, for each of these jobs.
fn met(text: &str, jobs: &[u64]) -> (World, Vec<String>) {
    met_as(CheckKind::Stages, text, jobs)
}

fn met_as(kind: CheckKind, text: &str, jobs: &[u64]) -> (World, Vec<String>) {
    let mut world = world(text);
    let events = jobs.iter().map(|job| {
        let events = checks::not_begun(&world.state, &attempt(*job), (kind, "exit status 97"), NOW);
        world.carry(&events);
        render_events(&events)
    });
    let events = events.collect();
    (world, events)
}

#[test]
fn two_trust_domains_put_an_instance_out_of_use_in_the_same_transaction() {
    let after = |text: &str| met(text, &[7]).1.join("");
    table(
        after,
        &[
            ("held 5m by 7", "a7 begins no stage"),
            ("held 5m of a by 7 unbegun", "a7 begins no stage"),
            ("hosts | static held 5m by 7", "a7 begins no stage"),
        ],
    );
    let row =
        Unbegun::with(None, &attempt(3), &TrustDomain::new("g/b"), (CheckKind::Stages, "exit status 97"));
    for (text, short, expected) in [
        ("static held 5m by 7", "h1", "a7 begins no stage; h1 out-of-service"),
        ("held 5m by 7", "i1", "a7 begins no stage; i1 drains: beginsnostage"),
    ] {
        let mut world = world(text);
        let known = world.state.instances.get_mut(&instance(short)).unwrap();
        Arc::make_mut(known).unbegun.clone_from(&row);
        let events = checks::not_begun(&world.state, &attempt(7), (CheckKind::Stages, "exit status 97"), NOW);
        assert_eq!(render_events(&events), expected);
    }
}

#[test]
fn an_attempt_counts_once_and_only_while_it_holds_an_instance_in_service() {
    let (_, events) = met("held 5m by 7", &[7, 7, 9]);
    assert_eq!(events, ["a7 begins no stage", "", ""]);
    assert_eq!(met("draining 5m by 7", &[7]).1, [""]);
    assert_eq!(met("static out-of-service 5m by 7", &[7]).1, [""]);
    assert_eq!(met("held 5m closing 7", &[7]).1, [""]);
}

#[test]
fn after_two_jobs_of_one_domain_the_keeper_checks_before_the_next() {
    table(
        does,
        &[
            ("max 1 | idle 5m of a unbegun; waits 8 of a", "a8 gets i1"),
            ("max 1 | idle 5m of a unbegun twice; waits 8 of a", "check that stages begin on i1"),
            ("max 1 | idle 5m of a unbegun twice busy; waits 8 of a", ""),
            ("max 1 | idle 5m of a unbegun twice failing 5s; waits 8 of a", ""),
            ("hosts | static cleaning 5s of a unbegun twice", "clean h1"),
        ],
    );
    let (held, events) = met("max 1 | held 5m of a by 7 unbegun", &[7]);
    assert_eq!(events, ["a7 begins no stage"]);
    assert_eq!(render(&held.plan()), "check that stages begin on i1", "its job may go on");
    assert_eq!(
        waits("max 1 | idle 5m of a unbegun twice; waits 8 of a"),
        "a8: i1 began no stages of its last jobs, and is checked"
    );
}

#[test]
fn a_stage_that_begins_ends_the_row_and_the_waiting_job_gets_the_instance() {
    let doubted = world("max 1 | idle 5m of a unbegun twice; waits 8 of a");
    let events: Vec<Event> = checks::begun(&doubted.state, &instance("i1"), CheckKind::Stages, NOW);
    assert_eq!(render_events(&events), "i1 begins a stage; a8 gets i1");
    assert_eq!(checks::begun(&world("idle 5m").state, &instance("i1"), CheckKind::Stages, NOW), []);
    let failed = |text: &str, short: &str| {
        let met = (CheckKind::Stages, "exit status 97");
        render_events(&checks::check_failed(&world(text).state, &instance(short), met, NOW))
    };
    assert_eq!(failed("idle 5m of a unbegun twice", "i1"), "i1 drains: beginsnostage");
    assert_eq!(failed("static idle 5m of a unbegun twice", "h1"), "h1 out-of-service");
    assert_eq!(failed("idle 5m of a unbegun", "i1"), "", "a stage has begun since the check was planned");
}

#[test]
fn a_container_that_does_not_start_brings_the_keepers_check_and_nothing_else() {
    let row =
        Unbegun::with(None, &attempt(3), &TrustDomain::new("g/b"), (CheckKind::Engine, "exit status 125"));
    for (text, short) in [("held 5m by 7", "i1"), ("hosts | static held 5m by 7", "h1")] {
        let mut world = world(text);
        for met_before in [None, row.clone()] {
            Arc::make_mut(world.state.instances.get_mut(&instance(short)).unwrap()).unbegun = met_before;
            let met = (CheckKind::Engine, "exit status 125");
            let events = checks::not_begun(&world.state, &attempt(7), met, NOW);
            assert_eq!(render_events(&events), "a7 wants a check that containers start", "{text}");
        }
        let (world, _) = met_as(CheckKind::Engine, text, &[7]);
        assert_eq!(render(&world.plan()), format!("check that containers start on {short}"), "{text}");
    }
    table(
        does,
        &[
            ("max 1 | idle 5m of a suspect; waits 8 of a", "check that containers start on i1"),
            (
                "max 1 | idle 5m of a disconnected; waits 8 of a",
                "check that containers start in a network on i1",
            ),
            ("max 1 | idle 5m of a suspect disconnected; waits 8 of a", "check that containers start on i1"),
            ("hosts | static cleaning 5s of a suspect", "clean h1"),
        ],
    );
    assert_eq!(
        waits("max 1 | idle 5m of a suspect; waits 8 of a"),
        "a8: i1 did not start the last job's containers, and is checked"
    );
}

#[test]
fn only_a_check_of_an_instance_without_jobs_takes_it_out_of_service() {
    let failed = |text: &str, short: &str, kind| {
        let met = (kind, "`podman run` failed");
        render_events(&checks::check_failed(&world(text).state, &instance(short), met, NOW))
    };
    for (text, short, expected) in [
        ("idle 5m of a suspect", "i1", "i1 drains: failedcheck"),
        ("static idle 5m of a suspect", "h1", "h1 out-of-service"),
        ("idle 5m of a", "i1", ""),
        ("idle 5m of a unbegun", "i1", ""),
        ("idle 5m of a disconnected", "i1", ""),
    ] {
        assert_eq!(failed(text, short, CheckKind::Engine), expected, "{text}");
    }
    assert_eq!(failed("idle 5m of a disconnected", "i1", CheckKind::Network), "i1 drains: failedcheck");
    let (held, _) = met_as(CheckKind::Engine, "cap 2 | held 5m of a by 7", &[7]);
    let met = (CheckKind::Engine, "`podman run` failed");
    assert_eq!(checks::check_failed(&held.state, &instance("i1"), met, NOW), [], "its job may be the cause");
    assert_eq!(render(&held.plan()), "check that containers start on i1", "later once more");
}

#[test]
fn a_stage_on_the_machine_acquits_no_engine() {
    let doubted = world("max 1 | idle 5m of a suspect; waits 8 of a");
    let begun = |kind| render_events(&checks::begun(&doubted.state, &instance("i1"), kind, NOW));
    assert_eq!(begun(CheckKind::Stages), "");
    assert_eq!(begun(CheckKind::Network), "");
    assert_eq!(begun(CheckKind::Engine), "i1 passes the check that containers start; a8 gets i1");
}

// The check between two jobs.

const USED: Release = Release { how: End::CleanedUp, used: true, closing: false };

/// The transaction of job 7's `cleanup`.
fn left(text: &str, leaving: Release) -> String {
    render_events(&request::release(&world(text).state, &attempt(7), leaving, NOW))
}

#[test]
fn the_next_job_waits_until_the_instance_was_checked() {
    table(
        |text| left(text, USED),
        &[
            ("max 1 | held 5m by 7; waits 8", "a7 leaves"),
            ("max 1, cap 2 | held 5m by 7,9; waits 8", "a7 leaves"),
            ("max 1 | held 5m by 7 uses 0; waits 8 of b", "a7 leaves; i1 drains: usedup"),
            ("hosts | static held 5m by 7; waits 8", "a7 leaves; h1 to clean"),
        ],
    );
    let unused = Release { used: false, ..USED };
    assert_eq!(left("max 1 | held 5m by 7; waits 8", unused), "a7 leaves unused; a8 gets i1");
}

#[test]
fn an_instance_is_checked_after_each_job_and_not_before_its_last_call_is_gone() {
    table(
        does,
        &[
            ("max 1 | idle 5m of a; waits 8", "a8 gets i1"),
            ("max 1 | idle 5m of a unchecked; waits 8", "check i1 between jobs"),
            ("max 1 | idle 5m of a unchecked busy; waits 8", ""),
            ("max 1 | idle 5m of a unchecked failing 5s; waits 8", ""),
            ("max 1, cap 2 | held 5m of a by 7 unchecked; waits 8", "check i1 between jobs"),
            ("max 1 | held 5s of a closing 7 unchecked; waits 8", ""),
            ("max 1, cap 2 | held 5s of a closing 7 unchecked; waits 8", "check i1 between jobs"),
            ("max 1 | idle 5m of a unchecked uses 0", "i1 drains: usedup; terminate i1"),
            ("max 1 | idle 5m of a unchecked unbegun twice; waits 8", "check that stages begin on i1"),
            ("hosts, cap 2 | static held 5m of a by 7 unchecked; waits 8", "check h1 between jobs"),
        ],
    );
    assert_eq!(waits("max 1 | idle 5m of a unchecked; waits 8"), "a8: i1 is checked after its last job");
}

#[test]
fn a_check_counts_for_the_job_that_left_before_it_began() {
    let checked = |text: &str, of_last: bool| {
        let world = world(text);
        let released = world.state.instance(&instance("i1")).unwrap().released.unwrap();
        let began = if of_last { released } else { NOW };
        let events: Vec<Event> = checks::recheck_passed(&world.state, &instance("i1"), began, NOW);
        render_events(&events)
    };
    assert_eq!(checked("max 1 | idle 5m of a unchecked; waits 8", true), "i1 is fit; a8 gets i1");
    assert_eq!(checked("max 1 | idle 5m of a unchecked; waits 8", false), "", "another job has left since");
    assert_eq!(checked("max 1 | idle 5m of a; waits 8 of b", true), "", "it was checked before");
    assert_eq!(checked("draining 5m of a unchecked", true), "");
}

#[test]
fn a_check_counts_after_a_reboot_that_set_the_clock_back() {
    let mut world = world("max 1 | idle 5m of a unchecked; waits 8");
    let after = Stamp { wall_ms: NOW.wall_ms - 86_400_000, boot: BootId(8), uptime_ms: 60_000, ..NOW };
    world.tell(after, Change::Rechecked { instance: instance("i1") });
    assert!(!world.state.instance(&instance("i1")).unwrap().awaits_recheck());
}

#[test]
fn an_unfit_instance_is_replaced_and_an_unfit_host_goes_out_of_service() {
    let failed = |text: &str, short: &str| {
        render_events(&checks::recheck_failed(&world(text).state, &instance(short), "disk full", NOW))
    };
    assert_eq!(failed("idle 5m of a unchecked", "i1"), "i1 drains: unfit");
    assert_eq!(failed("cap 2 | held 5m of a by 7 unchecked", "i1"), "i1 drains: unfit");
    assert_eq!(failed("hosts, cap 2 | static held 5m of a by 7 unchecked", "h1"), "h1 out-of-service");
    assert_eq!(failed("idle 5m of a", "i1"), "", "it was checked since");
}

#[test]
fn an_instance_that_is_being_checked_is_capacity_on_its_way() {
    table(
        does,
        &[
            ("max 4, any, target 1 | idle 5m of a unchecked", "check i1 between jobs"),
            ("max 4 | idle 5m of a unchecked; waits 8", "check i1 between jobs"),
            ("max 4 | idle 5m of a unchecked; waits 8 of b", "i2 intended; launch i2; check i1 between jobs"),
            ("max 4, idle_time 1m | idle 5m of a unchecked", "check i1 between jobs"),
            ("drained | idle 5m of a unchecked", "i1 drains: byoperator; terminate i1"),
        ],
    );
}

// Instances on which jobs failed before their own scripts began.

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

/// A world in which jobs of two projects failed early on the instance, and a job has passed elsewhere.
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
        let events: Vec<Event> = checks::recheck_passed(&world.state, &instance(short), left, NOW);
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
    let failed =
        |text: &str| render_events(&checks::failed_early(&world(text).state, &attempt(7), REASON, NOW));
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
