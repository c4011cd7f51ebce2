//! `hetzner` against a stand-in for Hetzner Cloud.

use serde_json::{Value, json};

use super::program::{Program, example, launch, user_data};
use super::promises::{keeps, until};
use super::standin::StandIn;

pub(super) fn begin() -> (StandIn, Program) {
    let cloud = StandIn::start("hetzner");
    let settings = json!({ "image": "debian-12", "server_type": "cx22", "location": "fsn1" });
    let program = Program::new(&example("hetzner"), settings)
        .with("HCLOUD_TOKEN", "made-up-token")
        .with("HCLOUD_ENDPOINT", format!("{}/v1", cloud.url));
    (cloud, program)
}

fn offered(number: u32, offering: &str) -> Value {
    let mut fields = launch(number);
    fields["offering"] = offering.into();
    fields
}

#[test]
fn hetzner_keeps_the_promises_of_a_provider() {
    let (mut cloud, program) = begin();
    let directory = tempfile::tempdir().expect("a directory");
    keeps(&program, directory.path());
    assert_eq!(cloud.machines(), Vec::<Value>::new());
}

#[test]
fn hetzner_makes_the_server_that_was_asked_for() {
    let (mut cloud, mut program) = begin();
    program.settings["server"] = json!({ "labels": { "team": "ci" } });
    let called = program.call("launch", &offered(1, "cpx31 nbg1"));
    assert_eq!(called.code, Some(0), "{called:?}");
    let made = &cloud.machines()[0];
    assert_eq!((&made["server_type"]["name"], &made["location"]["name"]), (&json!("cpx31"), &json!("nbg1")));
    assert_eq!(made["user_data"], user_data(1));
    assert_eq!(made["labels"], json!({ "team": "ci" }), "a table of the operator's comes last");
}

#[test]
fn hetzner_says_what_was_refused() {
    let (mut cloud, program) = begin();
    let expect = |called: super::program::Called, code: i32, words: &str| {
        assert_eq!(called.code, Some(code), "{called:?}");
        assert!(called.answer["error"].as_str().is_some_and(|error| error.contains(words)), "{called:?}");
    };
    cloud.set(&json!({ "sold_out": ["cx22 fsn1"], "limit": 1 }));
    expect(program.call("launch", &offered(1, "cx22 fsn1")), 11, "resource_unavailable");
    expect(program.call("launch", &offered(1, "cx999 fsn1")), 14, "invalid_input");
    let id = program.ask("launch", &offered(1, "cx22 nbg1"))["machine"].as_str().expect("an ID").to_owned();
    expect(program.call("launch", &offered(2, "cx22 nbg1")), 12, "resource_limit_exceeded");
    let again = program.ask("launch", &offered(1, "cx22 nbg1"));
    assert_eq!(again["machine"], *id, "the limit does not hide what an earlier call has made");

    let mut foreign = offered(1, "cx22 nbg1");
    foreign["tags"]["greenroom-owner"] = "another".into();
    expect(program.call("launch", &foreign), 12, "resource_limit_exceeded");
    cloud.set(&json!({ "limit": 100 }));
    expect(program.call("launch", &foreign), 14, "uniqueness_error");

    cloud.fault(
        "GET /v1/servers",
        &json!({ "mode": "refused", "status": 429, "body": {
        "error": { "code": "rate_limit_exceeded", "message": "limit of 3600 requests an hour reached" } } }),
    );
    expect(program.call("list", &json!({})), 15, "3600 requests");
    let server = json!({ "machine": id, "name": launch(1)["name"] });
    cloud.set(&json!({ "locked": [launch(1)["name"]] }));
    expect(program.call("terminate", &server), 16, "locked");
    cloud.set(&json!({ "token": "another" }));
    expect(program.call("list", &json!({})), 13, "unauthorized");
    assert_eq!(cloud.machines().len(), 1);
}

#[test]
fn hetzner_finds_the_server_of_a_lost_answer() {
    let (mut cloud, mut program) = begin();
    cloud.fault("POST /v1/servers", &json!({ "mode": "lost" }));
    let called = program.call("launch", &launch(1));
    assert_eq!(called.code, Some(1), "no answer: {called:?}");
    assert_eq!(cloud.machines().len(), 1, "it was made");
    let id = program.launch(1);
    until(&program, &id, |found| found.is_some());
    assert_eq!(cloud.machines().len(), 1, "and not twice");

    program.environment[1].1 = "http://127.0.0.1:1/v1".to_owned();
    let called = program.call("launch", &launch(2));
    assert_eq!(called.code, Some(16), "nothing was sent: {called:?}");
    program.environment.remove(0);
    assert_eq!(program.call("list", &json!({})).code, Some(13));
}

#[test]
fn hetzner_reads_all_pages_and_knows_when_it_has_not() {
    let (mut cloud, program) = begin();
    cloud.set(&json!({ "page": 2 }));
    for number in 1..=3 {
        program.launch(number);
    }
    assert_eq!(program.list().len(), 3);
    assert_eq!(cloud.requests("GET /v1/servers?label_selector=greenroom-pool%3Dlinux"), 2);
    // A server vanishes between two pages: one that is there may stand on neither.
    program.ask("terminate", &json!({ "machine": program.list()[0]["machine"] }));
    let answer = program.ask("list", &json!({}));
    assert_eq!((&answer["complete"], answer["machines"].as_array().map(Vec::len)), (&json!(false), Some(2)));
    assert_eq!(program.list().len(), 2);
}
