//! Tests of which offering a launch takes, and what a refusal costs.

use proptest::prelude::*;

use crate::event::Change;
use crate::failure::ErrorClass;
use crate::ids::OfferingName;
use crate::instance::Answer;
use crate::notation::{NOW, World, does, failure, instance, render, table, waits, world};
use crate::plan::Effect;
use crate::report::WaitingOn;
use crate::time::Stamp;

#[test]
fn a_launch_takes_the_first_offering_that_is_not_passed_over() {
    table(
        does,
        &[
            ("offerings 3 | waits 8", "i1 intended as c1; launch i1"),
            ("offerings 3, out c1 30s | waits 8", "i1 intended as c2; launch i1"),
            ("offerings 3, out c1 3m | waits 8", "i1 intended as c1; launch i1"),
            (
                "offerings 3, out c1 30s, quota c2 3m | waits 8; waits 9",
                "i1 intended as c3; i2 intended as c3; launch i1; launch i2",
            ),
            // The next attempt of a refused launch, immediately.
            ("offerings 3 | refused 2s missing 1s as c1; waits 8", "i1 intended (2) as c2; launch i1"),
            // A launch without an answer keeps its offering, whatever was refused since.
            ("offerings 3, out c1 1s | unknown 40s missing 1s as c1; waits 8", "repeat the launch of i1"),
            // Existing launches count; only the rest is requested again.
            (
                "offerings 2 | booting 2s as c1; refused 2s missing 1s as c1; waits 8; waits 9",
                "i2 intended (2) as c2; probe i1; launch i2",
            ),
        ],
    );
}

#[test]
fn a_pool_whose_offerings_are_all_passed_over_waits_for_the_first_and_says_which() {
    let all = "offerings 2, out c1 30s, quota c2 14m";
    let of = |rest: &str| format!("{all}{rest}");
    table(does, &[(&of(" | waits 8"), ""), (&of(", max 1 | idle 5m of a; waits 8 of b"), "")]);
    table(waits, &[(&of(" | waits 8"), "a8: all 2 offerings are unavailable; c2: quota reached")]);
    let report = world(&of(", target 1 |")).plan().report;
    let Some(WaitingOn::NoOffering { until, count: 2, .. }) = &report.launches else {
        panic!("{:?}", report.launches);
    };
    assert_eq!(NOW.until(*until), std::time::Duration::from_mins(1));
    assert_eq!(report.next, Some(*until));
    assert_eq!(world(&of(" |")).plan().report.launches, None, "nothing is wanted");
    // Reported also by a pass that may not launch, but after the reasons of a full pool.
    let expected = "a8: all 2 offerings are unavailable; c2: quota reached";
    table(waits, &[(&of(", reap | waits 8"), expected)]);
    let full = "a8: all 1 instances in use, limit 1 (`max_instances`)";
    table(waits, &[(&of(", max 1 | held 5m by 7; waits 8"), full)]);
}

#[test]
fn other_offerings_than_recorded_are_recorded_and_the_rest_forgotten() {
    let mut world = world("offerings 3, out c1 1s, out c3 1s | waits 8");
    world.observed.capabilities.offerings = [OfferingName::new("c3"), OfferingName::new("c4")].into();
    let plan = world.plan();
    assert_eq!(render(&plan), "2 offerings; i1 intended as c4; launch i1");
    world.carry(&plan.events);
    assert!(world.state.availability.refusal(&OfferingName::new("c1")).is_none());
    world.observed.capabilities.offerings = [].into();
    assert_eq!(render(&world.plan()), "0 offerings");
}

/// The provider's answer to the launch of `i1`; `None`: accepted.
fn answer(world: &mut World, class: Option<ErrorClass>) {
    let launch =
        world.state.instance(&instance("i1")).and_then(|i| i.launch.clone()).expect("it was launched");
    let at = world.now;
    let answer = match class {
        None => Answer::Accepted { at },
        Some(class) => Answer::Refused { at, failure: failure(class) },
    };
    world.tell(at, Change::LaunchAnswered { instance: instance("i1"), attempt: launch.attempt, answer });
}

