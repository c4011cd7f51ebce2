//! Tests of what `prepare`, `cleanup` and operators' commands decide in their own transactions.

use std::sync::Arc;
use std::time::Duration;

use crate::attempt::End;
use crate::event::Change;
use crate::instance::{DrainReason, Release};
use crate::invariants::check;
use crate::notation::{NOW, World, attempt, facts, instance, render_events, world};
use crate::plan::request::{self, Ask};
use crate::policy::Policy;
use crate::pool::PoolState;

fn ask(job: u64, name: u64, superseded: &[(u64, bool)]) -> Ask {
    let leaving = |used| Release { how: End::Superseded, used, closing: false };
    Ask {
        attempt: attempt(name),
        job: facts(job, "a", Duration::from_hours(1)),
        policy: Arc::new(Policy::default()),
        superseded: superseded.iter().map(|(name, used)| (attempt(*name), leaving(*used))).collect(),
    }
}

/// Job 8 requests capacity in the world of a line.
fn acquires(text: &str) -> String {
    render_events(&request::acquire(&world(text).state, &ask(8, 8, &[]), NOW))
}

fn releases(text: &str, used: bool, closing: bool) -> String {
    let leaving = Release { how: End::CleanedUp, used, closing };
    render_events(&request::release(&world(text).state, &attempt(7), leaving, NOW))
}

#[test]
fn an_idle_instance_is_granted_at_once_and_else_the_job_waits() {
    assert_eq!(acquires("idle 5m"), "a8 asks; a8 gets i1");
    assert_eq!(acquires(""), "a8 asks");
    assert_eq!(acquires("idle 5m of b"), "a8 asks");
    assert_eq!(acquires("idle 5m old"), "a8 asks");
    assert_eq!(acquires("drained | idle 5m"), "a8 asks");
    // The one that waited before comes first.
    assert_eq!(acquires("idle 5m; waits 6"), "a8 asks; a6 gets i1");
}

#[test]
fn a_pool_without_a_policy_gets_the_callers() {
    let mut world = world("idle 5m");
    let events = |state: &PoolState| render_events(&request::acquire(state, &ask(8, 8, &[]), NOW));
    assert_eq!(events(&PoolState::default()), "policy; a8 asks");
    world.state.policy = None;
    assert_eq!(events(&world.state), "policy; a8 asks; a8 gets i1");
}

#[test]
fn however_often_prepare_is_repeated_a_job_has_one_grant() {
    let mut world = world("idle 5m; idle 6m; idle 7m");
    for (name, superseded, expected) in [
        (8, vec![], "a8 asks; a8 gets i1"),
        (8, vec![], ""),
        (8, vec![], ""),
        (9, vec![(8, false)], "a8 leaves unused; a9 asks; a9 gets i1"),
        (9, vec![], ""),
        (10, vec![(9, true)], "a9 leaves; a10 asks; a10 gets i2"),
    ] {
        let events = request::acquire(&world.state, &ask(8, name, &superseded), NOW);
        assert_eq!(render_events(&events), expected);
        world.carry(&events);
        assert_eq!(world.state.granted.len(), 1);
        assert_eq!(check(&world.state), []);
    }
}

#[test]
fn an_attempt_that_came_in_between_is_closed_first() {
    let mut world = world("idle 5m; idle 6m");
    world.carry(&request::acquire(&world.state, &ask(8, 8, &[]), NOW));
    // Attempt 9 read the attempts before attempt 8 requested: it finds none to close.
    assert_eq!(request::acquire(&world.state, &ask(8, 9, &[]), NOW), []);
    let events = request::acquire(&world.state, &ask(8, 9, &[(8, false)]), NOW);
    assert_eq!(render_events(&events), "a8 leaves unused; a9 asks; a9 gets i1");
}

#[test]
fn an_earlier_attempt_leaves_first_and_its_place_in_the_queue_stays_the_jobs() {
    let mut world = world("max 1 | held 5m by 1; waits 8 10m; waits 2");
    let events = request::acquire(&world.state, &ask(8, 9, &[(8, false)]), NOW);
    assert_eq!(render_events(&events), "a8 withdrawn; a9 asks");
    world.carry(&events);
    let first = world.state.waiting.values().next().unwrap();
    assert_eq!(first.attempt, attempt(9), "still before job 2");
    assert_eq!(first.remaining_timeout, Duration::from_mins(20));
    // Held and returned unused before the next attempt of the same job takes it.
    let held = self::world("max 1, uses 1 | held 5m by 8 uses 0; waits 2");
    let events = request::acquire(&held.state, &ask(8, 9, &[(8, false)]), NOW);
    assert_eq!(render_events(&events), "a8 leaves unused; a9 asks; a9 gets i1");
}

