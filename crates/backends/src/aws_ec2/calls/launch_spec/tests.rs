//! Launch specs, as calls of EC2.

use greenroom_core::golden;
use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_ports::provider::InstanceKeys;

use super::*;

fn settings(more: &str) -> Settings {
    let minimal = "image = \"ami-0a000000000000001\"\ninstance_types = \"m7i.large\"\nsubnets = \"subnet-1\"\n\
                   security_groups = \"sg-0a1b2c3d\"";
    let mut table: toml::Table = minimal.parse().unwrap();
    table.extend(more.parse::<toml::Table>().unwrap());
    Settings::read(&PoolName::new("linux"), &table).unwrap()
}

fn request(owner: &str) -> LaunchRequest {
    let tags = Tags {
        pool: PoolName::new("linux"),
        owner: OwnerId::new(owner),
        generation: Generation::new("c0ffee"),
        number: 7,
    };
    let keys = InstanceKeys {
        authorized_key: "ssh-ed25519 AAAAuser".to_owned(),
        host_key: "private".to_owned(),
        host_key_public: "ssh-ed25519 AAAAhost".to_owned(),
    };
    let instance = InstanceId::new("linux-c0ffee-7");
    LaunchRequest {
        token: format!("{instance}/1"),
        instance,
        tags,
        offering: None,
        keys,
        lifetime: None,
        order: None,
    }
}

fn spec(more: &str) -> LaunchSpec {
    let settings = settings(more);
    LaunchSpec::new(&settings, &request("owner"), &settings.common.offerings[0]).unwrap()
}

fn client() -> Client {
    let config = aws_sdk_ec2::Config::builder().behavior_version(aws_config::BehaviorVersion::v2026_01_12());
    Client::from_conf(config.build())
}

#[test]
fn a_token_has_a_form_that_ec2_takes() {
    let of = |owner: &str| {
        let request = request(owner);
        super::token(&request.tags.owner, &request.token)
    };
    let token = of("0123456789abcdef");
    assert_eq!(token, "greenroom-5d3a42f7de61748095cc81ba8973d13cfab920dcc9ea0002");
    assert!(token.len() <= 64, "{}", token.len());
    assert_ne!(token, of("fedcba9876543210"), "another owner's is another");
}

#[test]
fn everything_that_is_made_has_the_tags_and_goes_with_its_machine() {
    let disks = [
        Disk { device: "/dev/xvda".to_owned(), is_root: true },
        Disk { device: "/dev/sdb".to_owned(), is_root: false },
    ];
    let call = spec("market = \"spot\"\ndisk = \"50G\"\nspot_price = \"0.05\"\ntags = { team = \"ci\" }")
        .call(&client(), &disks);
    let input = call.as_input();
    let kinds: Vec<&str> = input
        .get_tag_specifications()
        .iter()
        .flatten()
        .filter_map(|one| one.resource_type())
        .map(ResourceType::as_str)
        .collect();
    assert_eq!(kinds, ["instance", "volume", "network-interface", "spot-instances-request"]);
    for tagged in input.get_tag_specifications().iter().flatten() {
        let names: Vec<&str> = tagged.tags().iter().filter_map(Tag::key).collect();
        assert_eq!(
            names,
            ["Name", "greenroom-pool", "greenroom-owner", "greenroom-generation", "greenroom-number", "team"]
        );
    }
    let mappings = input.get_block_device_mappings().as_deref().unwrap();
    let of = |at: usize| mappings[at].ebs().unwrap();
    assert_eq!((of(0).volume_size(), of(1).volume_size()), (Some(50), None));
    assert!(mappings.iter().all(|one| one.ebs().unwrap().delete_on_termination() == Some(true)));
    assert_eq!(input.get_instance_initiated_shutdown_behavior(), &Some(ShutdownBehavior::Terminate));
    let spot = input.get_instance_market_options().as_ref().unwrap().spot_options().unwrap();
    assert_eq!(spot.max_price(), Some("0.05"));
}

#[test]
fn public_and_ipv6_addresses_need_an_interface_of_their_own_and_a_zone_a_placement() {
    let plain = spec("");
    let call = plain.call(&client(), &[]);
    let input = call.as_input();
    assert_eq!(input.get_subnet_id().as_deref(), Some("subnet-1"));
    assert_eq!(input.get_security_group_ids().as_deref(), Some(["sg-0a1b2c3d".to_owned()].as_slice()));
    let public = spec("public_ip = true").call(&client(), &[]);
    let interface = &public.as_input().get_network_interfaces().as_deref().unwrap()[0];
    assert_eq!(
        (interface.subnet_id(), interface.associate_public_ip_address()),
        (Some("subnet-1"), Some(true))
    );
    assert_eq!(public.as_input().get_subnet_id(), &None);
    let ipv6 = spec("address = \"ipv6\"").call(&client(), &[]);
    let interface = &ipv6.as_input().get_network_interfaces().as_deref().unwrap()[0];
    assert_eq!((interface.ipv6_address_count(), interface.associate_public_ip_address()), (Some(1), None));
    assert_eq!(
        (interface.groups(), ipv6.as_input().get_security_group_ids()),
        (["sg-0a1b2c3d".to_owned()].as_slice(), &None)
    );
    let zone = LaunchSpec { place: "eu-west-1a".to_owned(), ..plain }.call(&client(), &[]);
    let placement = zone.as_input().get_placement().as_ref().unwrap();
    assert_eq!(placement.availability_zone(), Some("eu-west-1a"));
}

#[test]
fn a_container_of_a_job_does_not_reach_the_metadata_service() {
    let call = spec("").call(&client(), &[]);
    let options = call.as_input().get_metadata_options().as_ref().unwrap();
    assert_eq!(options.http_tokens(), Some(&HttpTokensState::Required));
    assert_eq!(options.http_put_response_hop_limit(), Some(1));
}

#[test]
fn recorded_specs_are_read() {
    let more = "market = \"spot\"\nspot_price = \"0.05\"\nsecurity_groups = \"sg-0123456789abcdef0\"\ninstance_profile = \"ci\"\n\
                public_ip = false\ndisk = \"50G\"\ndisk_type = \"gp3\"\n";
    // The script of the first boot may change within a format.
    let samples =
        ["", more].map(|more| LaunchSpec { user_data: "IyEvYmluL3NoCg==".to_owned(), ..spec(more) });
    golden::hold(golden::recorded!("launch-specs-aws-ec2.jsonl"), &samples);
}
