//! Findings of `doctor` about what may reach the instances beside the runner host.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use greenroom_harness::driver;
use greenroom_testkit::skipped::skipped;
use serde_json::Value;
use tempfile::TempDir;
use toml::Table;

use crate::cloud::{Buy, Cloud};
use crate::site::{Site, pool};

/// An executable script of `sh` that ends as the driver.
fn driver_after(dir: &TempDir, prepared: &str) -> PathBuf {
    let path = dir.path().join("driver");
    fs::write(&path, format!("#!/bin/sh\n{prepared}\nexec {} \"$@\"\n", driver())).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    path
}

/// The findings for a pool with an edited table, which must all be warnings: code and message.
#[track_caller]
fn examined(cloud: Cloud, edit: impl FnOnce(&mut Table, &Value)) -> Vec<[String; 2]> {
    warnings(Site::edited(cloud, pool(), edit).findings(cloud))
}

#[track_caller]
fn warnings(found: Vec<[String; 3]>) -> Vec<[String; 2]> {
    assert!(found.iter().all(|[_, severity, _]| severity == "warning"), "{found:#?}");
    found.into_iter().map(|[code, _, message]| [code, message]).collect()
}

/// EC2's findings with one more group.
#[track_caller]
fn with_group(name: &str) -> (String, Vec<[String; 2]>) {
    let mut id = String::new();
    let found = examined(Cloud::Ec2, |table, world| {
        id = world["ec2"]["open_groups"][name].as_str().expect("an id").to_owned();
        let groups = table["security_groups"].as_array_mut().expect("a list");
        groups.push(id.as_str().into());
    });
    (id, found)
}

#[test]
fn groups_of_ec2_that_allow_more_than_the_runner_host_are_told() {
    for (name, range) in [("world", "0.0.0.0/0"), ("world_ipv6", "::/0")] {
        let (id, found) = with_group(name);
        let message =
            format!("security group {id} allows inbound traffic to pool `pool` from everywhere ({range})");
        assert_eq!(found, [["aws-ec2-group-open".to_owned(), message]]);
    }
    for name in ["network", "members"] {
        let (id, found) = with_group(name);
        let source = if name == "network" { "127.77.0.0/16" } else { &id };
        let message =
            format!("security group {id} lets the instances of pool `pool` reach each other (from {source})");
        assert_eq!(found, [["aws-ec2-group-members".to_owned(), message]]);
    }
}

#[test]
fn a_group_that_is_also_the_managers_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let site = Site::open(Cloud::Ec2, pool().pool("idle_count", 1), Buy::OnDemand);
    site.warm_up_to(1);
    let name = site.idle().pop().expect("an idle instance");
    // In a mount namespace, this machine shows the ID of an instance with the pool's group, as EC2's machines do.
    let shown = format!(
        "mount -t tmpfs tmpfs /sys/devices/virtual && mkdir -p /sys/devices/virtual/dmi/id || exit 9\n\
         echo {} > /sys/devices/virtual/dmi/id/board_asset_tag",
        site.machine(&name).id
    );
    let inner = driver_after(&dir, &shown);
    let tried = Command::new("unshare").args(["-m", "--"]).arg(&inner).arg("--version").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        return skipped("this machine allows no mount namespaces with a file system of their own");
    }
    let outer = dir.path().join("in-namespace");
    fs::write(&outer, format!("#!/bin/sh\nexec unshare -m -- {} \"$@\"\n", inner.display()))
        .expect("a script");
    fs::set_permissions(&outer, fs::Permissions::from_mode(0o755)).expect("its mode");
    let group = site.lab.world["ec2"]["security_group"].as_str().expect("an id").to_owned();
    let found = warnings(site.findings_of(&outer, Cloud::Ec2));
    let message = format!("security group {group} of pool `pool` is also the runner host's");
    assert_eq!(found, [["aws-ec2-group-manager".to_owned(), message]]);
    assert_eq!(
        site.findings(Cloud::Ec2),
        Vec::<[String; 3]>::new(),
        "elsewhere, the runner host is another machine"
    );
}

#[test]
fn firewall_rules_that_allow_more_than_the_runner_host_are_told() {
    for (tag, code, end) in [
        ("world", "open", "allows inbound traffic to pool `pool` from everywhere (0.0.0.0/0)"),
        ("network", "members", "lets the instances of pool `pool` reach each other (from 127.78.0.0/16)"),
        (
            "members",
            "members",
            "lets the instances of pool `pool` reach each other (from network tag `members`)",
        ),
    ] {
        let found = examined(Cloud::Gce, |table, _| {
            table.insert("network_tags".to_owned(), tag.into());
        });
        let wanted = [format!("gce-firewall-{code}"), format!("firewall rule `lab-{tag}` {end}")];
        assert_eq!(found, [wanted]);
    }
}

#[test]
fn a_tag_and_an_account_that_are_also_the_managers_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let site = Site::edited(Cloud::Gce, pool(), |table, world| {
        let project = world["gce"]["project"].as_str().expect("an id");
        table.insert("network_tags".to_owned(), toml::Value::Array(vec!["ci".into(), "manager".into()]));
        table.insert("service_account".to_owned(), format!("lab@{project}.iam.gserviceaccount.com").into());
    });
    assert_eq!(
        site.findings(Cloud::Gce),
        Vec::<[String; 3]>::new(),
        "the runner host is no machine of Google's"
    );
    let url = site.lab.url();
    let server = url.strip_prefix("http://").expect("the emulator has no TLS");
    let found = warnings(
        site.findings_of(&driver_after(&dir, &format!("export GCE_METADATA_HOST={server}")), Cloud::Gce),
    );
    let project = site.lab.world["gce"]["project"].as_str().expect("an id");
    let wanted = [
        "network tag `manager`".to_owned(),
        format!("service account lab@{project}.iam.gserviceaccount.com"),
    ]
    .map(|what| {
        ["gce-firewall-manager".to_owned(), format!("{what} of pool `pool` is also the runner host's")]
    });
    assert_eq!(found, wanted);
}
