//! Each counted event counts once, and what is inapplicable counts nothing.

use super::*;
use crate::attempt::End;
use crate::ids::{AttemptName, OfferingName};
use crate::instance::Release;
use crate::notation::{NOW, World, attempt, instance, world};

const SECOND: Duration = Duration::from_secs(1);

/// The counters after a change `after` now.
fn after(world: &mut World, after: Duration, change: Change) -> Counters {
    world.state.apply(&change.at(NOW.plus(after))).expect("it fits");
    Counters::clone(&world.state.counters)
}

fn granted(job: u64, short: &str) -> Change {
    Change::Granted { attempt: attempt(job), instance: instance(short) }
}

fn started(line: &str, short: &str) -> Vec<(Start, u64)> {
    let mut world = world(line);
    let before = world.state.counters.started.clone();
    let counters = after(&mut world, SECOND, granted(8, short));
    let new = |(start, n): (&Start, &u64)| (*start, n - before.get(start).copied().unwrap_or(0));
    counters.started.iter().map(new).filter(|(_, n)| *n > 0).collect()
}

#[test]
fn a_job_starts_warm_after_a_boot_or_after_another_job() {
    assert_eq!(started("idle 5m; waits 8", "i1"), [(Start::Warm, 1)]);
    let mut booted = world("checking 5s; waits 8");
    after(&mut booted, SECOND, Change::BecameReady { instance: instance("i1") });
    let counters = after(&mut booted, SECOND * 2, granted(8, "i1"));
    assert_eq!(counters.started.get(&Start::Booted), Some(&1), "{counters:?}");
    let mut shared = world("held 5m by 7; waits 8");
    let release = Release { how: End::CleanedUp, used: true, closing: false };
    after(&mut shared, SECOND, Change::Released { attempt: attempt(7), release });
    let counters = after(&mut shared, SECOND * 2, granted(8, "i1"));
    assert_eq!(counters.started.get(&Start::Freed), Some(&1), "{counters:?}");
}

#[test]
fn a_wait_is_counted_from_request_to_grant() {
    let mut world = world("idle 5m; waits 8");
    let requested = world.state.waiting_for(&attempt(8)).expect("it waits").requested_at;
    let waited = NOW.plus(SECOND).since(requested);
    let counters = after(&mut world, SECOND, granted(8, "i1"));
    assert_eq!(counters.waits.count(), 1);
    assert_eq!(u128::from(counters.waits.sum_ms), waited.as_millis());
}

#[test]
fn boots_are_counted_by_offering_and_result() {
    let mut one = world("offerings 2 | checking 5s as c2");
    let counters = after(&mut one, SECOND, Change::BecameReady { instance: instance("i1") });
    let boots = counters.boots.get("c2").expect("its offering");
    assert_eq!((boots.ready.count(), boots.failed, boots.refused), (1, 0, 0));
    let drained = Change::DrainingBegun { instance: instance("i1"), reason: DrainReason::Surplus };
    let counters = after(&mut one, SECOND, drained);
    assert_eq!(counters.boots["c2"].failed, 0, "it was ready");
    assert_eq!(counters.drained.get("surplus"), Some(&1));

    let mut other = world("booting 5m");
    let drained = Change::DrainingBegun { instance: instance("i1"), reason: DrainReason::NeverReady };
    let counters = after(&mut other, SECOND, drained);
    assert_eq!((counters.boots[""].failed, counters.drained["never-ready"]), (1, 1));

    for (line, reason, why) in [
        ("booting 5m", DrainReason::ByOperator, "it was no longer wanted"),
        ("idle 5m", DrainReason::Stopped, "it had been ready"),
    ] {
        let mut one = world(line);
        let before = one.state.counters.boots.clone();
        let counters = after(&mut one, SECOND, Change::DrainingBegun { instance: instance("i1"), reason });
        assert_eq!(counters.boots, before, "{why}");
    }

    let refused = world("offerings 2 | refused 5s as c2").state.counters;
    assert_eq!(refused.boots["c2"].refused, 1);
    assert_eq!(refused.launch_failures.get("no-capacity"), Some(&1));
}

#[test]
fn an_event_that_does_not_fit_counts_nothing() {
    let mut world = world("idle 5m; waits 8");
    let before = world.state.counters.clone();
    for change in [
        granted(9, "i1"),
        granted(8, "i9"),
        Change::Rejected { attempt: AttemptName::new("a9"), message: String::new() },
        Change::Withdrawn { attempt: AttemptName::new("a9"), how: End::Unused },
    ] {
        world.state.apply(&change.at(NOW)).expect_err("it does not fit");
        assert_eq!(world.state.counters, before);
    }
}

#[test]
fn an_instance_that_responds_again_has_not_booted_again() {
    let mut world = world("idle 5m");
    let before = world.state.counters.clone();
    let reason = String::new();
    after(&mut world, SECOND, Change::BecameUnreachable { instance: instance("i1"), reason });
    let counters = after(&mut world, SECOND, Change::BecameReady { instance: instance("i1") });
    assert_eq!(counters, *before);
}

#[test]
fn the_number_of_offerings_is_bounded() {
    let mut counters = Counters::default();
    for number in 0..200 {
        let name = OfferingName::new(format!("c{number}")).to_string();
        counters.add(Count::Ready(name, SECOND), NOW);
    }
    assert_eq!(counters.boots.len(), MOST_OFFERINGS + 1);
    let all: u64 = counters.boots.values().map(|boots| boots.ready.count()).sum();
    assert_eq!(all, 200);
}

#[test]
fn a_histogram_has_each_time_in_one_bucket() {
    let mut histogram = Histogram::default();
    for ms in [0, 50, 51, 3_600_000, 3_600_001, u64::MAX] {
        histogram.observe(Duration::from_millis(ms));
    }
    let cumulative: Vec<(u64, u64)> = histogram.cumulative().collect();
    assert_eq!(cumulative.first(), Some(&(50, 2)));
    assert_eq!(cumulative.get(1), Some(&(100, 3)));
    assert_eq!(cumulative.last(), Some(&(3_600_000, 4)));
    assert_eq!(histogram.count(), 6);
    assert_eq!(histogram.sum_ms, u64::MAX, "it saturates");
}
