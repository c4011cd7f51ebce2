//! User data for a machine's first boot: its host key, and the user that logs in.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::cloud::Cloud;
use crate::site::{Site, pool};

/// A whole job, with a user that the first boot creates. Only the host key from Greenroom is accepted.
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
