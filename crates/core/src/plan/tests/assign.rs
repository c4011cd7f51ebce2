//! Tests of which job gets which instance.

use std::time::Duration;

use crate::event::Change;
use crate::failure::{ErrorClass, Failure};
use crate::instance::{Answer, DrainReason, Unreachable};
use crate::invariants;
use crate::notation::{
    NOW, World, ago, attempt, does, instance, notes, render, render_events, table, waits, world,
};
use crate::order::RefusedOrder;
use crate::plan::{Effect, request};

#[test]
fn the_fullest_instance_comes_first_then_the_most_recently_used_then_the_lower_id() {
    table(
        does,
        &[
            ("cap 3, any | idle 5m; held 9m by 7; waits 8", "a8 gets i2"),
            ("cap 3, any | held 5m by 6; held 9m by 7,5; waits 8", "a8 gets i2"),
            ("idle 5m; idle 4m; waits 8", "a8 gets i2"),
            ("idle 4m; idle 5m; waits 8", "a8 gets i1"),
            // Its last job ended later than the other became ready.
            ("idle 2m of a; idle 3m; waits 8", "a8 gets i1"),
            ("idle 5m; idle 5m; waits 8", "a8 gets i1"),
            ("cap 2 | idle 5m; idle 5m; waits 8; waits 9", "a8 gets i1; a9 gets i1"),
        ],
    );
}

#[test]
fn first_come_first_served_and_nobody_waits_for_somebody_elses_turn() {
    table(
        does,
        &[
            ("max 2 | idle 5m; held 1m by 7; waits 8; waits 9", "a8 gets i1"),
            // The first one suits no instance: the second one does not wait for it.
            ("max 1 | idle 5m of b; waits 8 of a; waits 9 of b", "a9 gets i1"),
            ("idle 5m; idle 4m; waits 8; waits 9", "a8 gets i2; a9 gets i1"),
        ],
    );
}

#[test]
fn an_instance_gets_no_more_jobs_than_it_has_slots_and_uses() {
    table(
        does,
        &[
            ("max 1, cap 2 | held 5m by 6,7; waits 8", ""),
            ("max 1, cap 2 | held 5m by 7; waits 8; waits 9", "a8 gets i1"),
            ("max 1, cap 2 | idle 5m uses 1; waits 8; waits 9", "a8 gets i1"),
            ("max 1, cap 2 | held 5m by 7 uses 0; waits 8", ""),
            // A closing attempt keeps its slot.
            ("max 1 | held 5s closing 7; waits 8", ""),
        ],
    );
}

#[test]
fn an_instance_is_capacity_only_for_the_domain_that_has_used_it() {
    table(
        does,
        &[
            ("max 1, bound | static idle 5m of b; waits 8 of a", "h1 to clean; clean h1"),
            (
                "max 2, cap 2 | held 5m by 7 of b; waits 8 of a; waits 9 of b",
                "a9 gets i1; i2 intended; launch i2",
            ),
            ("max 1, any | idle 5m of b; waits 8 of a", "a8 gets i1"),
            ("max 1, namespace | idle 5m of b; waits 8 of a", "a8 gets i1"),
            ("max 1, cap 2 | held 5m by 7 of b; waits 8 of b protected", ""),
            (
                "max 1, cap 2, namespace | held 5m by 7 of b protected; waits 8 of a; waits 9 of a protected",
                "a9 gets i1",
            ),
            ("max 1, cap 2, any | held 5m by 7 of b protected; waits 8 of a", "a8 gets i1"),
            ("max 1, hosts | static idle 5m of b protected; waits 8 of b", "h1 to clean; clean h1"),
            // The first of two jobs of different domains binds it.
            ("max 1, cap 2 | idle 5m; waits 8 of a; waits 9 of b", "a8 gets i1"),
        ],
    );
}

#[test]
fn what_an_earlier_boot_recorded_as_ready_is_not_handed_out() {
    table(
        does,
        &[
            ("max 1 | idle 5m old; waits 8", "i1 drains: rebooted; terminate i1"),
            ("max 1, hosts | static idle 5m old; waits 8", "h1 to clean; clean h1"),
            ("max 1, cap 2 | held 5m by 7 old; waits 8", ""),
        ],
    );
}

