//! Credentials, a region, a project or a kind that lead away from a pool's instances.

use greenroom_harness::place::SOON;
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::Value;

use crate::cloud::{Buy, Cloud};
use crate::credentials;
use crate::site::{PATIENCE, Site, pool};

on_both_clouds![
    instances_in_another_location_are_neither_forgotten_nor_replaced,
    an_operator_can_give_up_what_is_in_another_location,
    a_keeper_refuses_to_leave_instances_behind,
    a_keeper_refuses_another_kind_while_there_are_instances,
];

#[test]
fn instances_in_another_region_are_neither_forgotten_nor_replaced() {
    left_behind(Cloud::Ec2, |site| ("region", text(&site.lab.world["ec2"]["other_region"])));
}

#[test]
fn without_an_answer_from_sts_nothing_is_forgotten_and_launches_go_on() {
    let site = Site::open(Cloud::Ec2, setting(), Buy::OnDemand);
    site.lab.fault(&serde_json::json!({ "operation": "GetCallerIdentity", "mode": "denied", "count": 1000 }));
    site.warm_up_to(1);
    assert_eq!(status(&site)["notes"].to_string(), "[]", "a list with instances names the account");
    // A list without any: EC2 hides all of them.
    site.lab.set(&serde_json::json!({ "visible": 3600.0 }));
    let unknown = || status(&site)["notes"].to_string().contains("which account it lists");
    wait_for("the note", PATIENCE, || {
        site.order(&["reap"]);
        unknown().then_some(())
    });
    (0..5).for_each(|_| drop(site.order(&["reap"])));
    assert_eq!((site.recorded().len(), site.living().len()), (1, 1));
    assert!(doctor(&site).contains("pool-location-unknown"));
    site.lab.set(&serde_json::json!({ "visible": 0.0 }));
    site.order(&["pool", "drain", "--wait"]);
    assert_eq!(site.living(), [""; 0]);
}

fn end_keeper(site: &Site) {
    for keeper in site.of_kind(Kind::Keeper) {
        keeper.kill9();
    }
}

/// The key of another account, or of another project, and its value.
fn other(cloud: Cloud, site: &Site) -> (&'static str, String) {
    match cloud {
        Cloud::Ec2 => {
            ("credentials_file", site.lab.credentials(credentials::OTHER_EC2).display().to_string())
        }
        Cloud::Gce => ("project", text(&site.lab.world["gce"]["other_project"])),
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn setting() -> Setting {
    pool().pool("idle_count", 1).timing("absence_interval", "100ms")
}

fn status(site: &Site) -> Value {
    let status: Value = serde_json::from_str(&site.order(&["pool", "status", "--json"])).expect("JSON");
    status["pools"][0].clone()
}

fn doctor(site: &Site) -> String {
    String::from_utf8_lossy(&site.greenroom(&["doctor", "--json"]).stdout).into_owned()
}

/// The configuration with another account or project.
pub(super) fn leading_away(site: &Site, cloud: Cloud) -> String {
    changed(site, other(cloud, site))
}

/// The configuration with another value of one of the provider's keys.
fn changed(site: &Site, (key, value): (&str, String)) -> String {
    site.setting.clone().provider(key, value).text(&site.state_dir)
}

fn instances_in_another_location_are_neither_forgotten_nor_replaced(cloud: Cloud) {
    left_behind(cloud, |site| other(cloud, site));
}

fn left_behind(cloud: Cloud, elsewhere: impl FnOnce(&Site) -> (&'static str, String)) {
    let site = Site::open(cloud, setting(), Buy::OnDemand);
    site.warm_up_to(1);
    end_keeper(&site);
    let launches = site.calls(cloud.launch());
    site.write_config(&changed(&site, elsewhere(&site)));
    // Each pass lists; a location that counted would end the instance after two of them.
    (0..5).for_each(|_| drop(site.order(&["reap"])));
    let note = "terminates, forgets and launches nothing until they lead back";
    assert!(status(&site)["notes"].to_string().contains(note), "{:#}", status(&site));
    assert!(doctor(&site).contains("pool-elsewhere"));
    let leaks = site.greenroom(&["pool", "leaks", "--terminate"]);
    let said = String::from_utf8_lossy(&leaks.stderr).into_owned();
    assert!(!leaks.status.success() && said.contains("but the pool has instances in"), "{said}");
    // The instance still serves a job. It has served it then, and no other is launched.
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    wait_for("the reason", PATIENCE, || {
        site.order(&["reap"]);
        let waits =
            status(&site)["launch_blocked_by"]["text"].to_string().contains("but launches would be in");
        waits.then_some(())
    });
    assert_eq!((site.recorded().len(), site.living().len()), (1, 1));
    assert_eq!(site.calls(cloud.launch()), launches, "nothing is launched instead");
    end_keeper(&site);
    site.write_config(&site.setting.text(&site.state_dir));
    site.order(&["pool", "drain", "--wait"]);
    assert_eq!(site.living(), [""; 0]);
}

fn an_operator_can_give_up_what_is_in_another_location(cloud: Cloud) {
    let site = Site::open(cloud, setting(), Buy::OnDemand);
    site.warm_up_to(1);
    let give_up = ["pool", "resume", "--forget-elsewhere"];
    let said = site.greenroom(&give_up);
    assert!(
        String::from_utf8_lossy(&said.stderr)
            .contains("found no instance of pool `pool` in another location")
    );
    end_keeper(&site);
    // Without idle instances to keep, the next keeper launches nothing there.
    let elsewhere = changed(&site, other(cloud, &site));
    assert!(elsewhere.contains("idle_count = 1\n"), "{elsewhere}");
    site.write_config(&elsewhere.replace("idle_count = 1\n", "idle_count = 0\n"));
    site.order(&["reap"]);
    let said = site.order(&give_up);
    assert!(said.contains("is forgotten; terminate it at the provider if it still exists"), "{said}");
    assert_eq!((site.recorded().len(), site.living().len()), (0, 1));
    end_keeper(&site);
}

fn a_keeper_refuses_to_leave_instances_behind(cloud: Cloud) {
    let site = Site::open(cloud, setting(), Buy::OnDemand);
    let service = site.keep();
    site.warm_up_to(1);
    let changed = changed(&site, other(cloud, &site));
    refused(&site, &changed);
    // The keeper still works with the earlier configuration.
    site.order(&["pool", "drain", "--wait"]);
    assert_eq!(site.living(), [""; 0]);
    wait_for("the change", SOON, || (status(&site)["notes"] == Value::Array(Vec::new())).then_some(()));
    service.kill();
}

fn a_keeper_refuses_another_kind_while_there_are_instances(cloud: Cloud) {
    let site = Site::open(cloud, setting(), Buy::OnDemand);
    let service = site.keep();
    site.warm_up_to(1);
    refused(&site, &Setting::new().pool("idle_count", 1).text(&site.state_dir));
    site.order(&["pool", "drain", "--wait"]);
    assert_eq!(site.living(), [""; 0]);
    site.order(&["pool", "resume"]);
    site.wait_until_idle(1);
    assert_eq!(site.living(), [""; 0], "the instance is a local one");
    service.kill();
}

fn refused(site: &Site, config: &str) {
    let before = site.recorded();
    site.write_config(config);
    wait_for("the refusal", PATIENCE, || {
        site.greenroom(&["reap"]);
        status(site)["notes"].to_string().contains("but instances are in").then_some(())
    });
    assert_eq!(site.recorded(), before);
    assert_eq!(site.living().len(), 1);
}
