//! Launch specs as JSON.

use greenroom_core::golden;
use greenroom_core::ids::{Generation, OfferingName, OwnerId, PoolName};
use greenroom_core::inventory;
use greenroom_ports::provider::InstanceKeys;
use serde_json::{Value, json};

use super::*;

fn request(pool: &str, lifetime: Option<Time>) -> LaunchRequest {
    let tags = inventory::Tags {
        pool: PoolName::new(pool),
        owner: OwnerId::new("0123456789abcdef"),
        generation: Generation::new("c0ffee"),
        number: 7,
    };
    let keys = InstanceKeys {
        authorized_key: "ssh-ed25519 AAAAuser".to_owned(),
        host_key: "secret".to_owned(),
        host_key_public: "ssh-ed25519 AAAAhost\n".to_owned(),
    };
    let instance = InstanceId::launched(&tags.pool, &tags.generation, tags.number);
    let token = format!("{instance}/1");
    LaunchRequest {
        instance,
        token,
        tags,
        offering: Some(OfferingName::new("")),
        keys,
        lifetime,
        order: None,
    }
}

fn spec(text: &str, request: &LaunchRequest) -> LaunchSpec {
    let minimal = "project = \"my-project\"\nimage = \"family/ci\"\nmachine_types = \"e2-medium\"\nzones = \"us-east1-b\"\n";
    let mut table: toml::Table = minimal.parse().unwrap();
    table.extend(text.parse::<toml::Table>().unwrap());
    let settings = Settings::read(&PoolName::new("linux"), &table).unwrap();
    LaunchSpec::new(&settings, request, &settings.common.offerings[0]).unwrap()
}

fn body(spec: &LaunchSpec) -> Value {
    serde_json::to_value(&spec.instance).unwrap()
}

#[test]
fn the_least_order_has_a_disk_that_goes_with_it_and_no_rights() {
    let spec = spec("", &request("linux", None));
    let mut sent = body(&spec);
    let script = sent["metadata"]["items"][0]["value"].take();
    assert!(script.as_str().unwrap().starts_with("#!/bin/sh"), "{script}");
    let labels = json!({
        "greenroom-pool": "linux", "greenroom-owner": "0123456789abcdef", "greenroom-generation": "c0ffee",
        "greenroom-number": "7",
    });
    let wanted = json!({
        "name": "linux-c0ffee-7",
        "machineType": "zones/us-east1-b/machineTypes/e2-medium",
        "labels": labels,
        "disks": [{
            "boot": true, "autoDelete": true,
            "initializeParams": { "sourceImage": "global/images/family/ci", "labels": labels },
        }],
        "networkInterfaces": [{ "network": "global/networks/default" }],
        "metadata": { "items": [
            { "key": "startup-script", "value": null },
            { "key": "greenroom-request", "value": spec.request_id },
            { "key": "block-project-ssh-keys", "value": "TRUE" },
        ] },
        "scheduling": { "provisioningModel": "STANDARD", "automaticRestart": false },
    });
    assert_eq!(sent, wanted);
    assert_eq!(created_by(&spec.instance), Some(spec.request_id.as_str()));
}

