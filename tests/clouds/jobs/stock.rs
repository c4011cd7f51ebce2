//! Offerings without capacity: launches fall back to the next one immediately, and the job log says so.

use std::time::Duration;

use greenroom_core::event::{Change, Event};
use greenroom_core::instance::Answer;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::cloud::Cloud;
use crate::site::{Site, messages, pool};

on_both_clouds![three_offerings_out_of_stock_cost_a_launch_less_than_five_seconds];

/// The default delays: shorter ones would prove nothing.
const DEFAULTS: [(&str, &str); 7] = [
    ("launch_backoff", "5s"),
    ("launch_backoff_max", "5m"),
    ("stockout_backoff", "2m"),
    ("stockout_backoff_max", "30m"),
    ("pass_interval", "10s"),
    ("list_interval", "5s"),
    ("probe_interval", "1s"),
];

/// The time from the first intended launch to the first accepted one.
fn launching(events: &[Event]) -> Duration {
    let first = events.iter().find(|event| matches!(event.change, Change::LaunchIntended { .. }));
    let accepted = |event: &&Event| {
        matches!(&event.change, Change::LaunchAnswered { answer: Answer::Accepted { .. }, .. })
    };
    let (first, last) = (first.expect("a launch"), events.iter().find(accepted).expect("an accepted one"));
    last.at.since(first.at)
}

fn three_offerings_out_of_stock_cost_a_launch_less_than_five_seconds(cloud: Cloud) {
    let mut setting = pool().pool("max_instances", 1);
    for (key, value) in DEFAULTS {
        setting = setting.timing(key, value);
    }
    let site = Site::with_a_second_type(cloud, setting);
    let none: serde_json::Map<_, _> =
        cloud.places().map(|place| (place.to_owned(), 0.into())).into_iter().collect();
    site.lab.set(&json!({ "capacity": none }));
    let result = site.run(&Job::new(1));
    result.expect_outcome(&Outcome::Success);
    let (took, refused) = (launching(&site.events()), site.calls(cloud.launch()) - 1);
    eprintln!("{}: {refused} offerings without capacity cost a launch {took:?}", cloud.name());
    assert_eq!(refused, 3);
    assert!(took < Duration::from_secs(5), "{took:?}");
    let lines = messages(result.call("prepare"));
    assert!(lines.iter().any(|line| line.contains("no capacity")), "{lines:#?}");
    let status = site.order(&["pool", "status"]);
    assert_eq!(status.matches("no capacity").count(), 3, "{status}");
    site.expect_nothing_left(0);
}
