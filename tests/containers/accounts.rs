//! The operator's view of jobs in containers: `pool status` and `explain`.

use greenroom_harness::place::Place;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::{Value, json};

use crate::engine::engine;
use crate::pool::{containers, job, plain, setting};
use crate::site::site;

/// The output of a command, without the line breaks of a terminal.
fn said(place: &Place, arguments: &[&str]) -> String {
    place.order(arguments).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
pub fn a_running_job_is_shown_with_its_image() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let attempt = place.prepared_as(&job(1, "ash:1"));
    let status = said(&place, &["pool", "status"]);
    let used = format!("containers: jobs with `image:` run in them, by {}", engine().program());
    for part in [used.as_str(), "job 1 runs in image `registry.test:5000/ash:1`"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let json: Value = serde_json::from_str(&place.order(&["pool", "status", "--json"])).expect("JSON");
    let pool = &json["pools"][0];
    let image = &pool["instances"][0]["jobs"][0]["image"];
    assert_eq!((&pool["containers"], image), (&json!("image"), &json!("registry.test:5000/ash:1")), "{json}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    place.wait_until_settled(0);
    assert!(!said(&place, &["pool", "status"]).contains("ash:1"));
}

#[test]
pub fn a_job_is_explained_with_its_images_its_services_and_its_failure() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("pull_timeout".into(), "20s".into());
    });
    let place = setting.open();
    let secret = "geheim-4711";
    let backend = json!({"name": plain("backend:1"), "variables": [{"key": "NAME", "value": "$TOKEN"}]});
    let fine = job(1, "ash:1").service(backend).masked("TOKEN", secret);
    place.run(&fine).expect_outcome(&Outcome::Success);
    let failed = Outcome::ScriptFailure { exit_code: 1 };
    place.run(&job(2, "missing:1")).expect_outcome(&failed);
    place.run(&job(3, "bare:1")).expect_outcome(&failed);
    for (id, parts) in [
        (
            1,
            ["image `registry.test:5000/ash:1` (sha256:", "service `registry.test__backend` answered after "],
        ),
        (2, ["image `registry.test:5000/missing:1` not pulled", "containers: failed by its own fault: "]),
        (
            3,
            ["image `registry.test:5000/bare:1` (sha256:", "failed by its own fault: the image has no shell"],
        ),
    ] {
        let explained = said(&place, &["explain", &id.to_string()]);
        for part in parts {
            assert!(explained.contains(part), "{part}: {explained}");
        }
        assert!(!explained.contains(secret), "{explained}");
    }
    assert!(said(&place, &["explain", "1"]).contains(") pulled "));
    let json: Value = serde_json::from_str(&place.order(&["explain", "2", "--json"])).expect("JSON");
    let containers = &json["explained"][0]["containers"][0];
    assert_eq!(
        (&containers["image"], &containers["failure"]),
        (&json!("registry.test:5000/missing:1"), &json!("job"))
    );
    place.expect_sound();
}
