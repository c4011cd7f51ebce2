//! Kind: a provider that is gone for good keeps no pool's name. Its records are dropped knowingly, and nothing hides what may still
//! cost money.

#![cfg(test)]

use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::jobs::{PATIENCE, Site};

fn said(site: &Site, arguments: &[&str]) -> (bool, String) {
    let output = site.greenroom(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The cluster was deleted while a pod of the pool was idle and another had a job. The operator drops the records.
#[test]
fn a_deleted_clusters_records_are_dropped_once_no_job_holds_them() {
    let Some(site) = Site::open(|setting| setting.pool("idle_count", 1)) else { return };
    let keeper = site.keep();
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    wait_for("an idle pod", PATIENCE, || (site.idle().len() == 1).then_some(()));
    let forget = ["pool", "resume", "pool", "--forget-unreachable"];
    let (done, text) = said(&site, &forget);
    assert!(!done && text.contains("the provider of pool `pool` answered the keeper's last pass"), "{text}");

    let mut handle =
        site.runner().start(&Job::new(2).script(["for i in $(seq 3000); do echo tick; sleep 0.1; done"]));
    handle.wait_for_log("tick");
    assert!(said(&site, &["pool", "drain", "pool"]).0);
    site.cluster.fault(&json!({ "request": "any", "how": "503" }));
    wait_for("a refusal because of the job", PATIENCE, || {
        said(&site, &forget).1.contains("still runs a job: repeat the command after the job").then_some(())
    });
    handle.cancel();
    drop(handle.finish());

    let left: Vec<String> = site.state().instances.keys().map(ToString::to_string).collect();
    assert!(!left.is_empty(), "no call reaches the cluster");
    let (done, text) = said(&site, &[&forget[..], &["--dry-run"]].concat());
    assert!(done && text.contains(&format!("would: the record of {} is dropped", left[0])), "{text}");
    assert_eq!(site.state().instances.len(), left.len(), "a dry run changes nothing");
    let (done, text) = said(&site, &forget);
    assert!(done, "{text}");
    for id in &left {
        assert!(text.contains(&format!("{id} in ")) && text.contains("ci-jobs"), "{text}");
    }
    assert!(text.contains("These may still exist and cost money"), "{text}");
    assert!(site.state().instances.is_empty());
    let (_, text) = said(&site, &["explain", &left[0]]);
    assert!(text.contains("dropped by the operator, because the provider did not answer"), "{text}");
    assert!(said(&site, &forget).1.contains("nothing to forget"));
    site.cluster.clear_faults();
    drop(keeper);
}
