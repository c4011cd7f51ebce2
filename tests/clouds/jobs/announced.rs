//! Ends of instances that the cloud announces before they come.

use greenroom::core::ids::InstanceId;
use serde_json::json;

use crate::cloud::{Buy, Cloud};
use crate::processes::wait_for;
use crate::site::{PATIENCE, Site, messages, pool};
use crate::support::job::Job;
use crate::support::record::Outcome;

on_both_clouds![an_idle_instance_is_replaced_before_it_ends, a_running_job_reads_what_is_announced,];

/// Announces something for the next hour.
fn announce(cloud: Cloud, site: &Site, instance: &InstanceId) {
    let why = match cloud {
        Cloud::Ec2 => None,
        Cloud::Gce => Some("UNSCHEDULED"),
    };
    site.lab.notice(&site.machine(instance).id, why);
}

/// What is announced, by the words of the notice.
fn words(cloud: Cloud) -> &'static str {
    match cloud {
        Cloud::Ec2 => "will be reclaimed by EC2 (spot)",
        Cloud::Gce => "has host maintenance by Compute Engine",
    }
}

fn an_idle_instance_is_replaced_before_it_ends(cloud: Cloud) {
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
    assert!(why.contains(words(cloud)), "{why}");
}

fn a_running_job_reads_what_is_announced(cloud: Cloud) {
    let site = Site::open(cloud, pool().pool("max_instances", 1), Buy::Spot);
    let job = Job::new(1).script(["for i in $(seq 1000); do echo tick; sleep 0.2; done"]);
    let handle = site.runner().start(&job);
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    let instance = site.grants().pop().expect("it was granted one").1;
    announce(cloud, &site, &instance);
    wait_for("a pass that reads it", PATIENCE, || {
        site.order(&["reap"]);
        site.order(&["pool", "status", "--json"]).contains(words(cloud)).then_some(())
    });
    let told = format!("greenroom: instance {instance} {}", words(cloud));
    handle.wait_for_stage("build_script").wait_for_output(&told, PATIENCE);
    site.lab.interrupt(&site.machine(&instance).id, None);
    let result = handle.finish();
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let lines = messages(result.call("build_script"));
    assert_eq!(lines.len(), 2, "the notice, once, and the end: {lines:#?}");
    site.expect_nothing_left(0);
}

/// Compute Engine announces no preemption, but lists the instance as stopping while it still runs.
#[test]
fn a_job_reads_that_compute_engine_preempts_its_instance() {
    let site = Site::open(Cloud::Gce, pool().pool("max_instances", 1), Buy::Spot);
    site.lab.set(&json!({ "preempted": 600.0 }));
    let job = Job::new(1).script(["for i in $(seq 1000); do echo tick; sleep 0.2; done"]);
    let handle = site.runner().start(&job);
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    let instance = site.grants().pop().expect("it was granted one").1;
    site.lab.interrupt(&site.machine(&instance).id, None);
    let told = format!("greenroom: instance {instance} is being reclaimed by Compute Engine (spot)");
    handle.wait_for_stage("build_script").wait_for_output(&told, PATIENCE);
    site.lab.interrupt(&site.machine(&instance).id, None);
    let result = handle.finish();
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let lines = messages(result.call("build_script"));
    assert_eq!(lines.len(), 2, "the notice, once, and the end: {lines:#?}");
    assert!(lines[1].contains("was reclaimed by Compute Engine"), "{lines:#?}");
    site.expect_nothing_left(0);
}