#[test]
fn what_a_store_that_forgets_nothing_recorded_is_handed_out_after_a_reboot_too() {
    table(
        does,
        &[
            ("max 1, durable | idle 5m old; waits 8", "a8 gets i1"),
            ("max 1, hosts, durable | static idle 5m old; waits 8", "a8 gets h1"),
            ("max 1, cap 2, durable | held 5m by 7 old; waits 8", "a8 gets i1"),
            // It booted for ten minutes, which is too long with or without a reboot.
            ("durable | booting 10s old", "i1 drains: neverready; terminate i1"),
        ],
    );
}

#[test]
fn an_instance_that_something_is_wrong_with_is_held_back() {
    table(
        does,
        &[
            ("max 1 | idle 5m starting; waits 8", "i1 drains: maderoom; terminate i1"),
            // What became ready after the list was begun is not starting any more.
            ("max 1, list 10s | idle 5s starting; waits 8", "a8 gets i1"),
            ("max 1, list 10s | static idle 5s stopping; waits 8", "a8 gets h1"),
            ("max 1 | idle 5m named 9; waits 8", ""),
            ("max 1, cap 2 | held 5m by 7 named 9; waits 8", ""),
            ("drained | static idle 5m; waits 8", ""),
        ],
    );
}

#[test]
fn a_job_gets_no_instance_that_dies_of_age_before_its_timeout() {
    table(
        does,
        &[
            ("max 1, lifetime 2h | idle 60m; waits 8 timeout 1h", "a8 gets i1"),
            ("max 1, lifetime 2h | idle 61m; waits 8 timeout 1h", "i1 drains: surplus; terminate i1"),
            (
                "max 2, lifetime 2h | idle 61m; idle 59m; waits 8 timeout 1h",
                "a8 gets i2; i1 drains: surplus; terminate i1",
            ),
            // A static host does not age, and an instance that has just become ready has its full lifetime left.
            ("hosts, lifetime 2h | static idle 9h; waits 8 timeout 1h", "a8 gets h1"),
            ("max 1, lifetime 1h | idle 0s; waits 8 timeout 1h", "a8 gets i1"),
        ],
    );
}

// Instances that jobs have ordered.

#[test]
fn a_job_gets_what_it_ordered_and_nothing_else() {
    table(
        does,
        &[
            ("orders | idle 5m; waits 8 orders ruby", "i2 intended for a8; launch i2"),
            ("orders | idle 5m; waits 8 orders ruby; waits 9", "a9 gets i1; i2 intended for a8; launch i2"),
            ("orders | idle 5s for 8; waits 8 orders ruby; waits 9", "a8 gets i1; i2 intended; launch i2"),
            (
                "orders | idle 5s for 9; waits 8 orders ruby; waits 9 orders ruby",
                "a9 gets i1; i2 intended for a8; launch i2",
            ),
            ("orders | booting 5s for 8; waits 8 orders ruby", "probe i1"),
            ("orders | booting 5s; waits 8 orders ruby", "i2 intended for a8; probe i1; launch i2"),
            ("orders | booting 5s for 8; waits 8 orders ruby; waits 9", "i2 intended; probe i1; launch i2"),
            // Whatever the policy says, it serves one job.
            (
                "orders, cap 3, uses 5 | idle 5s for 8; waits 8 orders ruby; waits 9",
                "a8 gets i1; i2 intended; launch i2",
            ),
            (
                "orders, any | idle 5s for 8; waits 8 orders ruby; waits 9",
                "a8 gets i1; i2 intended; launch i2",
            ),
        ],
    );
    let launched = world("orders, cap 3, uses 5 | waits 8 orders ruby").plan();
    let Change::LaunchIntended { capacity, uses_left, ordered, .. } = &launched.events[0].change else {
        panic!("{}", render(&launched))
    };
    assert_eq!((*capacity, *uses_left), (1, Some(1)));
    assert_eq!(ordered.as_ref().map(|ordered| ordered.order.to_string()), Some("image `ruby`".to_owned()));
}

#[test]
fn an_instance_that_its_job_no_longer_needs_is_drained_at_once() {
    table(
        does,
        &[
            ("orders | booting 5s for 8", "i1 drains: abandoned; terminate i1"),
            ("orders | checking 5s for 8", "i1 drains: abandoned; terminate i1"),
            (
                "orders, target 1, idle_time 20m | idle 5s for 8",
                "i1 drains: abandoned; i2 intended; terminate i1; launch i2",
            ),
            (
                "orders | booting 5s for 8; waits 9 orders ruby",
                "i1 drains: abandoned; i2 intended for a9; terminate i1; launch i2",
            ),
            ("orders | refused 20s missing 1s for 8", "i1 drains: abandoned; terminate i1"),
            // A job holds it, or may have begun there.
            ("orders | held 5m by 8 for 8", ""),
            ("orders | draining 5s by 8 for 8", ""),
            ("orders | booting 5s for 8 named 8", ""),
        ],
    );
}

