//! Where in a cloud's network machines are: default subnets of zones.

use greenroom::core::event::Change;
use serde_json::{Value, json};
use toml::Table;

use crate::cloud::Cloud;
use crate::site::{Site, pool};
use crate::support::job::Job;
use crate::support::record::Outcome;

/// Two zones of EC2's default network, with its default group.
fn by_zones(table: &mut Table, _world: &Value) {
    for key in ["subnets", "security_groups"] {
        table.remove(key);
    }
    let zones = ["eu-west-1b", "eu-west-1c"].map(toml::Value::from);
    table.insert("zones".to_owned(), toml::Value::Array(zones.to_vec()));
}

/// The address at which the only instance was reached.
#[track_caller]
fn reached(site: &Site) -> String {
    let address = site.events().into_iter().find_map(|event| match event.change {
        Change::Reached { endpoint, .. } => Some(endpoint.address),
        _ => None,
    });
    address.expect("an instance was reached")
}

/// What `doctor` says, as code and sentence.
#[track_caller]
fn findings(site: &Site) -> Vec<(String, String)> {
    let said = site.greenroom(&["doctor", "--json"]);
    let said: Value = serde_json::from_slice(&said.stdout).expect("it is JSON");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let all = said["findings"].as_array().cloned().unwrap_or_default();
    all.iter().map(|finding| (text(finding, "code"), text(finding, "what"))).collect()
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
    for key in ["SubnetId", "SecurityGroupIds"] {
        assert_eq!(launch.parameters[key], Value::Null, "{key}");
    }
    site.expect_nothing_left(0);
}

#[test]
fn doctor_rehearses_zones_and_counts_their_addresses() {
    let setting = pool().pool("max_instances", 503).pool("max_lifetime", "12h");
    let site = Site::edited(Cloud::Ec2, setting, by_zones);
    let found = findings(&site);
    let of_ec2 = found.iter().filter(|(code, _)| code.starts_with("aws-ec2-"));
    let of_ec2: Vec<_> = of_ec2.map(|(code, what)| (code.as_str(), what.as_str())).collect();
    let [("aws-ec2-addresses", few), ("aws-ec2-quota", _)] = of_ec2[..] else { panic!("{found:#?}") };
    assert!(few.contains("have 502 addresses left"), "two default subnets of 251: {few}");
    let requests = site.lab.requests();
    let rehearsed = requests.iter().filter(|request| request.code.as_deref() == Some("DryRunOperation"));
    assert_eq!(rehearsed.count(), 2, "{requests:#?}");
}