#[test]
fn every_key_is_said() {
    let text = "network = \"projects/host-1/global/networks/n\"\nsubnetwork = \"s\"\naddress = \"public\"\n\
                service_account = \"ci@x\"\nnetwork_tags = [\"ci\"]\ndisk = \"50G\"\ndisk_type = \"pd-ssd\"\n\
                tags = { team = \"a\" }\nmarket = \"spot\"\nuser_data = \"cloud-init\"\n";
    let sent = body(&spec(text, &request("linux", Some(Time::from_hours(2)))));
    let scheduling = json!({
        "provisioningModel": "SPOT", "automaticRestart": false, "instanceTerminationAction": "DELETE",
        "maxRunDuration": { "seconds": "7200" },
    });
    assert_eq!(sent["scheduling"], scheduling);
    let interface = json!([{
        "network": "projects/host-1/global/networks/n", "subnetwork": "regions/us-east1/subnetworks/s",
        "accessConfigs": [{ "name": "external-nat", "type": "ONE_TO_ONE_NAT" }],
    }]);
    assert_eq!(sent["networkInterfaces"], interface);
    let params = &sent["disks"][0]["initializeParams"];
    assert_eq!(
        (&params["diskSizeGb"], &params["diskType"]),
        (&json!("50"), &json!("zones/us-east1-b/diskTypes/pd-ssd"))
    );
    assert_eq!((&params["labels"]["team"], &sent["labels"]["team"]), (&json!("a"), &json!("a")));
    assert_eq!(sent["tags"], json!({ "items": ["ci"] }));
    let account = json!([{ "email": "ci@x", "scopes": ["https://www.googleapis.com/auth/cloud-platform"] }]);
    assert_eq!(sent["serviceAccounts"], account);
    assert_eq!(sent["metadata"]["items"][0]["key"], "user-data");
}

#[test]
fn an_ipv6_address_is_beside_the_private_one_and_public_only_if_that_is_said() {
    let interface = |more: &str| {
        let text = format!("address = \"ipv6\"\nsubnetwork = \"s\"\n{more}");
        body(&spec(&text, &request("linux", None)))["networkInterfaces"][0].clone()
    };
    let internal = json!({ "subnetwork": "regions/us-east1/subnetworks/s", "stackType": "IPV4_IPV6" });
    assert_eq!(interface(""), internal);
    let access = json!([{ "name": "external-ipv6", "type": "DIRECT_IPV6", "networkTier": "PREMIUM" }]);
    let mut external = internal;
    external["ipv6AccessConfigs"] = access;
    assert_eq!(interface("public_ip = true"), external);
}

#[test]
fn a_life_is_within_the_limits_and_an_end_is_said_only_where_there_is_one() {
    let scheduling =
        |text: &str, lifetime| body(&spec(text, &request("linux", lifetime)))["scheduling"].clone();
    assert_eq!(scheduling("", Some(Time::from_secs(1)))["maxRunDuration"]["seconds"], "30");
    assert_eq!(scheduling("", Some(Time::MAX))["maxRunDuration"]["seconds"], "10368000");
    assert_eq!(scheduling("market = \"spot\"", None)["instanceTerminationAction"], "DELETE");
    assert_eq!(scheduling("", None)["instanceTerminationAction"], Value::Null);
}

#[test]
fn an_order_is_kept_and_given_again_as_it_was() {
    let first = spec("", &request("linux", None));
    let stored = serde_json::to_string(&first).unwrap();
    assert_eq!(serde_json::from_str::<LaunchSpec>(&stored).unwrap(), first);
}

#[test]
fn a_name_begins_with_a_letter_and_a_token_is_one_uuid() {
    assert_eq!(spec("", &request("64bit", None)).handle().name, "greenroom-64bit-c0ffee-7");
    let (own, mut other) = (request("linux", None), request("linux", None));
    // Version 8, variant 2.
    let id = |request: &LaunchRequest| request_id(&request.tags.owner, &request.token);
    assert_eq!(id(&own), "5d3a42f7-de61-8480-95cc-81ba8973d13c");
    other.tags.owner = OwnerId::new("fedcba9876543210");
    assert_ne!(id(&own), id(&other), "another owner's is another");
}

#[test]
fn recorded_specs_are_read() {
    let more = "market = \"spot\"\ndisk = \"50G\"\nnetwork_tags = \"ci\"\nservice_account = \"ci@my-project.iam.gserviceaccount.com\"\n";
    let lifetime = Some(Time::from_hours(8));
    let samples =
        [spec("", &request("linux", None)), spec(more, &request("linux", lifetime))].map(|mut spec| {
            // The script of the first boot may change within a format.
            let items = &mut spec.instance.metadata.as_mut().unwrap().items;
            items[0].value = Some("#!/bin/sh\n".to_owned());
            spec
        });
    golden::hold(golden::recorded!("launch-specs-gce.jsonl"), &samples);
}
