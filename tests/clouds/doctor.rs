//! `greenroom doctor` on clouds, without launching anything.

#![cfg(test)]

use serde_json::json;

use crate::cloud::{Buy, Cloud};
use crate::site::{Site, pool};

fn as_texts(found: &[[String; 3]]) -> Vec<[&str; 3]> {
    found.iter().map(|one| one.each_ref().map(String::as_str)).collect()
}

#[test]
fn a_pool_that_the_limits_of_ec2_cannot_hold_is_told() {
    let setting = pool().pool("max_instances", 8).pool("idle_count", 1);
    let site = Site::open(Cloud::Ec2, setting, Buy::OnDemand);
    site.warm_up_to(1);
    assert_eq!(
        site.findings(Cloud::Ec2),
        Vec::<[String; 3]>::new(),
        "no limit of its own, and a large default"
    );

    site.lab.set(&json!({ "quotas": { "on-demand": 16, "spot": 0 } }));
    assert_eq!(site.findings(Cloud::Ec2), Vec::<[String; 3]>::new(), "just enough");

    site.lab.set(&json!({ "quotas": { "on-demand": 8, "spot": 1000 } }));
    let message = "quotas allow 3 more instances of pool `pool`, but the pool may launch 7 more: 3 of m5.large \
                (On-Demand Standard: 2 of 8 vCPUs used)";
    assert_eq!(as_texts(&site.findings(Cloud::Ec2)), [["aws-ec2-quota", "warning", message]]);
}

#[test]
fn a_pool_that_may_buy_both_ways_has_the_room_of_both_limits_of_ec2() {
    let site = Site::open(Cloud::Ec2, pool().pool("max_instances", 8), Buy::Either);
    site.lab.set(&json!({ "quotas": { "on-demand": 5, "spot": 12 } }));
    assert_eq!(site.findings(Cloud::Ec2), Vec::<[String; 3]>::new());
    site.lab.set(&json!({ "quotas": { "on-demand": 5, "spot": 0 } }));
    let message = "quotas allow 2 more instances of pool `pool`, but the pool may launch 8 more: 0 of m5.large \
                (Spot Standard: 0 of 0 vCPUs used), 2 of m5.large (On-Demand Standard: 0 of 5 vCPUs used)";
    assert_eq!(as_texts(&site.findings(Cloud::Ec2)), [["aws-ec2-quota", "warning", message]]);
}

#[test]
fn a_pool_that_the_quotas_of_its_region_cannot_hold_is_told() {
    let site = Site::open(Cloud::Gce, pool().pool("max_instances", 8), Buy::OnDemand);
    assert_eq!(site.findings(Cloud::Gce), Vec::<[String; 3]>::new());
    site.lab.set(&json!({ "quotas": { "CPUS": 7 } }));
    let message =
        "quotas allow 3 more instances of pool `pool`, but the pool may launch 8 more: 3 in us-east1 (CPUS)";
    assert_eq!(as_texts(&site.findings(Cloud::Gce)), [["gce-quota", "warning", message]]);
}

#[test]
fn limits_of_ec2_that_cannot_be_seen_are_a_note() {
    let site = Site::open(Cloud::Ec2, pool(), Buy::OnDemand);
    for (fault, error) in [
        (json!({ "mode": "denied" }), "AccessDeniedException: "),
        (json!({ "mode": "throttled" }), "TooManyRequestsException: "),
        (json!({ "mode": "hang", "seconds": 60 }), "no answer within 10 s"),
    ] {
        let mut fault = fault;
        fault["operation"] = "GetServiceQuota".into();
        site.lab.fault(&fault);
        let found = site.findings(Cloud::Ec2);
        let [[code, severity, message]] = as_texts(&found)[..] else { panic!("{found:#?}") };
        assert_eq!([code, severity], ["aws-ec2-not-checked", "note"]);
        let begin = "doctor cannot check the quotas for pool `pool` (the pool itself works without): ";
        assert!(message.starts_with(&format!("{begin}{error}")), "{message}");
    }
}

#[test]
fn one_wrong_image_is_one_finding() {
    for (cloud, image, code) in [
        (Cloud::Ec2, "ami-0bad0bad0bad0bad0", "aws-ec2-refused"),
        (Cloud::Gce, "there-is-none", "gce-refused"),
    ] {
        let site = Site::with(cloud, pool(), &[("image", image)]);
        let found = site.findings(cloud);
        let [[reported, severity, message]] = as_texts(&found)[..] else { panic!("{found:#?}") };
        assert_eq!([reported, severity], [code, "error"]);
        assert!(message.contains(" and 2 more of pool `pool`: ") && message.contains(image), "{message}");
    }
}

#[test]
fn launches_that_are_not_allowed_are_one_finding() {
    let site = Site::open(Cloud::Ec2, pool(), Buy::OnDemand);
    site.lab.fault(&json!({ "operation": "RunInstances", "mode": "denied", "count": null }));
    let found = site.findings(Cloud::Ec2);
    let [[code, severity, what]] = as_texts(&found)[..] else { panic!("{found:#?}") };
    assert_eq!([code, severity], ["aws-ec2-denied", "error"]);
    assert!(what.contains(" and 2 more: UnauthorizedOperation: "), "{what}");
}

#[test]
fn notices_that_are_not_allowed_are_told() {
    let site = Site::open(Cloud::Ec2, pool(), Buy::Either);
    for operation in ["DescribeInstanceStatus", "DescribeSpotInstanceRequests"] {
        site.lab.fault(&json!({ "operation": operation, "mode": "denied" }));
    }
    let found = site.findings(Cloud::Ec2);
    let begins = ["list scheduled events", "list spot requests"].map(|purpose| {
        format!("pool `pool` is not allowed to {purpose} (it works without): UnauthorizedOperation: ")
    });
    let [events, reclaims] = &as_texts(&found)[..] else { panic!("{found:#?}") };
    for ([code, severity, message], begin) in [events, reclaims].into_iter().zip(begins) {
        assert_eq!([*code, *severity], ["aws-ec2-notices-denied", "note"]);
        assert!(message.starts_with(&begin), "{message}");
    }
    for mode in ["throttled", "lost"] {
        site.lab.fault(&json!({ "operation": "DescribeInstanceStatus", "mode": mode }));
        assert_eq!(site.findings(Cloud::Ec2), Vec::<[String; 3]>::new(), "{mode}");
    }
}

#[test]
fn a_clock_that_is_off_is_told() {
    for (cloud, severity) in [(Cloud::Ec2, "error"), (Cloud::Gce, "warning")] {
        let site = Site::open(cloud, pool(), Buy::OnDemand);
        site.lab.set(&json!({ "clock_ahead": 400 }));
        let found = site.findings(cloud);
        let [[code, reported, message]] = as_texts(&found)[..] else { panic!("{found:#?}") };
        assert_eq!([code, reported], [format!("{}-clock", cloud.kind()).as_str(), severity]);
        assert!(message.contains(" s behind "), "{message}");
    }
}