#[test]
fn a_refusal_that_is_no_offerings_fault_keeps_the_offering_and_pulls_the_brake() {
    for class in [ErrorClass::Transient, ErrorClass::Throttled { until: None }] {
        let mut world = world("offerings 2 | requested 0s missing 0s as c1; waits 8");
        answer(&mut world, Some(class));
        assert_eq!(render(&world.plan()), "");
        assert_eq!(world.state.launches.failures, 1);
        world.now = NOW.plus(std::time::Duration::from_secs(5));
        assert_eq!(render(&world.plan()), "i1 intended (2) as c1; launch i1");
    }
}

#[test]
fn a_refused_offering_is_no_failed_launch_and_costs_none_of_the_rate() {
    let mut world = world("offerings 2, rate 1, breaker 1 | requested 0s missing 0s as c1; waits 8");
    world.state.launches.recent = vec![NOW];
    answer(&mut world, Some(ErrorClass::Quota));
    assert_eq!(world.state.launches.failures, 0);
    assert_eq!(world.state.launches.recent, []);
    assert_eq!(render(&world.plan()), "i1 intended (2) as c2; launch i1");
}

#[test]
fn the_operators_resume_lets_every_offering_be_asked_again() {
    let mut world = world("offerings 2, out c1 1s 9, quota c2 1s | waits 8");
    world.tell(NOW, Change::PoolResumed);
    assert_eq!(render(&world.plan()), "i1 intended as c1; launch i1");
}

fn a_class() -> impl Strategy<Value = ErrorClass> {
    prop::sample::select(vec![
        ErrorClass::NoCapacity { scope: "zone".to_owned() },
        ErrorClass::Quota,
        ErrorClass::Denied,
        ErrorClass::Invalid,
        ErrorClass::NotFound,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// With one offering available, a waiting job gets its instance without a delay, after at most as many calls as
    /// there are offerings; none is requested twice.
    #[test]
    fn one_offering_in_stock_is_enough(count in 1..9_usize, good in 0..9_usize, classes in prop::collection::vec(a_class(), 9)) {
        let mut world = world(&format!("offerings {count}, rate 1, breaker 1 | waits 8"));
        let good = OfferingName::new(format!("c{}", good % count + 1));
        let mut tried: Vec<OfferingName> = Vec::new();
        loop {
            let plan = world.plan();
            prop_assert_eq!(plan.effects.as_slice(), &[Effect::Launch { instance: instance("i1"), repeated: false }]);
            world.carry(&plan.events);
            let launch = world.state.instance(&instance("i1")).and_then(|i| i.launch.clone());
            let offering = launch.and_then(|l| l.offering).expect("a launch names its offering");
            prop_assert!(!tried.contains(&offering), "{offering} twice");
            tried.push(offering.clone());
            world.now = world.now.plus(std::time::Duration::from_millis(800));
            if offering == good {
                answer(&mut world, None);
                break;
            }
            answer(&mut world, Some(classes[tried.len() - 1].clone()));
        }
        prop_assert!(tried.len() <= count);
        prop_assert_eq!(world.state.launches.failures, 0);
    }

    /// No plan launches an unavailable offering, and no plan waits while another is available.
    #[test]
    fn no_plan_asks_for_what_was_just_refused(
        refusals in prop::collection::vec(prop::option::of((0..40_u64, 1..6_u32, a_class())), 1..6),
        later in 0..40_u64,
    ) {
        let mut world = world(&format!("offerings {} | waits 8", refusals.len()));
        let minutes = |n: u64| std::time::Duration::from_mins(n);
        let mut free = Vec::new();
        world.now = NOW.plus(minutes(40 + later));
        for (number, refusal) in (1..).zip(&refusals) {
            let offering = OfferingName::new(format!("c{number}"));
            let Some((ago, times, class)) = refusal else {
                free.push(offering);
                continue;
            };
            let at = NOW.plus(minutes(40 - ago));
            for earlier in (0..*times).rev() {
                let at = Stamp { uptime_ms: at.uptime_ms - u64::from(earlier), ..at };
                world.state.availability.refuse(&offering, at, &failure(class.clone()), at);
            }
            let stock = matches!(class, ErrorClass::NoCapacity { .. });
            let pause = if stock { (2_u64 << (times - 1)).min(30) } else { 15 };
            if ago + later >= pause {
                free.push(offering);
            }
        }
        let plan = world.plan();
        let taken = plan.events.iter().find_map(|event| {
            if let Change::LaunchIntended { offering, .. } = &event.change { offering.clone() } else { None }
        });
        prop_assert_eq!(taken, free.first().cloned());
        prop_assert_eq!(plan.report.launches.is_some(), free.is_empty());
    }
}
