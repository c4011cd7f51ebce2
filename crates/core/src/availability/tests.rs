//! Offerings: which ones are unavailable, for how long, and what a refusal proves.

use std::time::Duration;

use super::*;
use crate::notation::{NOW, ago, failure, world};

fn at(seconds: u64) -> Stamp {
    NOW.plus(Duration::from_secs(seconds))
}

fn named(count: u32) -> Availability {
    world(&format!("offerings {count} |")).state.availability
}

fn offering(number: u32) -> OfferingName {
    OfferingName::new(format!("c{number}"))
}

fn stock_out() -> Failure {
    failure(ErrorClass::NoCapacity { scope: "zone b".into() })
}

/// For how many seconds an offering is unavailable that was refused like this now, for the `times`-th time.
fn lasts(class: &ErrorClass, times: u32) -> Option<u64> {
    let mut availability = named(1);
    for time in 1..=u64::from(times) {
        let moment = at(time);
        // Requested a moment before the answer, and after the refusal before.
        let requested_at = Stamp { uptime_ms: moment.uptime_ms - 500, ..moment };
        availability.refuse(&offering(1), requested_at, &failure(class.clone()), moment);
    }
    let now = at(u64::from(times));
    let passed = availability.unavailable(&Timing::default(), now).next();
    passed.map(|passed| now.until(passed.until).as_secs())
}

#[test]
fn the_class_of_a_refusal_says_for_how_long_its_offering_is_passed_over() {
    let scope = "zone b".to_owned();
    for (class, waits) in [
        // After the first refusal in a row, the second, … the fortieth.
        (ErrorClass::NoCapacity { scope }, [120, 240, 480, 960, 1800, 1800].map(Some)),
        (ErrorClass::Quota, [Some(900); 6]),
        (ErrorClass::Denied, [Some(900); 6]),
        (ErrorClass::Invalid, [Some(900); 6]),
        (ErrorClass::NotFound, [Some(900); 6]),
        (ErrorClass::Throttled { until: None }, [None; 6]),
        (ErrorClass::Transient, [None; 6]),
        (ErrorClass::Unknown, [None; 6]),
    ] {
        for (times, wait) in [1, 2, 3, 4, 5, 40].into_iter().zip(waits) {
            assert_eq!(lasts(&class, times), wait, "{class:?} for the {times}th time");
        }
    }
}

#[test]
fn refusals_of_launches_that_were_under_way_together_count_once() {
    let mut availability = named(1);
    for answered in [2, 3, 4] {
        assert!(availability.refuse(&offering(1), at(0), &stock_out(), at(answered)));
    }
    let refusal = availability.refusal(&offering(1)).unwrap();
    assert_eq!((refusal.times, refusal.at), (1, at(4)), "the pause counts from the last of them");
    availability.refuse(&offering(1), at(200), &stock_out(), at(201));
    assert_eq!(availability.refusal(&offering(1)).unwrap().times, 2);
}

#[test]
fn a_success_ends_the_row_unless_it_was_asked_for_before_the_refusal() {
    let mut availability = named(2);
    availability.refuse(&offering(1), at(0), &stock_out(), at(2));
    availability.accept(&offering(1), at(0));
    availability.accept(&offering(1), at(2));
    availability.accept(&offering(2), at(3));
    assert_eq!(availability.refusal(&offering(1)).map(|r| r.times), Some(1));
    availability.accept(&offering(1), at(3));
    assert_eq!(availability.refusal(&offering(1)), None);
}

