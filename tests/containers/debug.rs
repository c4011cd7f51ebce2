//! `CI_DEBUG_SERVICES`: what services write, in the job log.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::pool::{job, plain, setting};
use crate::site::site;

/// Writes with control characters and a secret, and answers; then writes a line for each connection.
const TALKER: &str = "printf '\\033[31mred\\033[0m %s\\n' \"$SECRET\"; \
                      while :; do echo asked | nc -l -p 8080 >/dev/null; echo 'one more'; done";

fn talker() -> serde_json::Value {
    json!({
        "name": plain("ash:1"), "alias": "talker", "command": ["sh", "-c", TALKER],
        "variables": [
            {"key": "HEALTHCHECK_TCP_PORT", "value": "8080"},
            {"key": "SECRET", "value": "$TOKEN"},
        ],
    })
}

fn asking(id: u64) -> Job {
    let ask = "nc -w 5 talker 8080 </dev/null; sleep 0.5";
    job(id, "ash:1").service(talker()).masked("TOKEN", "geheim-4711").script([ask]).after_script([ask])
}

/// The lines of a log that a service wrote.
fn written(log: &str) -> Vec<String> {
    let of_service = log.lines().filter_map(|line| line.strip_prefix("greenroom:   registry.test__"));
    of_service.filter_map(|line| line.split_once(" | ")).map(|(_, text)| text.to_owned()).collect()
}

#[test]
pub fn a_job_that_asks_for_it_sees_each_line_of_its_services_once() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let result = place.run(&asking(1).variable("CI_DEBUG_SERVICES", "true"));
    result.expect_outcome(&Outcome::Success);
    let lines = written(&result.log_text());
    assert_eq!(lines, ["red geheim-4711", "one more", "one more"], "{}", result.describe());
    let prepare = result.calls.iter().find(|call| call.name() == "prepare").expect("a prepare");
    assert_eq!(written(&prepare.stderr_text()), ["red geheim-4711"], "{}", result.describe());
    place.expect_sound();
}

#[test]
fn a_job_that_does_not_ask_sees_none() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let result = place.run(&asking(1));
    result.expect_outcome(&Outcome::Success);
    assert_eq!(written(&result.log_text()), [""; 0], "{}", result.describe());
}

#[test]
pub fn a_service_that_writes_without_end_stalls_no_stage_and_is_shown_in_part() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let flood = json!({
        "name": plain("ash:1"), "command": ["yes", "a line of a service that writes without end"],
    });
    let job = job(1, "ash:1").service(flood).variable("CI_DEBUG_SERVICES", "true");
    let result = place.run(&job.script(["echo the script ran"]).after_script(["echo and more"]));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(log.contains("\nthe script ran\n") && log.contains("\nand more\n"), "{}", result.describe());
    assert!(log.contains("KiB are left out here") && log.len() < 2 << 20, "{} bytes", log.len());
    place.expect_sound();
}

#[test]
pub fn the_last_lines_of_a_service_that_dies_are_shown_once() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let job = job(1, "ash:1").service(json!({"name": plain("dies:1")}));
    let result = place.run(&job.variable("CI_DEBUG_SERVICES", "true"));
    result.expect_outcome(&Outcome::Success);
    assert_eq!(result.log_text().matches("no license found").count(), 1, "{}", result.describe());
    assert_eq!(written(&result.log_text()).len(), 31, "{}", result.describe());
}
