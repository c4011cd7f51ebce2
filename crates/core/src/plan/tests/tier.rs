//! The tier *stopped*: what is suspended, resumed and retired.

use crate::notation::{does, notes, table, waits};

#[test]
fn what_is_idle_above_the_target_is_suspended_until_the_tier_is_full() {
    table(
        does,
        &[
            ("tier 1 | idle 5s", "i1 to suspend; suspend i1"),
            ("tier 1, target 1 | idle 5s; idle 9s", "i2 to suspend; suspend i2"),
            ("tier 1, target 1, cap 2 | idle 5s; idle 9s", "i2 to suspend; suspend i2"),
            ("tier 1, target 3, cap 2 | idle 5s; idle 9s", "i3 intended; launch i3"),
            ("tier 1 | idle 5s busy", "i1 to suspend"),
            ("tier 1 | stopped 5m; idle 5s", ""),
            ("tier 1 | suspending 5s stopping; idle 5s", ""),
            ("tier 2 | stopped 5m; idle 5s", "i2 to suspend; suspend i2"),
            // Bound to one project, unless it serves any.
            ("tier 1, max 1 | idle 5s of b", ""),
            ("tier 1, max 1, any | idle 5s of b", "i1 to suspend; suspend i1"),
            ("tier 1, max 1 | idle 5s named 9", ""),
            ("tier 1, max 1 | idle 5s starting", ""),
            ("tier 1, max 1, drained | held 5s by 7", ""),
            ("tier 1 no | idle 5s", ""),
            ("tier 1 unknown | idle 5s", ""),
        ],
    );
}

#[test]
fn the_tier_is_refilled_by_launches() {
    table(
        does,
        &[
            ("tier 2 | ", "i1 intended; i2 intended; launch i1; launch i2"),
            ("tier 2 | booting 5s", "i2 intended; probe i1; launch i2"),
            ("tier 1, target 1 | idle 5s", "i2 intended; launch i2"),
            ("tier 1, target 1 | booting 5s; booting 5s", "probe i1; probe i2"),
            ("tier 2, max 1 | stopped 5m", ""),
            ("tier 1 no | ", ""),
            ("tier 1 unknown | ", ""),
            // As long as suspensions fail, nothing is launched for them.
            ("tier 2, unsuspended 1 3s | ", ""),
            ("tier 2, unsuspended 1 6s | ", "i1 intended; i2 intended; launch i1; launch i2"),
            ("tier 2, unsuspended 5 4m | idle 5s", ""),
            ("tier 2, unsuspended 5 6m | idle 5s", "i1 to suspend; suspend i1"),
            ("tier 2, unsuspended 5 6m | suspending 5s stopping", ""),
        ],
    );
}

#[test]
fn a_job_that_finds_no_idle_instance_resumes_the_oldest_stopped_one() {
    table(
        does,
        &[
            ("tier 1 | stopped 5m; waits 8", "i1 to resume; i2 intended; resume i1; launch i2"),
            ("tier 1, max 1 | stopped 5m; waits 8", "i1 to resume; resume i1"),
            ("tier 2, max 2 | stopped 5m; stopped 6m; waits 8", "i2 to resume; resume i2"),
            (
                "tier 2, max 2 | stopped 5m; stopped 6m; waits 8; waits 9",
                "i2 to resume; i1 to resume; resume i2; resume i1",
            ),
            ("tier 2, max 2, cap 2 | stopped 5m; stopped 6m; waits 8; waits 9", "i2 to resume; resume i2"),
            (
                "tier 2, max 2, cap 2 | stopped 5m; stopped 6m; waits 8; waits 9 of b",
                "i2 to resume; i1 to resume; resume i2; resume i1",
            ),
            ("tier 1 | idle 5m; stopped 5m; waits 8", "a8 gets i1"),
            // What boots may take minutes.
            ("tier 1 | booting 5s; stopped 5m; waits 8", "i2 to resume; probe i1; resume i2"),
            ("tier 1, max 1 | resuming 5s; waits 8", "probe i1"),
            ("tier 2, max 2 | resuming 5s; stopped 5m; waits 8", "probe i1"),
            // It must live long enough.
            (
                "tier 1, max 2, lifetime 1h | stopped 5m; waits 8 timeout 40m",
                "i1 to resume; i2 intended; resume i1; launch i2",
            ),
            ("tier 1, max 2, lifetime 1h | stopped 5m; waits 8 timeout 55m", "i2 intended; launch i2"),
            ("tier 1, max 1 | stopped 5m busy; waits 8", "i1 to resume"),
            ("tier 1, max 1 | stopped 5m named 9; waits 8", ""),
            ("tier 1 unknown, max 1 | stopped 5m; waits 8", ""),
        ],
    );
}