#[test]
fn the_first_that_is_not_passed_over_is_taken_and_else_the_shortest_wait() {
    let chosen = |text: &str| match world(text).state.availability.choice(&Timing::default(), NOW) {
        Choice::Only => "the only way".to_owned(),
        Choice::Take(offering) => offering.to_string(),
        Choice::Wait { first, count } => format!("{first}, {:?} of {count}", NOW.until(first.until)),
    };
    for (text, choice) in [
        ("", "the only way"),
        ("offerings 3 |", "c1"),
        ("offerings 3, out c1 119s |", "c2"),
        ("offerings 3, out c1 120s |", "c1"),
        ("offerings 3, out c1 3m 2 |", "c2"),
        ("offerings 3, out c2 1s |", "c1"),
        ("offerings 3, out c1 1s, quota c2 14m |", "c3"),
        ("offerings 3, out c1 1s, quota c2 14m, out c3 0s |", "c2: quota reached, 60s of 3"),
        ("offerings 2, out c1 100s, out c2 100s |", "c1: no capacity, 20s of 2"),
        ("offerings 1, out c9 1s |", "c1"),
    ] {
        assert_eq!(chosen(text), choice, "`{text}`");
    }
}

#[test]
fn a_launch_would_have_preferred_the_unavailable_ones_before_its_own() {
    for (text, taken, expected) in [
        ("offerings 3, out c1 1s, quota c2 1s |", 3, "c1 c2"),
        ("offerings 3, out c1 1s, out c3 1s |", 2, "c1"),
        ("offerings 3, out c1 3m, out c2 1s |", 3, "c2"),
        ("offerings 3, out c2 1s |", 1, ""),
    ] {
        let (availability, taken) = (world(text).state.availability, offering(taken));
        let timing = Timing::default();
        let preferred = availability.preferred_to(&taken, &timing, NOW);
        let names: Vec<_> = preferred.map(|passed| passed.offering.to_string()).collect();
        assert_eq!(names.join(" "), expected, "`{text}`, taken: {taken}");
    }
}

#[test]
fn what_the_provider_names_no_more_is_forgotten() {
    let mut availability = world("offerings 3, out c1 1s, out c3 1s |").state.availability;
    availability.name(&[offering(3), offering(4)]);
    assert_eq!(availability.refusal(&offering(1)), None);
    assert!(availability.refusal(&offering(3)).is_some());
    assert!(!availability.refuse(&offering(1), NOW, &stock_out(), NOW), "a late answer brings nothing back");
    assert!(availability.has_refusals());
    availability.forgive();
    assert!(!availability.has_refusals() && !availability.is_empty());
    availability.name(&[]);
    assert!(availability.is_empty());
}

#[test]
fn a_clock_that_was_set_back_before_a_reboot_makes_no_pause_of_a_day() {
    let availability = world("offerings 1, out c1 1s |").state.availability;
    let rebooted =
        Stamp { wall_ms: NOW.wall_ms - 86_400_000, boot: crate::time::BootId(8), uptime_ms: 90_000, ..NOW };
    let passed = availability.unavailable(&Timing::default(), rebooted).next().unwrap();
    assert_eq!(rebooted.until(passed.until), Duration::from_secs(30));
    assert_eq!(availability.unavailable(&Timing::default(), at(120)).next(), None);
    let mut accepted = availability;
    accepted.accept(&offering(1), rebooted);
    assert_eq!(accepted.refusal(&offering(1)), None);
}

#[test]
fn no_number_of_refusals_overflows() {
    let timing =
        Timing { stockout_backoff: Duration::MAX, stockout_backoff_max: Duration::MAX, ..Timing::default() };
    for times in [0, 1, 32, u32::MAX] {
        let refusal = Refusal { at: ago(Duration::ZERO), times, failure: stock_out() };
        assert_eq!(refusal.lasts(&timing), Duration::MAX);
    }
}

#[test]
fn availability_survives_the_snapshot_and_leaves_no_trace_without_offerings() {
    let state = world("offerings 2, out c1 1s | booting 5s as c2").state;
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<crate::pool::PoolState>(&text).unwrap(), state);
    let without = serde_json::to_string(&world("booting 5s").state).unwrap();
    assert!(!without.contains("availability") && !without.contains("offering"), "{without}");
}
