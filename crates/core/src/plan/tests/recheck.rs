//! The check between two jobs.

use crate::attempt::End;
use crate::event::{Change, Event};
use crate::instance::Release;
use crate::notation::{NOW, attempt, does, instance, render_events, table, waits, world};
use crate::plan::{recheck, request};
use crate::time::{BootId, Stamp};

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
        let events: Vec<Event> = recheck::passed(&world.state, &instance("i1"), began, NOW);
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
        render_events(&recheck::failed(&world(text).state, &instance(short), "disk full", NOW))
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
