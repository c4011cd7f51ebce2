//! `skerry`, written from docs/providers/external.md alone, against the awkward cloud of that name.

use serde_json::{Value, json};

use super::program::{Called, Program, example, launch, user_data};
use super::promises::{keeps, until};
use super::standin::StandIn;

pub(super) fn begin() -> (StandIn, Program) {
    let cloud = StandIn::start("skerry");
    let program = Program::new(&example("skerry"), json!({}))
        .with("SKERRY_KEY", "made-up-key")
        .with("SKERRY_URL", cloud.url.clone());
    (cloud, program)
}

#[track_caller]
fn expect(called: &Called, code: i32, words: &str) {
    assert_eq!(called.code, Some(code), "{called:?}");
    assert!(called.answer["error"].as_str().is_some_and(|error| error.contains(words)), "{called:?}");
}

#[test]
fn skerry_keeps_the_promises_of_a_provider() {
    let (mut cloud, program) = begin();
    let directory = tempfile::tempdir().expect("a directory");
    keeps(&program, directory.path());
    assert_eq!(cloud.machines(), Vec::<Value>::new());
}

#[test]
fn skerry_says_what_was_refused() {
    let (mut cloud, mut program) = begin();
    let offered = |offering: &str| {
        let mut fields = launch(1);
        fields["offering"] = offering.into();
        fields
    };
    cloud.set(&json!({ "full": ["large"], "limit": 1 }));
    expect(&program.call("launch", &offered("large")), 11, "no room");
    expect(&program.call("launch", &offered("huge")), 14, "huge");
    program.ask("launch", &offered("small"));
    assert_eq!(
        (&cloud.machines()[0]["boot"], &cloud.machines()[0]["size"]),
        (&json!(user_data(1)), &json!("small"))
    );
    expect(&program.call("launch", &offered("small")), 12, "limit");
    let body = json!({ "reason": "slow", "text": "not so fast", "wait": 7 });
    cloud.fault("GET /boxes", &json!({ "mode": "refused", "status": 429, "body": body }));
    let called = program.call("list", &json!({}));
    expect(&called, 15, "not so fast");
    assert_eq!(called.answer["retry_after_s"], 7);
    cloud.set(&json!({ "partial": true }));
    assert_eq!(program.ask("list", &json!({}))["complete"], false);
    cloud.set(&json!({ "key": "another" }));
    expect(&program.call("list", &json!({})), 13, "key");
    program.environment.remove(0);
    expect(&program.call("list", &json!({})), 13, "SKERRY_KEY");
}

#[test]
fn skerry_shows_the_box_of_a_lost_answer_after_a_while() {
    let (mut cloud, mut program) = begin();
    cloud.set(&json!({ "hidden_s": 3600 }));
    cloud.fault("POST /boxes", &json!({ "mode": "lost" }));
    expect(&program.call("launch", &launch(1)), 1, "no answer");
    assert_eq!(program.list(), Vec::<Value>::new(), "it is there, and hidden");
    let hidden = cloud.machines()[0]["ref"].clone();
    expect(&program.call("terminate", &json!({ "machine": hidden })), 10, "no box");
    cloud.set(&json!({ "hidden_s": 0 }));
    let shown = until(&program, hidden.as_str().expect("a reference"), |found| found.is_some());
    assert_eq!(shown["name"], launch(1)["name"]);

    cloud.fault("DELETE /boxes", &json!({ "mode": "lost" }));
    expect(&program.call("terminate", &json!({ "machine": hidden })), 1, "no answer");
    expect(&program.call("terminate", &json!({ "machine": hidden })), 10, "no box");
    program.environment[1].1 = "http://127.0.0.1:1".to_owned();
    expect(&program.call("launch", &launch(1)), 16, "refused");
}

#[test]
fn skerry_reads_all_pages() {
    let (mut cloud, program) = begin();
    cloud.set(&json!({ "hidden_s": 0 }));
    for number in 1..=5 {
        program.launch(number);
    }
    assert_eq!(program.list().len(), 5);
    assert_eq!(cloud.requests("GET /boxes"), 3);
}
