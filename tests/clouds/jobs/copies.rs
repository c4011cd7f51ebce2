//! Copies of an instance, launched by a person in the cloud's console: with its tags, but not by Greenroom.

use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::Value;

use crate::cloud::{Buy, Cloud};
use crate::site::{PATIENCE, Site, pool};

on_both_clouds![a_copy_is_reported_and_never_touched];

fn a_copy_is_reported_and_never_touched(cloud: Cloud) {
    let setting = pool().pool("max_instances", 1).pool("idle_count", 1).timing("reap_grace", "1ms");
    let site = Site::open(cloud, setting, Buy::OnDemand);
    site.warm_up_to(1);
    let original = site.lab.truth().live().next().expect("an idle instance").id.clone();
    let copy = site.lab.copy(&original);
    let is_alive = || site.lab.truth().live().any(|machine| machine.id == copy);
    wait_for("the alarm", PATIENCE, || {
        // An idle pool lists rarely.
        site.order(&["reap"]);
        let status: Value = serde_json::from_str(&site.order(&["pool", "status", "--json"])).expect("JSON");
        status["pools"][0]["notes"].to_string().contains(&copy).then_some(())
    });
    // The tags name the original, which is still the pool's only instance.
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    let said = site.order(&["pool", "drain", "--wait"]);
    assert!(said.contains("drained in "), "{said}");
    site.greenroom(&["reap"]);
    let leaks = site.greenroom(&["pool", "leaks", "--terminate", "--json"]);
    assert_eq!(leaks.status.code(), Some(1), "a copy is an alarm");
    let leaks: Value = serde_json::from_slice(&leaks.stdout).expect("JSON");
    let leaks = &leaks["pools"][0];
    assert_eq!((&leaks["orphaned"], &leaks["unknown_generation"]), (&0.into(), &0.into()), "{leaks:#}");
    let resources = leaks["resources"].as_array().expect("a list");
    let copied = |kind: &str| {
        let is = |one: &&Value| one["kind"] == kind && one["ownership"] == "copied";
        resources.iter().filter(is).filter_map(|one| one["name"].as_str()).collect::<Vec<_>>()
    };
    assert_eq!((copied("instance"), copied("volume").len()), (vec![copy.as_str()], 1), "{leaks:#}");
    let living: Vec<String> = site.lab.truth().live().map(|machine| machine.id.clone()).collect();
    assert_eq!(living, std::slice::from_ref(&copy), "the pool is drained");
    let doctor = site.greenroom(&["doctor", "--json"]).stdout;
    assert!(String::from_utf8_lossy(&doctor).contains("pool-copies"), "{}", String::from_utf8_lossy(&doctor));
    assert!(is_alive());
}
