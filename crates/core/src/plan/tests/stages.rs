//! Instances that respond and begin no stages.

use std::sync::Arc;

use crate::event::Event;
use crate::ids::TrustDomain;
use crate::notation::{NOW, World, attempt, does, instance, render, render_events, table, waits, world};
use crate::plan::stages;
use crate::unbegun::{CheckKind, Unbegun};

/// Carries out the transaction of a `run` whose stage did not begin, for each of these jobs.
fn met(text: &str, jobs: &[u64]) -> (World, Vec<String>) {
    met_as(CheckKind::Stages, text, jobs)
}

fn met_as(kind: CheckKind, text: &str, jobs: &[u64]) -> (World, Vec<String>) {
    let mut world = world(text);
    let events = jobs.iter().map(|job| {
        let events = stages::not_begun(&world.state, &attempt(*job), (kind, "exit status 97"), NOW);
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
        let events = stages::not_begun(&world.state, &attempt(7), (CheckKind::Stages, "exit status 97"), NOW);
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
    let events: Vec<Event> = stages::begun(&doubted.state, &instance("i1"), CheckKind::Stages, NOW);
    assert_eq!(render_events(&events), "i1 begins a stage; a8 gets i1");
    assert_eq!(stages::begun(&world("idle 5m").state, &instance("i1"), CheckKind::Stages, NOW), []);
    let failed = |text: &str, short: &str| {
        let met = (CheckKind::Stages, "exit status 97");
        render_events(&stages::check_failed(&world(text).state, &instance(short), met, NOW))
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
            let events = stages::not_begun(&world.state, &attempt(7), met, NOW);
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
        render_events(&stages::check_failed(&world(text).state, &instance(short), met, NOW))
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
    assert_eq!(stages::check_failed(&held.state, &instance("i1"), met, NOW), [], "its job may be the cause");
    assert_eq!(render(&held.plan()), "check that containers start on i1", "later once more");
}

#[test]
fn a_stage_on_the_machine_acquits_no_engine() {
    let doubted = world("max 1 | idle 5m of a suspect; waits 8 of a");
    let begun = |kind| render_events(&stages::begun(&doubted.state, &instance("i1"), kind, NOW));
    assert_eq!(begun(CheckKind::Stages), "");
    assert_eq!(begun(CheckKind::Network), "");
    assert_eq!(begun(CheckKind::Engine), "i1 passes the check that containers start; a8 gets i1");
}
