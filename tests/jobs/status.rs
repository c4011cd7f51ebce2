//! The operator's view of links: `pool status --wide` and `doctor`.

use std::time::{Duration, Instant};

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, Process, is_stopped, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use rustix::process::Signal;
use serde_json::Value;

/// The instances in the output of `pool status --wide --json`.
fn instances(place: &Place) -> Vec<Value> {
    let status = place.order(&["pool", "status", "--wide", "--json"]);
    let status: Value = serde_json::from_str(&status).expect("it is JSON");
    status["pools"][0]["instances"].as_array().cloned().unwrap_or_default()
}

/// The only link, once it is in this state.
#[track_caller]
fn link_that(place: &Place, state: &str) -> Value {
    wait_for(state, SOON, || {
        let link = instances(place).first()?["links"][0].clone();
        (link["state"] == state).then_some(link)
    })
}

/// The text without line breaks and columns.
fn in_words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn doctor(place: &Place) -> String {
    in_words(&String::from_utf8_lossy(&place.greenroom(&["doctor"]).stdout))
}

/// The process of the only link, which is stopped from now on.
fn held(place: &Place) -> Process {
    let link = place.of_kind(Kind::Link).pop().expect("an idle instance has a link");
    assert!(link.signal(Signal::STOP));
    wait_for("its stop", SOON, || is_stopped(link.pid.unsigned_abs()).then_some(()));
    link
}

#[test]
fn a_link_is_shown_with_since_when_round_trip_and_memory() {
    let place = Setting::new().pool("max_instances", 1).pool("max_use_count", 2).pool("idle_count", 1).open();
    let attempt = place.prepared(1);
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    let link = link_that(&place, "shell-waits");
    assert_eq!(link["pid"], place.of_kind(Kind::Link)[0].pid);
    assert!(link["connected"].is_string() && link["connected_for_s"].is_u64(), "{link}");
    assert!(link["round_trip_us"].as_u64().is_some_and(|us| us > 0), "{link}");
    assert!(link["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{link}");
    assert_eq!((&link["slot"], &link["stages"]), (&Value::from(1), &Value::from(1)), "{link}");

    let stage = attempt.start_run("build_script", "echo begun; sleep 600\n");
    stage.wait_for_output("begun", SOON);
    let busy = link_that(&place, "busy");
    assert_eq!((&busy["pid"], &busy["stages"]), (&link["pid"], &Value::from(2)));
    let text = place.order(&["pool", "status", "--wide"]);
    assert!(text.contains("\nLINK OF") && text.contains("  busy\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(in_words(&text).contains("links: 1, "), "{text}");
    let plain = place.order(&["pool", "status"]);
    assert!(!plain.contains("LINK OF") && !plain.contains("links:"), "{plain}");
    let examined = doctor(&place);
    assert!(examined.contains("links of pool `pool`: 1, "), "{examined}");
    assert!(examined.contains(" of memory, the oldest connected for "), "{examined}");
    assert!(examined.contains(", round trip ") && !examined.contains("[link-"), "{examined}");

    stage.signal_group(Signal::TERM);
    stage.wait(SOON);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.expect_sound();
}

#[test]
fn a_link_that_hangs_is_told_in_a_second_with_what_ends_it() {
    let place = Setting::new().pool("max_instances", 1).pool("idle_count", 1).open();
    let instance = place.warm_up(1).remove(0);
    let link = held(&place);
    let end = format!("`kill -9 {}`", link.pid);
    let begun = Instant::now();
    let text = place.order(&["pool", "status", "--wide"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(text.contains("  unresponsive\n") && in_words(&text).contains(&end), "{text}");
    let examined = doctor(&place);
    let what = format!(
        "warning [link-unresponsive]: the link of instance {instance} of pool `pool` (process {}) does not respond",
        link.pid
    );
    assert!(examined.contains(&what) && examined.contains(&end), "{examined}");
    // Nothing had to be repaired.
    place.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    assert!(!link.is_alive());
    place.expect_sound();
}

#[test]
fn a_link_whose_instance_is_recorded_no_more_is_noted() {
    let place = Setting::new().pool("max_instances", 1).pool("idle_count", 1).open();
    let instance = place.warm_up(1).remove(0);
    let link = place.of_kind(Kind::Link).pop().expect("an idle instance has a link");
    let links = place.state_dir.join("links/pool");
    std::fs::rename(links.join(instance.as_str()), links.join("pool-gone-1")).expect("it can be renamed");
    let examined = doctor(&place);
    let left = format!("pool-gone-1 (process {})", link.pid);
    assert!(examined.contains("note [link-orphaned]: ") && examined.contains(&left), "{examined}");
}
