//! `openstack` against a stand-in for Keystone and Nova.

use serde_json::{Value, json};

use super::program::{Called, Program, example, launch, user_data};
use super::promises::{keeps, until};
use super::standin::StandIn;

pub(super) fn begin() -> (StandIn, Program) {
    let cloud = StandIn::start("openstack");
    let settings = json!({
        "image": "11111111-2222-4333-8444-555555555555", "network": "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee",
        "flavor": "m1.small",
    });
    let program = Program::new(&example("openstack"), settings)
        .with("OS_APPLICATION_CREDENTIAL_SECRET", "made-up-secret")
        .with("OS_APPLICATION_CREDENTIAL_ID", "ci")
        .with("OS_REGION_NAME", "RegionOne")
        .with("OS_AUTH_URL", format!("{}/identity/v3", cloud.url));
    (cloud, program)
}

fn offered(number: u32, offering: &str) -> Value {
    let mut fields = launch(number);
    fields["offering"] = offering.into();
    fields
}

#[track_caller]
fn expect(called: &Called, code: i32, words: &str) {
    assert_eq!(called.code, Some(code), "{called:?}");
    assert!(called.answer["error"].as_str().is_some_and(|error| error.contains(words)), "{called:?}");
}

#[test]
fn openstack_keeps_the_promises_of_a_provider() {
    let (mut cloud, program) = begin();
    let directory = tempfile::tempdir().expect("a directory");
    keeps(&program, directory.path());
    assert_eq!(cloud.machines(), Vec::<Value>::new());
}

#[test]
fn openstack_makes_the_server_that_was_asked_for() {
    let (mut cloud, mut program) = begin();
    program.ask("launch", &offered(1, "m1.large"));
    let made = &cloud.machines()[0];
    assert_eq!(made["flavor"]["original_name"], "m1.large");
    assert_eq!(made["user_data"], user_data(1), "Nova gets it in base64");
    let id = made["id"].as_str().expect("an ID").to_owned();
    let running = until(&program, &id, |found| found.is_some_and(|found| found["state"] == "running"));
    assert_eq!(running["address"], "10.1.0.2");
    program.settings["address"] = "floating".into();
    assert_eq!(program.list()[0]["address"], "198.51.100.7");
    let console = program.ask("console", &json!({ "machine": id }));
    assert!(console["text"].as_str().is_some_and(|text| text.contains("Cloud-init finished")), "{console}");
}

#[test]
fn openstack_says_what_was_refused() {
    let (mut cloud, mut program) = begin();
    cloud.set(&json!({ "limit": 1, "no_host": ["m1.large"] }));
    expect(&program.call("launch", &offered(1, "m9.huge")), 14, "flavor");
    let id = program.ask("launch", &offered(1, "m1.large"))["machine"].as_str().expect("an ID").to_owned();
    expect(&program.call("launch", &offered(2, "m1.small")), 12, "Quota exceeded");
    assert_eq!(program.list()[0]["state"], "pending");
    let found = until(&program, &id, |found| found.is_some_and(|found| found["state"] == "refused"));
    assert!(found["reason"].as_str().is_some_and(|reason| reason.contains("No valid host")), "{found}");

    let body = json!({ "forbidden": { "code": 403, "message": "Policy doesn't allow os_compute_api:servers:create" } });
    cloud.fault("POST /compute", &json!({ "mode": "refused", "status": 403, "body": body }));
    expect(&program.call("launch", &offered(2, "m1.small")), 13, "Policy");
    let body = json!({ "overLimit": { "code": 413, "message": "This request was rate-limited." } });
    cloud.fault("GET /compute", &json!({ "mode": "refused", "status": 413, "body": body }));
    expect(&program.call("list", &json!({})), 15, "rate-limited");
    let body = json!({ "conflictingRequest": { "code": 409, "message": "Cannot 'delete' instance while it is locked" } });
    cloud.fault("DELETE /compute", &json!({ "mode": "refused", "status": 409, "body": body }));
    expect(&program.call("terminate", &json!({ "machine": id })), 16, "locked");
    program.environment[2].1 = "RegionThree".to_owned();
    expect(&program.call("list", &json!({})), 14, "OS_REGION_NAME");
    program.environment[0].1 = "another".to_owned();
    expect(&program.call("list", &json!({})), 13, "authentication");
}

#[test]
fn openstack_has_the_machine_of_a_lost_answer_in_its_list() {
    let (mut cloud, program) = begin();
    assert_eq!(program.ask("capabilities", &json!({}))["idempotent_launch"], false);
    cloud.fault("POST /compute/v2.1/servers", &json!({ "mode": "lost" }));
    expect(&program.call("launch", &launch(1)), 1, "no answer");
    let body = json!({ "computeFault": { "code": 500, "message": "Unexpected API Error." } });
    cloud.fault("POST /compute/v2.1/servers", &json!({ "mode": "refused", "status": 500, "body": body }));
    expect(&program.call("launch", &launch(2)), 1, "Unexpected API Error");
    let names: Vec<Value> = program.list().iter().map(|machine| machine["name"].clone()).collect();
    assert_eq!(names, [launch(1)["name"].clone()]);
}

#[test]
fn openstack_follows_the_marker_from_page_to_page() {
    let (mut cloud, program) = begin();
    cloud.set(&json!({ "page": 2 }));
    for number in 1..=5 {
        program.launch(number);
    }
    assert_eq!(program.list().len(), 5);
    assert_eq!(cloud.requests("GET /compute/v2.1/servers/detail"), 3);
}