#[test]
fn an_instance_that_its_job_found_unusable_is_replaced() {
    let mut rejected = world("orders | idle 5m for 8; waits 8 orders ruby");
    let reason = Unreachable::by_job("no answer");
    rejected
        .tell(ago(Duration::from_secs(5)), Change::BecameUnreachable { instance: instance("i1"), reason });
    let plan = rejected.plan();
    assert_eq!(render(&plan), "i1 drains: broken; i2 intended for a8; terminate i1; launch i2");
    let Change::DrainingBegun { reason: DrainReason::Broken { message }, .. } = &plan.events[0].change else {
        panic!("{}", render(&plan))
    };
    assert_eq!(message, "no answer");
}

#[test]
fn ordered_instances_count_for_the_limit_and_not_for_the_idle_target() {
    table(
        does,
        &[
            ("orders, target 1 | booting 5s for 8; waits 8 orders ruby", "i2 intended; probe i1; launch i2"),
            ("orders, target 1, max 1 | booting 5s for 8; waits 8 orders ruby", "probe i1"),
            ("orders, max 2 | held 5m by 7 for 7; held 5m by 6; waits 8", ""),
            // A full pool makes room for an order, and keeps what jobs have ordered.
            (
                "orders, target 2, max 2 | idle 5m; idle 4m; waits 8 orders ruby",
                "i1 drains: maderoom; terminate i1",
            ),
            ("orders, max 1 | held 5m by 7 for 7; waits 8", ""),
            ("orders, max 1 | booting 5s for 7; waits 7 orders ruby; waits 8", "probe i1"),
        ],
    );
}

#[test]
fn launches_go_to_both_kinds_in_the_order_of_the_queue() {
    table(
        does,
        &[
            ("orders, max 2 | held 5m by 7; waits 8 orders ruby; waits 9", "i2 intended for a8; launch i2"),
            ("orders, max 2 | held 5m by 7; waits 8; waits 9 orders ruby", "i2 intended; launch i2"),
            (
                "orders, launching 2 | waits 8; waits 9 orders ruby; waits 10",
                "i1 intended; i2 intended for a9; launch i1; launch i2",
            ),
            // One instance serves both jobs around the order.
            (
                "orders, any, cap 2, launching 2 | waits 8; waits 9 orders ruby; waits 10",
                "i1 intended; i2 intended for a9; launch i1; launch i2",
            ),
            (
                "orders, target 3, max 2 | waits 8 orders ruby",
                "i1 intended for a8; i2 intended; launch i1; launch i2",
            ),
        ],
    );
}

#[test]
fn a_refused_launch_is_repeated_for_the_same_kind_only() {
    table(
        does,
        &[
            (
                "orders | refused 20s missing 1s for 8; waits 8 orders ruby",
                "i1 intended (2) for a8; launch i1",
            ),
            (
                "orders | refused 20s missing 1s; waits 8 orders ruby",
                "i1 drains: surplus; i2 intended for a8; terminate i1; launch i2",
            ),
            (
                "orders, max 1 | refused 20s missing 1s; waits 8 orders ruby",
                "i1 drains: surplus; terminate i1",
            ),
            (
                "orders | refused 20s missing 1s for 8; waits 9",
                "i1 drains: abandoned; i2 intended; terminate i1; launch i2",
            ),
            // It pauses: no second one is launched for the job meanwhile.
            ("orders | refused 20s missing 1s for 8 failing 5s; waits 8 orders ruby", ""),
            (
                "orders, max 1 | refused 20s missing 1s for 9; waits 8; waits 9 orders ruby",
                "i1 drains: surplus; terminate i1",
            ),
        ],
    );
}

