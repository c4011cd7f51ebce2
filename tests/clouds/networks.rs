//! Networks and addresses of machines: default subnets of zones, IPv6.

use std::net::{Ipv6Addr, TcpListener};

use greenroom_core::event::Change;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};
use toml::Table;

use crate::cloud::Cloud;
use crate::site::{Site, pool};

/// Two zones of EC2's default network, with a group there.
fn by_zones(table: &mut Table, world: &Value) {
    table.remove("subnets");
    let group = world["ec2"]["default"]["closed_group"].as_str().expect("an id");
    table.insert("security_groups".to_owned(), group.into());
    let zones = ["eu-west-1b", "eu-west-1c"].map(toml::Value::from);
    table.insert("zones".to_owned(), toml::Value::Array(zones.to_vec()));
}

/// IPv6 addresses: EC2 has one kind, Compute Engine two.
fn by_ipv6(access: &'static str) -> impl FnOnce(&mut Table, &Value) {
    move |table, world| {
        table.insert("address".to_owned(), "ipv6".into());
        if table.contains_key("project") {
            let subnetwork = world["gce"]["ipv6_subnetworks"][access].as_str().expect("there is one");
            table.insert("subnetwork".to_owned(), subnetwork.into());
            table.insert("public_ip".to_owned(), (access == "EXTERNAL").into());
        }
    }
}

/// True if this machine has an IPv6 address; without one, the test is skipped.
fn has_ipv6() -> bool {
    let tried = TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
    if let Err(why) = &tried {
        skipped(format_args!("no IPv6 on the loopback interface: {why}"));
    }
    tried.is_ok()
}

/// The address of the only instance.
#[track_caller]
fn reached(site: &Site) -> String {
    let address = site.events().into_iter().find_map(|event| match event.change {
        Change::Reached { endpoint, .. } => Some(endpoint.address),
        _ => None,
    });
    address.expect("an instance was reached")
}

/// The findings of `doctor`, except for quotas.
#[track_caller]
fn findings(cloud: Cloud, site: &Site) -> Vec<[String; 3]> {
    let beyond = |[code, ..]: &[String; 3]| !code.ends_with("-quota");
    site.findings(cloud).into_iter().filter(beyond).collect()
}

#[test]
fn a_zone_of_ec2_is_its_default_subnet() {
    let site = Site::edited(Cloud::Ec2, pool(), by_zones);
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    let address = reached(&site);
    assert!(address.starts_with("127.76.2."), "{address}");
    let requests = site.lab.requests();
    let launch = requests.iter().find(|request| request.operation == "RunInstances").expect("a launch");
    assert_eq!(launch.parameters["Placement"], json!({ "AvailabilityZone": "eu-west-1b" }));
    assert_eq!(launch.parameters["SubnetId"], Value::Null);
    let group = &site.lab.world["ec2"]["default"]["closed_group"];
    assert_eq!(launch.parameters["SecurityGroupIds"], json!([group]));
    let metadata = json!({ "HttpTokens": "required", "HttpPutResponseHopLimit": 1 });
    assert_eq!(launch.parameters["MetadataOptions"], metadata);
    site.expect_nothing_left(0);
}

#[test]
fn doctor_rehearses_zones_and_counts_their_addresses() {
    let setting = pool().pool("max_instances", 503).pool("max_lifetime", "12h");
    let site = Site::edited(Cloud::Ec2, setting, by_zones);
    let found = findings(Cloud::Ec2, &site);
    let [[code, _, few]] = &found[..] else { panic!("{found:#?}") };
    assert!(code == "aws-ec2-addresses" && few.contains("have 502 free addresses"), "two of 251: {few}");
    let requests = site.lab.requests();
    let rehearsed = requests.iter().filter(|request| request.code.as_deref() == Some("DryRunOperation"));
    assert_eq!(rehearsed.count(), 2, "{requests:#?}");
}

/// A whole job over IPv6, and the reported address of its instance.
fn a_job_goes_over_ipv6(cloud: Cloud, access: &'static str) {
    if !has_ipv6() {
        return;
    }
    let site = Site::edited(cloud, pool().pool("max_instances", 1), by_ipv6(access));
    let result = site.run(&Job::new(1).script(["echo \"$SSH_CONNECTION\""]));
    result.expect_outcome(&Outcome::Success);
    let connection = result.call("build_script").stdout_text();
    let port = &site.lab.world["ssh_port"];
    assert!(connection.lines().any(|line| line.ends_with(&format!(" ::1 {port}"))), "{connection}");
    assert_eq!(reached(&site), "::1");
    let instance = site.grants().pop().expect("it was granted one").1;
    let output = site.order(&["explain", instance.as_str()]);
    let sentence = output.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(sentence.contains(&format!("reachable at [::1]:{port}")), "{output}");
    site.expect_nothing_left(0);
}

#[test]
fn a_job_goes_over_ipv6_on_ec2() {
    a_job_goes_over_ipv6(Cloud::Ec2, "");
}

#[test]
fn a_job_goes_over_internal_ipv6_on_compute_engine() {
    a_job_goes_over_ipv6(Cloud::Gce, "INTERNAL");
}

#[test]
fn a_job_goes_over_external_ipv6_on_compute_engine() {
    a_job_goes_over_ipv6(Cloud::Gce, "EXTERNAL");
}

/// The findings of `doctor` for a pool with an edited table.
fn examined(cloud: Cloud, edit: impl FnOnce(&mut Table, &Value)) -> Vec<[String; 3]> {
    findings(cloud, &Site::edited(cloud, pool().pool("max_lifetime", "12h"), edit))
}

#[test]
fn doctor_finds_networks_fit_for_ipv6() {
    for (cloud, access) in [(Cloud::Ec2, ""), (Cloud::Gce, "INTERNAL"), (Cloud::Gce, "EXTERNAL")] {
        assert_eq!(examined(cloud, by_ipv6(access)), Vec::<[String; 3]>::new(), "{cloud:?} {access}");
    }
}

#[test]
fn doctor_finds_subnets_without_ipv6() {
    let found = examined(Cloud::Ec2, |table, world| {
        by_ipv6("")(table, world);
        table.insert("subnets".to_owned(), world["ec2"]["small_subnet"].as_str().expect("an id").into());
    });
    let [[code, _, message]] = &found[..] else { panic!("{found:#?}") };
    assert!(code == "aws-ec2-refused" && message.contains("has no IPv6 CIDR block"), "{message}");
    for (name, public_ip, wanted) in [
        ("default", false, "subnetwork `default` has no IPv6 addresses"),
        ("dual-internal", true, "subnetwork `dual-internal` has only internal IPv6 addresses"),
        ("dual-external", false, "which require `public_ip = true`"),
    ] {
        let found = examined(Cloud::Gce, |table, world| {
            by_ipv6("INTERNAL")(table, world);
            table.insert("subnetwork".to_owned(), name.into());
            table.insert("public_ip".to_owned(), public_ip.into());
        });
        let [[code, _, message]] = &found[..] else { panic!("{found:#?}") };
        assert!(code == "gce-refused" && message.contains(wanted), "{message}");
    }
}
