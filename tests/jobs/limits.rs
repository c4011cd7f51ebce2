//! The use count and capacity of an instance.

use std::collections::BTreeMap;

use greenroom_core::ids::InstanceId;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

/// The number of jobs that each instance served.
fn uses(place: &Place) -> BTreeMap<InstanceId, u32> {
    let mut uses = BTreeMap::new();
    for (_, instance) in place.grants() {
        *uses.entry(instance).or_default() += 1;
    }
    uses
}

#[test]
fn an_instance_serves_as_many_jobs_as_it_may_and_then_goes() {
    let place = Setting::new().pool("max_use_count", 2).open();
    for id in 1..=5 {
        place.run(&Job::new(id)).expect_outcome(&Outcome::Success);
        place.wait_until_quiet();
    }
    let served: Vec<_> = place.grants().into_iter().map(|(_, instance)| instance).collect();
    assert!(served[0] == served[1] && served[2] == served[3], "{served:?}");
    assert_eq!(uses(&place).len(), 3, "{served:?}");
    // Two are used up and gone, the third has a use left.
    place.wait_until_settled(1);
    place.expect_sound();
}

#[test]
fn by_default_no_instance_serves_twice() {
    let place = Setting::new().pool("idle_count", 1).open();
    for id in 1..=3 {
        place.run(&Job::new(id)).expect_outcome(&Outcome::Success);
    }
    assert!(uses(&place).values().all(|uses| *uses == 1), "{:?}", uses(&place));
    place.wait_until_settled(1);
    place.expect_sound();
}

#[test]
fn two_jobs_share_an_instance_with_room_for_two_and_a_third_gets_another() {
    let place = Setting::new().pool("capacity_per_instance", 2).pool("max_use_count", 0).open();
    let attempts: Vec<_> = (1..=3).map(|id| place.prepared(id)).collect();
    let on: Vec<_> = attempts.iter().map(|attempt| place.instance_of(attempt)).collect();
    assert!(on[0] == on[1] && on[1] != on[2], "{on:?}");
    // Concurrently: each waits for the file of the other.
    let file = |name: &str| place.path().join(name).display().to_string();
    let meet = |own: &str, other: &str| {
        let (own, other) = (file(own), file(other));
        format!("pwd; touch '{own}'; until [ -e '{other}' ]; do sleep 0.05; done\n")
    };
    let first = attempts[0].start_run("build_script", &meet("first", "second"));
    let second = attempts[1].start_run("build_script", &meet("second", "first"));
    let both = [first, second].map(|run| run.wait(SOON));
    assert!(both.iter().all(|run| run.exit_code() == Some(0)), "{both:?}");
    // One ends: the other one's instance stays, and the free slot is granted again.
    assert_eq!(attempts[0].cleanup().exit_code(), Some(0));
    place.wait_until_quiet_but(2);
    assert_eq!(attempts[1].run("after_script", "true\n").exit_code(), Some(0));
    let fourth = place.prepared(4);
    assert!([&on[0], &on[2]].contains(&&place.instance_of(&fourth)), "no third instance is needed");
    for attempt in attempts[1..].iter().chain([&fourth]) {
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
    }
    place.wait_until_settled(2);
    place.expect_sound();
}

#[test]
fn an_instance_for_two_that_may_serve_two_jobs_goes_after_both() {
    let place = Setting::new().pool("capacity_per_instance", 2).pool("max_use_count", 2).open();
    let runner = place.runner();
    let handles: Vec<_> = (1..=6).map(|id| runner.start(&Job::new(id).script(["sleep 0.1"]))).collect();
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
    }
    assert!(uses(&place).values().all(|uses| *uses <= 2), "{:?}", uses(&place));
    place.wait_until_quiet();
    place.expect_sound();
}