#[test]
fn an_unused_slot_reaches_the_oldest_waiting_job_in_the_same_transaction() {
    assert_eq!(releases("held 5m by 7; waits 8; waits 9", true, false), "a7 leaves", "it is checked first");
    assert_eq!(releases("held 5m by 7; waits 8", false, false), "a7 leaves unused; a8 gets i1");
    assert_eq!(releases("held 5m by 7; waits 8", true, true), "a7 lingers");
    assert_eq!(releases("drained | held 5m by 7; waits 8", true, false), "a7 leaves");
    assert_eq!(
        releases("cap 2 | held 5m by 6,7 of b; waits 8 of a; waits 9 of b", false, false),
        "a7 leaves unused; a9 gets i1"
    );
    // No job had used it: it is available to all domains again.
    assert_eq!(releases("held 5m by 7; waits 8 of b", false, false), "a7 leaves unused; a8 gets i1");
}

#[test]
fn what_has_served_its_last_job_is_drained_and_a_host_is_cleaned() {
    assert_eq!(releases("held 5m by 7 uses 0; waits 8", true, false), "a7 leaves; i1 drains: usedup");
    assert_eq!(releases("held 5m by 7 uses 0; waits 8", false, false), "a7 leaves unused; a8 gets i1");
    assert_eq!(releases("cap 2 | held 5m by 6,7 uses 0", true, false), "a7 leaves");
    assert_eq!(releases("static held 5m by 7; waits 8", true, false), "a7 leaves; h1 to clean");
    assert_eq!(releases("static held 5m by 7; waits 8 of b", false, false), "a7 leaves unused; a8 gets h1");
    assert_eq!(releases("uses 3 | static held 5m by 7 uses 0", true, false), "a7 leaves; h1 to clean");
    assert_eq!(releases("static out-of-service 5m by 7", true, false), "a7 leaves");
    assert_eq!(releases("draining 5m by 7", true, false), "a7 leaves");
}

#[test]
fn a_slot_that_a_pass_left_closing_is_free_when_its_cleanup_knows_of_no_call() {
    assert_eq!(releases("held 5m closing 7; waits 8", true, false), "a7 departs");
    assert_eq!(releases("held 5m closing 7 uses 0", true, false), "a7 departs; i1 drains: usedup");
    assert_eq!(releases("static held 5m closing 7", true, false), "a7 departs; h1 to clean");
    assert_eq!(releases("held 5m closing 7; waits 8", true, true), "");
    assert_eq!(releases("held 5m closing 9; waits 8", true, false), "");
}

#[test]
fn to_give_back_nothing_changes_nothing() {
    assert_eq!(releases("idle 5m; waits 8", true, false), "");
    assert_eq!(releases("waits 7", false, false), "a7 withdrawn");
}

#[test]
fn a_job_that_finds_its_instance_broken_gets_another_one_at_once() {
    let rejects =
        |text: &str| render_events(&request::reject(&world(text).state, &attempt(7), "no answer", NOW));
    assert_eq!(rejects("held 5m by 7; idle 6m; waits 8"), "a7 rejects; i1 doubted; a7 gets i2");
    assert_eq!(rejects("held 5m by 7; waits 8"), "a7 rejects; i1 doubted");
    assert_eq!(rejects("static held 5m by 7; waits 8"), "a7 rejects; h1 doubted");
    assert_eq!(rejects("cap 2 | held 5m by 6,7"), "a7 rejects; i1 doubted");
    assert_eq!(rejects("cap 2 | draining 5m by 6,7"), "a7 rejects");
    assert_eq!(rejects("static out-of-service 5m by 7"), "a7 rejects");
    assert_eq!(rejects("idle 5m; waits 7"), "");
}

#[test]
fn a_host_that_was_doubted_while_jobs_were_on_it_is_cleaned_all_the_same() {
    let mut world = world("cap 2 | static held 5m by 6,7; waits 8");
    let events = request::reject(&world.state, &attempt(7), "no answer", NOW);
    assert_eq!(render_events(&events), "a7 rejects; h1 doubted", "nobody else gets it");
    world.carry(&events);
    let leaving = Release { how: End::CleanedUp, used: true, closing: false };
    let events = request::release(&world.state, &attempt(6), leaving, NOW);
    assert_eq!(render_events(&events), "a6 leaves; h1 to clean");
    let mut twice = self::world("cap 2 | static held 5m by 6,7");
    twice.carry(&request::reject(&twice.state, &attempt(7), "no answer", NOW));
    let events = request::reject(&twice.state, &attempt(6), "no answer", NOW);
    assert_eq!(render_events(&events), "a6 rejects", "it still comes back by itself");
    let doubts = |text: &str| {
        render_events(&request::doubt(&self::world(text).state, &instance("h1"), "no answer", NOW))
    };
    assert_eq!(doubts("static idle 5m"), "h1 doubted");
    assert_eq!(doubts("static cleaning 5m"), "");
    assert_eq!(doubts("static out-of-service 5m"), "");
}

#[test]
fn a_launched_instance_is_doubted_once_and_only_while_it_is_idle() {
    let doubt =
        |world: &World| render_events(&request::doubt(&world.state, &instance("i1"), "no answer", NOW));
    let mut idle = self::world("idle 5m");
    assert_eq!(doubt(&idle), "i1 doubted");
    idle.carry(&request::doubt(&idle.state, &instance("i1"), "no answer", NOW));
    assert_eq!(doubt(&idle), "", "it is doubted already");
    assert_eq!(doubt(&self::world("held 5m by 7")), "", "the job's own connection decides");
}

