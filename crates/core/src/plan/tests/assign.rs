//! Which job gets which instance.

use crate::notation::{does, table};

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
