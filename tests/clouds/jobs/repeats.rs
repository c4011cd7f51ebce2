//! A launch whose answer is lost, and whose repeat is refused: the first call has created the instance.

use greenroom_core::event::Change;
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::{Value, json};

use crate::cloud::{Buy, Cloud};
use crate::site::{PATIENCE, Site, pool};

on_both_clouds![the_refusal_of_a_repeat_launches_nothing_else];

fn the_refusal_of_a_repeat_launches_nothing_else(cloud: Cloud) {
    let setting = pool().pool("max_instances", 1).timing("relaunch_after", "200ms");
    let site = Site::open(cloud, setting, Buy::OnDemand);
    // No list shows the instance, until the emulator is told to.
    site.lab.set(&json!({ "visible": 3600.0 }));
    let fault = |mode: &str, count: u32| {
        site.lab.fault(&json!({ "operation": cloud.launch(), "mode": mode, "count": count }));
    };
    fault("lost", 1);
    fault("denied", 1000);
    let job = site.runner().start(&Job::new(1));
    let refused = || site.launches().len() >= 3;
    wait_for("two refused repeats", PATIENCE, || refused().then_some(()));
    let status: Value = serde_json::from_str(&site.order(&["pool", "status", "--json"])).expect("JSON");
    let notes = status["pools"][0]["notes"].to_string();
    assert!(notes.contains("denied"), "the refusal is said: {notes}");
    site.lab.set(&json!({ "visible": 0.0 }));
    let result = job.finish();
    result.expect_outcome(&Outcome::Success);
    let intended = |change: &Change| matches!(change, Change::LaunchIntended { .. });
    assert_eq!(site.events().iter().filter(|event| intended(&event.change)).count(), 1, "one attempt");
    site.expect_nothing_left(0);
}