#[test]
fn in_a_full_pool_stopped_instances_become_idle_ones() {
    table(
        does,
        &[
            ("tier 1, max 2, target 1 | stopped 5m; held 5m by 7", "i1 to resume; resume i1"),
            ("tier 1, max 3, target 1 | stopped 5m; held 5m by 7", "i3 intended; launch i3"),
            ("tier 1, max 2, target 1 | resuming 5s; held 5m by 7", "probe i1"),
        ],
    );
}

#[test]
fn what_the_list_shows_decides_about_each_of_the_tier() {
    table(
        does,
        &[
            ("tier 2, max 1 | suspending 5s", "suspend i1"),
            ("tier 2, max 1 | suspending 5s starting", "suspend i1"),
            ("tier 2, max 1 | suspending 5s stopping", ""),
            ("tier 2, max 1 | suspending 5s gone", "i1 missed"),
            ("tier 2, max 1 | suspending 5s suspended", "i1 stopped"),
            // RACE: a call that still runs would suspend it once more.
            ("tier 2, max 1 | suspending 5s suspended busy", ""),
            ("tier 2, max 1 | suspending 10m", "i1 drains: notsuspended; terminate i1"),
            ("tier 2, max 1 | suspending 10m suspended", "i1 stopped"),
            ("tier 2, max 1 | stopped 5m", ""),
            ("tier 2, max 1 | stopped 5m gone", "i1 missed"),
            ("tier 2, max 1, unlisted | stopped 5m", ""),
            ("tier 2, max 1 | stopped 5m running", "i1 to suspend; suspend i1"),
            ("tier 2, max 1 | stopped 5m stopping", "i1 drains: stopped; terminate i1"),
            ("tier 2, max 1 | stopped 5m missing 31s denied", "i1 drains: vanished; terminate i1"),
            ("tier 2, max 1 | stopped 5m old", "i1 drains: rebooted; terminate i1"),
            ("tier 2, max 1, durable | stopped 5m old", ""),
            ("tier 2, max 1 | resuming 5s suspended", "resume i1"),
            ("tier 2, max 1, unlisted | resuming 5s", "resume i1"),
            ("tier 2, max 1 | resuming 5s starting", "probe i1"),
            ("tier 2, max 1 | resuming 5s stopping", "i1 drains: stopped; terminate i1"),
            ("tier 2, max 1 | resuming 3m", "i1 drains: notresumed; terminate i1"),
            ("tier 2, max 1 | idle 5m suspended", "i1 drains: stopped; terminate i1"),
            ("tier 2, max 1 | stopped 5m in there gone", ""),
        ],
    );
}

#[test]
fn stopped_instances_are_retired_like_idle_ones() {
    table(
        does,
        &[
            ("tier 1 | stopped 5m; stopped 6m", "i1 drains: surplus; terminate i1"),
            ("stopped 5m", "i1 drains: surplus; terminate i1"),
            ("tier 1 no | stopped 5m", "i1 drains: surplus; terminate i1"),
            ("tier 1 unknown | stopped 5m", ""),
            ("tier 1, max 1, lifetime 1h | stopped 58m", ""),
            ("tier 1, max 1, lifetime 1h | stopped 59m", "i1 drains: expired; terminate i1"),
            ("tier 1, drained | stopped 5m", "i1 drains: byoperator; terminate i1"),
            ("tier 1, drained | suspending 5s", "i1 drains: byoperator; terminate i1"),
            ("tier 1, drained | resuming 5s", "i1 drains: byoperator; terminate i1"),
            ("tier 1, drained | suspending 5s stopping", "i1 drains: byoperator; terminate i1"),
            ("tier 1, drained | stopped 5m named 9", ""),
            ("tier 1, max 1 | stopped 5m announced", "i1 drains: announced; terminate i1"),
            // It does not live long enough for the job that waits.
            (
                "tier 1, max 1, lifetime 1h | stopped 5m; waits 8 timeout 55m",
                "i1 drains: maderoom; terminate i1",
            ),
        ],
    );
}

#[test]
fn operators_read_why_the_tier_is_empty_and_jobs_what_they_wait_for() {
    table(
        notes,
        &[
            ("tier 1 no | ", "cannot suspend"),
            ("tier 1 unknown | ", ""),
            ("tier 1, unsuspended 2 3s | ", "2 suspensions failed"),
            ("unsuspended 2 3s | ", ""),
        ],
    );
    let waiting = waits("tier 1, max 1 | stopped 5m; waits 8");
    assert_eq!(waiting, "a8: i1 was stopped and is being resumed");
}