#[test]
fn an_instance_that_is_ready_goes_to_the_first_waiting_jobs() {
    let ready =
        |text: &str, short: &str| render_events(&request::ready(&world(text).state, &instance(short), NOW));
    assert_eq!(ready("checking 5s; waits 8; waits 9", "i1"), "i1 ready; a8 gets i1");
    assert_eq!(ready("cap 2 | checking 5s; waits 8; waits 9", "i1"), "i1 ready; a8 gets i1; a9 gets i1");
    assert_eq!(ready("lifetime 1h | checking 5s; waits 8 timeout 1h", "i1"), "i1 ready; a8 gets i1");
    // It was checked, and unbound meanwhile.
    assert_eq!(ready("static cleaning 5s of b; waits 8", "h1"), "");
    for text in ["booting 5s", "idle 5m", "draining 5s", ""] {
        assert_eq!(ready(text, "i1"), "", "{text}");
    }
    assert_eq!(ready("static out-of-service 5m", "h1"), "");
    let mut without = world("checking 5s; waits 8");
    without.state.policy = None;
    assert_eq!(render_events(&request::ready(&without.state, &instance("i1"), NOW)), "i1 ready");
}

#[test]
fn a_host_that_answers_for_the_first_time_is_cleaned_before_a_job_gets_it() {
    let host = instance("h1");
    let ready = |world: &World| render_events(&request::ready(&world.state, &host, NOW));
    let mut world = world("static checking 5s; waits 8");
    assert_eq!(ready(&world), "h1 to clean");
    world.carry(&request::ready(&world.state, &host, NOW));
    // Neither an operator nor a failure makes up for a cleaning that has not succeeded.
    let reason = "cleaning failed: no".to_owned();
    world.tell(NOW, Change::OutOfService { instance: host.clone(), reason });
    world.tell(NOW, Change::ReturnedToService { instance: host.clone() });
    assert_eq!(ready(&world), "h1 to clean");
    world.carry(&request::ready(&world.state, &host, NOW));
    assert_eq!(
        render_events(&request::cleaned(&world.state, &host, NOW, &[], NOW)),
        "h1 cleaned; a8 gets h1"
    );
    // Once clean, it needs no further cleaning until a job has used it.
    world.carry(&request::cleaned(&world.state, &host, NOW, &[], NOW));
    let mut later = self::world("static idle 5m");
    later.carry(&request::doubt(&later.state, &host, "no answer", NOW));
    assert_eq!(ready(&later), "h1 ready");
}

#[test]
fn a_host_that_is_clean_goes_to_the_first_waiting_jobs_of_its_domain() {
    let cleaned = |text: &str| {
        let world = world(text);
        let host = instance("h1");
        let begun = world.state.instances[&host].since;
        render_events(&request::cleaned(&world.state, &host, begun, &[], NOW))
    };
    assert_eq!(cleaned("static cleaning 5s of b; waits 8"), "h1 cleaned; a8 gets h1");
    assert_eq!(cleaned("bound | static cleaning 5s of b; waits 8"), "h1 cleaned");
    for text in ["static checking 5s; waits 8", "static idle 5m", "static out-of-service 5m"] {
        assert_eq!(cleaned(text), "", "{text}");
    }
}

#[test]
fn a_cleaning_that_began_before_the_host_was_unbound_does_not_make_it_ready() {
    let mut world = world("bound | static cleaning 5s of b; waits 8");
    let host = instance("h1");
    let begun = world.state.instances[&instance("h1")].since;
    let cleaned =
        |world: &World, begun| render_events(&request::cleaned(&world.state, &host, begun, &[], NOW));
    assert_eq!(cleaned(&world, begun), "h1 cleaned");
    world.tell(NOW, Change::Unbound { instance: host.clone() });
    assert_eq!(cleaned(&world, begun), "");
    assert_eq!(cleaned(&world, NOW), "h1 cleaned; a8 gets h1");
}

#[test]
fn an_instance_leaves_service_without_harm_to_its_jobs() {
    let leaves = |text: &str| {
        let World { state, .. } = world(text);
        let id = state.instances.keys().next().cloned().unwrap_or_else(|| instance("i1"));
        render_events(&request::withdraw(&state, &id, DrainReason::ByOperator, NOW))
    };
    for text in ["requested 5s", "booting 5s", "checking 5s", "idle 5m", "held 5m by 7"] {
        assert_eq!(leaves(text), "i1 drains: byoperator", "{text}");
    }
    for text in ["static checking 5s", "static idle 5m", "static held 5m by 7", "static cleaning 5s"] {
        assert_eq!(leaves(text), "h1 out-of-service", "{text}");
    }
    assert_eq!(leaves("draining 5s"), "");
    assert_eq!(leaves("static out-of-service 5s"), "");
    assert_eq!(leaves(""), "");
}
