//! Ends of instances that the cloud announces before they come.

use greenroom_core::ids::InstanceId;
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::cloud::{Buy, Cloud};
use crate::site::{PATIENCE, Site, messages, pool};

on_both_clouds![
    an_idle_instance_is_replaced_before_it_ends,
    a_running_job_reads_what_is_announced,
    an_idle_instance_that_alone_knows_it_is_replaced,
    a_running_job_reads_what_only_its_instance_knows,
];

/// Announces something for the next hour.
fn announce(cloud: Cloud, site: &Site, instance: &InstanceId) {
    let why = match cloud {
        Cloud::Ec2 => None,
        Cloud::Gce => Some("UNSCHEDULED"),
    };
    site.lab.notice(&site.machine(instance).id, why);
}

/// The words of the notice about the announced event.
fn words(cloud: Cloud) -> &'static str {
    match cloud {
        Cloud::Ec2 => "will be reclaimed by EC2 (spot)",
        Cloud::Gce => "has host maintenance by Compute Engine",
    }
}

/// Announces something that only the instance's metadata service has.
fn announce_inside(cloud: Cloud, site: &Site, instance: &InstanceId) {
    let why = match cloud {
        Cloud::Ec2 => "rebalance",
        Cloud::Gce => "TERMINATE_ON_HOST_MAINTENANCE",
    };
    site.lab.notice(&site.machine(instance).id, Some(why));
}

/// The words of the notice that only the instance's metadata service has.
fn words_inside(cloud: Cloud) -> &'static str {
    match cloud {
        Cloud::Ec2 => "may be reclaimed by EC2 at any time (spot, rebalance recommendation)",
        Cloud::Gce => "has host maintenance by Compute Engine",
    }
}

type Announce = fn(Cloud, &Site, &InstanceId);

fn an_idle_instance_is_replaced_before_it_ends(cloud: Cloud) {
    expect_replaced(cloud, announce, words(cloud));
}

fn an_idle_instance_that_alone_knows_it_is_replaced(cloud: Cloud) {
    expect_replaced(cloud, announce_inside, words_inside(cloud));
}

#[track_caller]
fn expect_replaced(cloud: Cloud, announce: Announce, words: &str) {
    let site = Site::open(cloud, pool().pool("idle_count", 1), Buy::Spot);
    site.warm_up_to(1);
    let announced = site.idle().pop().expect("an idle instance");
    announce(cloud, &site, &announced);
    wait_for("another instance", PATIENCE, || {
        site.order(&["reap"]);
        site.idle().pop().filter(|idle| *idle != announced)
    });
    site.expect_nothing_left(1);
    let why = site.order(&["explain", announced.as_str()]);
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(why.contains(words), "{why}");
}

/// A job that runs, and its instance.
fn running_job(site: &Site) -> (Handle, InstanceId) {
    let job = Job::new(1).script(["for i in $(seq 1000); do echo tick; sleep 0.2; done"]);
    let handle = site.runner().start(&job);
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    let instance = site.grants().pop().expect("it was granted one").1;
    (handle, instance)
}

/// Expects the notice in the job log, then ends the instance, and expects no other line than that of its end, which it
/// returns.
#[track_caller]
fn expect_told(site: &Site, handle: Handle, instance: &InstanceId, words: &str) -> String {
    let told = format!("greenroom: instance {instance} {words}");
    handle.wait_for_stage("build_script").wait_for_output(&told, PATIENCE);
    site.lab.interrupt(&site.machine(instance).id, None);
    let result = handle.finish();
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let mut lines = messages(result.call("build_script"));
    assert_eq!(lines.len(), 2, "the notice, once, and the end: {lines:#?}");
    site.expect_nothing_left(0);
    lines.remove(1)
}

fn a_running_job_reads_what_is_announced(cloud: Cloud) {
    expect_read(cloud, announce, words(cloud));
}

fn a_running_job_reads_what_only_its_instance_knows(cloud: Cloud) {
    expect_read(cloud, announce_inside, words_inside(cloud));
}

#[track_caller]
fn expect_read(cloud: Cloud, announce: Announce, words: &str) {
    let site = Site::open(cloud, pool().pool("max_instances", 1), Buy::Spot);
    let (handle, instance) = running_job(&site);
    announce(cloud, &site, &instance);
    wait_for("a pass that reads it", PATIENCE, || {
        site.order(&["reap"]);
        site.order(&["pool", "status", "--json"]).contains(words).then_some(())
    });
    expect_told(&site, handle, &instance, words);
}

/// Compute Engine announces no preemption, but lists the instance as stopping while it still runs.
#[test]
fn a_job_reads_that_compute_engine_preempts_its_instance() {
    let site = Site::open(Cloud::Gce, pool().pool("max_instances", 1), Buy::Spot);
    site.lab.set(&json!({ "preempted": 600.0 }));
    let (handle, instance) = running_job(&site);
    site.lab.interrupt(&site.machine(&instance).id, None);
    let end = expect_told(&site, handle, &instance, "is being reclaimed by Compute Engine (spot)");
    assert!(end.contains("was reclaimed by Compute Engine"), "{end}");
}