#[test]
fn a_refused_order_ends_its_instance_and_launches_nothing() {
    table(
        does,
        &[
            (
                "orders | booting 5s for 8 impossible; waits 8 orders ruby",
                "a8 order-refused; i1 drains: abandoned; terminate i1",
            ),
            // It is still running for another attempt's sake: that one does not hear of it.
            (
                "orders | booting 5s for 7 impossible; waits 8 orders ruby",
                "i1 drains: abandoned; i2 intended for a8; terminate i1; launch i2",
            ),
            // The operator has changed the configuration meanwhile.
            ("waits 8 orders ruby; waits 9", "a8 order-refused; i1 intended; launch i1"),
        ],
    );
    let mut refused = refused_world("orders | waits 8 orders ruby");
    assert_eq!(render(&refused.plan()), "");
    // The job that ordered it can be told once.
    let reason = RefusedOrder { reason: "no such image".to_owned(), by_job: true };
    assert_eq!(request::refuse_order(&refused.state, &attempt(8), &reason, NOW), []);
    refused.tell(NOW, Change::Withdrawn { attempt: attempt(8), how: crate::attempt::End::GivenBack });
    assert_eq!(request::refuse_order(&refused.state, &attempt(8), &reason, NOW), []);
    let plain = world("waits 8");
    assert_eq!(request::refuse_order(&plain.state, &attempt(8), &reason, NOW), []);
}

fn refused_world(text: &str) -> World {
    let mut world = world(text);
    let reason = RefusedOrder { reason: "no such image".to_owned(), by_job: true };
    let events = request::refuse_order(&world.state, &attempt(8), &reason, NOW);
    assert_eq!(render_events(&events), "a8 order-refused");
    world.carry(&events);
    world
}

#[test]
fn a_refused_order_and_a_failed_boot_of_one_say_nothing_about_other_launches() {
    let failure = |class| Failure { class, message: "no such image".to_owned() };
    let refused = |text: &str, class: ErrorClass| {
        let mut world = world(text);
        let answer = Answer::Refused { at: NOW, failure: failure(class) };
        world.tell(NOW, Change::LaunchAnswered { instance: instance("i1"), attempt: 1, answer });
        world.state
    };
    for text in [
        "orders | requested 5s for 8; waits 8 orders ruby",
        "orders, offerings 2 | requested 5s for 8 as c1; waits 8 orders ruby",
    ] {
        for class in [
            ErrorClass::Order { by_job: true },
            ErrorClass::Order { by_job: false },
            ErrorClass::NoCapacity { scope: "c1".to_owned() },
            ErrorClass::Quota,
            ErrorClass::Denied,
            ErrorClass::Invalid,
            ErrorClass::Throttled { until: None },
            ErrorClass::Transient,
        ] {
            let state = refused(text, class.clone());
            assert_eq!((state.launches.failures, &state.launches.last), (0, &None), "{text} {class}");
            assert!(!state.availability.has_refusals(), "{text} {class}");
            assert_eq!(invariants::check(&state), []);
        }
    }
    let mut late = world("orders | booting 5s for 8; waits 8 orders ruby; booting 5s; waits 9");
    late.tell(NOW, Change::DrainingBegun { instance: instance("i1"), reason: DrainReason::NeverReady });
    assert_eq!(late.state.launches.failures, 0);
    // Its job does not get another one before that one is gone.
    assert_eq!(render(&late.plan()), "terminate i1; probe i2");
    late.tell(NOW, Change::DrainingBegun { instance: instance("i2"), reason: DrainReason::NeverReady });
    assert_eq!(late.state.launches.failures, 1);
}

#[test]
fn a_job_with_an_order_waits_for_its_own_instance() {
    table(
        waits,
        &[(
            "orders | booting 5s; booting 5s for 8; waits 8 orders ruby; waits 9",
            "a8: i2 is booting; a9: i1 is booting",
        )],
    );
}

#[test]
fn an_unused_grant_leaves_the_instance_to_its_job() {
    let mut given_back = world("orders | idle 5s for 8; waits 8 orders ruby");
    given_back.tell(NOW, Change::Granted { attempt: attempt(8), instance: instance("i1") });
    given_back.tell(NOW, Change::Rejected { attempt: attempt(8), message: String::new() });
    assert_eq!(invariants::check(&given_back.state), []);
    let known = given_back.state.instance(&instance("i1")).expect("it is recorded");
    assert!(known.domain.is_some() && known.uses_left == Some(1), "{known:?}");
}

