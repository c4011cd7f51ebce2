//! Kill -9 of any of Greenroom's processes, at seeded moments.

use std::time::Duration;

use greenroom_harness::onslaught::Onslaught;
use greenroom_harness::processes::Kind;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

/// Jobs run two at a time while Greenroom's processes are killed; after the grace nothing is leaked, nothing is lost,
/// and no failure is attributed to a script.
#[test]
fn whatever_is_killed_nothing_is_leaked_or_lost_and_no_script_is_blamed() {
    let place = Setting::new().pool("max_instances", 4).pool("idle_count", 1).open();
    let onslaught = Onslaught {
        test: "--test jobs kill",
        kills: 60,
        kinds: &[Kind::Call, Kind::Keeper, Kind::Instance, Kind::Link, Kind::Trampoline],
        script: "for i in 1 2 3; do sleep 0.05; done",
        blows: 3,
        pause: 0..120,
        patience: Duration::from_secs(3),
    };
    let last = onslaught.on(&place);
    // The pool recovers: jobs run as usual.
    place.reap();
    for id in last + 1..=last + 3 {
        place.run(&Job::new(id).script(["true"])).expect_outcome(&Outcome::Success);
    }
    place.wait_until_settled(1);
    place.expect_sound();
    let state = place.state();
    assert!(state.granted.is_empty() && state.waiting.is_empty(), "{state:?}");
}
