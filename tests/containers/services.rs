//! Services beside a job: their names, their ends, and what they know.

use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::pool::{job, plain, setting};
use crate::site::site;

#[test]
pub fn services_reach_each_other_and_the_job_reaches_both_by_all_their_names() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let job = job(1, "ash:1")
        .service(json!({"name": plain("backend:1"), "alias": "backend, store", "variables": [{"key": "NAME", "value": "$CI_PROJECT_NAME"}]}))
        .service(json!({"name": plain("group/frontend:1"), "alias": "front"}))
        .script([
            "nc -w 5 store 8080 </dev/null",
            "nc -w 5 front 9090 </dev/null",
            "nc -w 5 registry.test__group__frontend 9090 </dev/null",
            "nc -w 5 registry.test-group-frontend 9090 </dev/null",
            "grep -w build /etc/hosts",
        ]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(log.contains("\nhello from demo\n"), "{log}");
    assert_eq!(log.matches("hello from demo, by way of the frontend").count(), 3, "{log}");
    place.expect_sound();
}

#[test]
pub fn a_service_that_dies_is_reported_with_its_code_and_last_lines_and_the_job_goes_on() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let job = job(1, "ash:1").service(json!({"name": plain("dies:1")})).script(["echo the script ran"]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    for said in ["dies", "7", "no license found", "line 30", "\nthe script ran\n"] {
        assert!(log.contains(said), "{said}: {log}");
    }
    assert!(log.find("no license found") < log.find("\nthe script ran\n"), "{log}");
    place.expect_sound();
}

#[test]
fn a_service_without_a_free_name_is_left_out() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let twice = || json!({"name": plain("backend:1")});
    let result = place.run(&job(1, "ash:1").service(twice()).service(twice()));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("registry.test-backend"), "{}", result.describe());
}