#[test]
fn a_jobs_own_launch_backs_off_by_itself() {
    table(
        does,
        &[
            // The next offering at once, then a pause of 5 s.
            (
                "orders, offerings 2 | waits 8 orders ruby; refused 2s as c1 missing 1s for 8",
                "i1 intended (2) as c2 for a8; launch i1",
            ),
            (
                "orders, offerings 1 | waits 8 orders ruby; refused 2s as c1 missing 1s for 8; waits 9",
                "i2 intended as c1; launch i2",
            ),
            (
                "orders, offerings 1 | waits 8 orders ruby; refused 9s as c1 missing 1s for 8",
                "i1 intended (2) as c1 for a8; launch i1",
            ),
            // The pause keeps its record, which gives way to what could be launched in its room.
            ("orders, offerings 1, max 1 | waits 8 orders ruby; refused 2s as c1 missing 1s for 8", ""),
            (
                "orders, offerings 1, max 1 | waits 8 orders ruby; refused 2s as c1 missing 1s for 8; waits 9",
                "i1 drains: surplus; terminate i1",
            ),
            (
                "orders, offerings 1, max 2 | waits 8 orders ruby; refused 2s as c1 missing 1s for 8; waits 9; waits 10",
                "i2 intended as c1; i1 drains: surplus; launch i2; terminate i1",
            ),
            // So does a launch that waits for the end of the pool's own pause.
            (
                "orders, failures 5 1s, max 1 | refused 2s missing 1s; waits 9 orders ruby; waits 8",
                "i1 drains: surplus; terminate i1",
            ),
        ],
    );
    table(
        waits,
        &[(
            "orders, offerings 1 | waits 8 orders ruby; refused 2s as c1 missing 1s for 8; waits 9",
            "a8: the launch of the job's own instance was refused (no capacity (zone)); a9: i2 is booting",
        )],
    );
    table(
        notes,
        &[(
            "orders, offerings 1, max 1 | waits 8 orders ruby; refused 2s as c1 missing 1s for 8; booting 5s; waits 9",
            "",
        )],
    );
}

#[test]
fn the_pools_pauses_are_not_those_of_orders() {
    table(
        does,
        &[
            ("orders, failures 5 1s | waits 8; waits 9 orders ruby", "i1 intended for a9; launch i1"),
            // The launch that a job ordered is not the trial.
            (
                "orders, failures 5 10m | booting 5s for 7; waits 7 orders ruby; waits 8; waits 9",
                "i2 intended; probe i1; launch i2",
            ),
            // What the pool's own launches have found out counts for both.
            ("orders, offerings 1, out c1 5s | waits 8 orders ruby", ""),
        ],
    );
    let mut ready = world("orders, failures 3 1s | checking 5s for 8; waits 8 orders ruby");
    ready.tell(NOW, Change::BecameReady { instance: instance("i1") });
    assert_eq!(ready.state.launches.failures, 3, "its success proves nothing, either");
}

#[test]
fn orders_leave_half_of_the_launches_to_the_pool() {
    let booting = |jobs: std::ops::RangeInclusive<u32>| {
        let one = |job| format!("booting 5s for {job}; waits {job} orders ruby");
        jobs.map(one).collect::<Vec<_>>().join("; ")
    };
    let launches = |text: &str| {
        let plan = world(text).plan();
        let launches = plan.effects.iter().filter(|effect| matches!(effect, Effect::Launch { .. }));
        launches.count()
    };
    for (settings, jobs, more, expected) in [
        ("launching 4", 10..=11, "waits 8", 1),
        ("launching 4", 10..=11, "waits 8 orders ruby of b", 0),
        // Two of one domain never take the last one.
        ("launching 4", 10..=10, "waits 8 orders ruby", 0),
        ("launching 4", 10..=10, "waits 8 orders ruby of b", 1),
        ("launching 4, any", 10..=10, "waits 8 orders ruby", 1),
        ("launching 1", 10..=10, "waits 8", 1),
        ("launching 1", 10..=10, "waits 8 orders ruby of b", 0),
        ("launching 10", 10..=14, "waits 8; waits 9; waits 7; waits 6; waits 5; waits 4", 5),
        // Idle instances of the pool, too.
        ("launching 4, target 3", 10..=11, "waits 8 orders ruby", 2),
    ] {
        let text = format!("orders, max 40, {settings} | {}; {more}", booting(jobs));
        assert_eq!(launches(&text), expected, "{text}");
    }
    let full =
        format!("orders, max 40, launching 4 | {}; waits 8 orders ruby of b; waits 9", booting(10..=11));
    assert!(
        waits(&full).ends_with(
            "a8: 2 launches of instances that jobs ordered are in progress, limit 2 (half of `max_launching`; the last one \
             is kept for other trust domains); a9: i3 is booting"
        ),
        "{}",
        waits(&full)
    );
    let mut rate = world("orders, max 40, rate 4 | waits 8 orders ruby; waits 9");
    rate.state.launches.recent_ordered = vec![ago(Duration::from_secs(5)); 2];
    assert_eq!(render(&rate.plan()), "i1 intended; launch i1");
}
