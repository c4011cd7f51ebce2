//! What a machine is told at its first boot: keys, users, and its end.

use std::time::Duration;

use serde_json::json;

use crate::cloud::Cloud;
use crate::fixture::CloudFixture;
use crate::provider::{Fixture, good, request, running, until};
use crate::site::{Site, pool};
use crate::support::job::Job;
use crate::support::record::Outcome;

/// A whole job, as a user that has to be made: no key but ours is ever accepted on the way.
fn a_job_runs(cloud: Cloud, user_data: &str) {
    let home = |folder: &str| format!("/home/greenroom-ci/{folder}");
    let setting = pool().pool("builds_dir", home("builds")).pool("cache_dir", home("cache"));
    let site = Site::with(cloud, setting, &[("user_data", user_data), ("user", "greenroom-ci")]);
    let job = Job::new(1).script(["id -un"]);
    let result = site.run(&job);
    result.expect_outcome(&Outcome::Success);
    assert!(result.call("build_script").stdout_text().contains("greenroom-ci"), "{}", result.describe());
    site.expect_nothing_left(0);
}

#[test]
fn ec2_reads_cloud_config() {
    a_job_runs(Cloud::Ec2, "cloud-init");
}

#[test]
fn ec2_runs_a_script() {
    a_job_runs(Cloud::Ec2, "script");
}

#[test]
fn compute_engine_reads_cloud_config() {
    a_job_runs(Cloud::Gce, "cloud-init");
}

#[test]
fn compute_engine_runs_a_script() {
    a_job_runs(Cloud::Gce, "script");
}

/// Nobody asks for its end.
async fn a_machine_ends_by_itself(cloud: Cloud) {
    let fixture = CloudFixture::new(cloud);
    let provider = good(&fixture);
    // Compute Engine takes no shorter life; the lab's time runs faster for it.
    fixture.lab.set(&json!({ "run_duration_scale": 0.1 }));
    let lifetime = if cloud == Cloud::Ec2 { Duration::from_secs(3) } else { Duration::from_secs(30) };
    let mut launch = request(&fixture, 1);
    launch.lifetime = Some(lifetime);
    provider.launch(&launch).await.expect("it is accepted");
    running(&fixture, &*provider, &launch.instance).await;
    until("its end", Duration::from_secs(30), async || fixture.remains().is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_machine_of_ec2_ends_when_its_manager_is_gone() {
    a_machine_ends_by_itself(Cloud::Ec2).await;
}

#[tokio::test]
async fn a_machine_of_compute_engine_ends_when_its_manager_is_gone() {
    a_machine_ends_by_itself(Cloud::Gce).await;
}
