//! Hosts that cannot be used for a while get no job, and come back by themselves.

use greenroom_core::instance::Phase;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::machine::{Hosts, Make, possible};

fn is_checking(place: &Place, host: &str) -> bool {
    let state = place.state();
    state.instances.values().any(|i| i.id.as_str() == host && i.phase == Phase::Checking)
}

/// The last report's notes on a host, as `pool status` shows them.
fn status_says(place: &Place, words: &str) {
    // Lines are wrapped to fit a terminal.
    let said = || place.order(&["pool", "status"]).split_whitespace().collect::<Vec<_>>().join(" ");
    wait_for(words, SOON, || said().contains(words).then_some(()));
}

#[test]
fn an_unplugged_host_gets_no_job_and_is_back_when_it_is_plugged_in() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a"), Make::named("b")]);
    let place = hosts.setting().timing("connect_timeout", "2s").open();
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(2);
    hosts.machines[0].unplug();
    // Whichever they would have been given: all find one, and the other is noticed at the latest when a job tries it.
    for id in 2..5 {
        let result = place.run(&Job::new(id));
        result.expect_outcome(&Outcome::Success);
    }
    wait_for("the doubt about a", SOON, || is_checking(&place, "a").then_some(()));
    status_says(&place, "a gets no jobs at present: ");
    let doubted = place.grants().len();
    hosts.machines[0].plug_in();
    place.wait_until_idle(2);
    place.run(&Job::new(5)).expect_outcome(&Outcome::Success);
    assert!(place.grants().len() > doubted);
    place.expect_sound();
}

#[test]
fn a_host_whose_key_changes_gets_no_job_until_the_operator_has_said_so() {
    if !possible() {
        return;
    }
    let mut hosts = Hosts::boot(&[Make::named("a"), Make::named("b")]);
    let place = hosts.setting().open();
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(2);
    hosts.machines[0].change_host_key();
    for id in 2..5 {
        place.run(&Job::new(id)).expect_outcome(&Outcome::Success);
    }
    wait_for("the doubt about a", SOON, || is_checking(&place, "a").then_some(()));
    status_says(&place, "presents another host key: SHA256:");
    let before = place.grants().len();
    for id in 5..8 {
        place.run(&Job::new(id)).expect_outcome(&Outcome::Success);
    }
    let later = place.grants().split_off(before);
    assert!(later.iter().all(|(_, host)| host.as_str() == "b"), "{later:?}");
    // The new key is in the configuration: nothing else has to be done.
    place.write_config(&hosts.setting().text(&place.state_dir));
    place.wait_until_idle(2);
    place.expect_sound();
}
