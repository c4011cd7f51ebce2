//! Tests of when a launch may be tried again.

use std::time::Duration;

use crate::failure::ErrorClass;
use crate::notation::{NOW, ago, does, failure, table, waits};
use crate::plan::backoff::{LaunchGate, judge, retry_at};
use crate::policy::Timing;
use crate::pool::LaunchHealth;
use crate::time::{BootId, Stamp};

#[test]
fn the_class_of_a_failure_says_how_long_to_wait() {
    let timing = Timing::default();
    let scope = || "zone".to_owned();
    let later = |seconds| Some(NOW.plus(Duration::from_secs(seconds)));
    for (class, waits) in [
        // After the first failure, the second, … the seventh, the fortieth.
        (ErrorClass::Transient, [5, 10, 20, 40, 80, 160, 300, 300]),
        (ErrorClass::Unknown, [5, 10, 20, 40, 80, 160, 300, 300]),
        (ErrorClass::Throttled { until: None }, [5, 10, 20, 40, 80, 160, 300, 300]),
        (ErrorClass::Throttled { until: later(60) }, [60, 60, 60, 60, 80, 160, 300, 300]),
        (ErrorClass::Throttled { until: later(900) }, [900; 8]),
        (ErrorClass::NoCapacity { scope: scope() }, [10, 20, 40, 80, 160, 300, 300, 300]),
        (ErrorClass::Quota, [300; 8]),
        (ErrorClass::Denied, [300; 8]),
        (ErrorClass::Invalid, [300; 8]),
        (ErrorClass::NotFound, [300; 8]),
    ] {
        for (failures, wait) in [1, 2, 3, 4, 5, 6, 7, 40].into_iter().zip(waits) {
            let until = retry_at(&class, failures, NOW, &timing);
            assert_eq!(NOW.until(until), Duration::from_secs(wait), "{class:?} for the {failures}th time");
        }
    }
}

#[test]
fn no_number_of_failures_overflows() {
    let timing =
        Timing { launch_backoff: Duration::MAX, launch_backoff_max: Duration::MAX, ..Timing::default() };
    for failures in [0, 1, 31, 32, 33, u32::MAX] {
        let until = retry_at(&ErrorClass::NoCapacity { scope: String::new() }, failures, NOW, &timing);
        assert!(until.reached(NOW));
    }
}

#[test]
fn the_breaker_pauses_and_then_allows_one_try() {
    let timing = Timing { breaker_failures: 3, ..Timing::default() };
    let health = |failures, age| LaunchHealth {
        failures,
        last: Some((ago(Duration::from_secs(age)), failure(ErrorClass::Transient))),
        ..LaunchHealth::default()
    };
    let judged = |failures, age| match judge(&health(failures, age), &timing, NOW) {
        LaunchGate::Open => "off".to_owned(),
        LaunchGate::Trial { failures, .. } => format!("one try after {failures}"),
        LaunchGate::Backoff { until, .. } => format!("wait {:?}", NOW.until(until)),
        LaunchGate::Paused { until, failures, .. } => {
            format!("pause {:?} after {failures}", NOW.until(until))
        }
    };
    assert_eq!(judged(0, 0), "off");
    assert_eq!(judged(1, 0), "wait 5s");
    assert_eq!(judged(2, 9), "wait 1s");
    assert_eq!(judged(2, 10), "off");
    assert_eq!(judged(3, 0), "pause 300s after 3");
    assert_eq!(judged(3, 299), "pause 1s after 3");
    assert_eq!(judged(3, 300), "one try after 3");
    assert_eq!(judged(9, 299), "pause 1s after 9");
    assert_eq!(judge(&LaunchHealth::default(), &timing, NOW), LaunchGate::Open);
    let never = Timing { breaker_failures: 0, ..Timing::default() };
    assert!(matches!(judge(&health(1, 0), &never, NOW), LaunchGate::Paused { .. }), "nought means one");
}

#[test]
fn a_pause_ends_no_sooner_than_the_provider_said() {
    let until = NOW.plus(Duration::from_mins(9));
    let last = Some((NOW, failure(ErrorClass::Throttled { until: Some(until) })));
    let health = LaunchHealth { failures: 5, last, ..LaunchHealth::default() };
    let LaunchGate::Paused { until: paused, .. } = judge(&health, &Timing::default(), NOW) else {
        panic!("five failures pause");
    };
    assert_eq!(paused, until);
}

#[test]
fn a_clock_that_was_set_back_before_a_reboot_makes_no_pause_of_a_day() {
    let until = NOW.plus(Duration::from_secs(15));
    let last = Some((NOW, failure(ErrorClass::Throttled { until: Some(until) })));
    let health = LaunchHealth { failures: 1, last, ..LaunchHealth::default() };
    let rebooted = |uptime_ms| Stamp {
        wall_ms: NOW.wall_ms - 86_400_000,
        boot: BootId(NOW.boot.0 + 1),
        uptime_ms,
        ..NOW
    };
    assert!(matches!(judge(&health, &Timing::default(), rebooted(4_999)), LaunchGate::Backoff { .. }));
    assert_eq!(judge(&health, &Timing::default(), rebooted(5_000)), LaunchGate::Open);
}

#[test]
fn a_pool_whose_launches_fail_waits_says_why_and_tries_once() {
    table(
        does,
        &[
            ("failures 1 4s | waits 8", ""),
            ("failures 1 5s | waits 8; waits 9", "i1 intended; i2 intended; launch i1; launch i2"),
            ("failures 5 299s | waits 8", ""),
            ("failures 5 300s | waits 8; waits 9", "i1 intended; launch i1"),
            ("failures 5 300s | booting 5s; waits 8; waits 9", "probe i1"),
            ("failures 5 300s, target 3 | ", "i1 intended; launch i1"),
            // An idle instance is not drained for a launch that may not happen.
            ("max 1, failures 5 299s | idle 5m of a; waits 8 of b", ""),
            (
                "max 2, failures 5 300s | idle 5m of a; idle 6m of a; waits 8 of b; waits 9 of c",
                "i2 drains: maderoom; terminate i2",
            ),
        ],
    );
    let paused = "the pool is paused after 5 failed launches in a row (last: transient error)";
    table(
        waits,
        &[
            ("failures 1 4s | waits 8", "a8: the last launch failed (transient error)"),
            ("failures 5 299s | waits 8", &format!("a8: {paused}")),
            ("failures 5 300s | waits 8; waits 9", &format!("a8: i1 is booting; a9: {paused}")),
            ("failures 5 300s | booting 5s; waits 8; waits 9", &format!("a8: i1 is booting; a9: {paused}")),
            // A full pool does not wait for the pause.
            (
                "max 1, failures 5 1s | held 5m by 7; waits 8",
                "a8: all 1 instances in use, limit 1 (`max_instances`)",
            ),
        ],
    );
}

#[test]
fn the_report_says_what_launches_wait_for_and_until_when() {
    use crate::notation::world;
    use crate::report::WaitingOn;

    let report = world("failures 5 100s, target 1 | ").plan().report;
    let Some(WaitingOn::Paused { until, failures: 5, .. }) = report.launches else {
        panic!("{:?}", report.launches);
    };
    assert_eq!(NOW.until(until), Duration::from_secs(200));
    assert_eq!(report.next, Some(until));
    assert_eq!(world("failures 5 100s | ").plan().report.launches, None, "nothing is wanted");
}
