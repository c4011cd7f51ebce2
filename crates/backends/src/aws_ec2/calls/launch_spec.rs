//! The launch spec of RunInstances, and the disks of its image.

use std::collections::BTreeMap;
use std::rc::Rc;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::operation::run_instances::builders::RunInstancesFluentBuilder;
use aws_sdk_ec2::types::{
    BlockDeviceMapping, EbsBlockDevice, HttpTokensState, IamInstanceProfileSpecification,
    InstanceInterruptionBehavior, InstanceMarketOptionsRequest, InstanceMetadataOptionsRequest,
    InstanceNetworkInterfaceSpecification, InstanceType, MarketType, Placement, ResourceType,
    ShutdownBehavior, SpotInstanceType, SpotMarketOptions, Tag, TagSpecification, VolumeType,
};
use base64ct::{Base64, Encoding as _};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::OwnerId;
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::errors;
use crate::aws_ec2::settings::Settings;
use crate::cloud::offerings::{Market, Offering};
use crate::cloud::settings::AddressKind;
use crate::cloud::{tags, user_data};

/// EC2's maximum, in bytes before the encoding.
const MOST_USER_DATA: usize = 16 << 10;

/// Everything that a launch call sends, except for the image's disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::aws_ec2) struct LaunchSpec {
    /// The token for idempotency, at most 64 characters.
    pub(super) token: String,
    pub(super) image: String,
    instance_type: String,
    /// A subnet, or a zone of the default network.
    place: String,
    market: Market,
    spot_price: Option<String>,
    /// Base64.
    user_data: String,
    tags: Vec<(String, String)>,
    security_groups: Vec<String>,
    instance_profile: Option<String>,
    public_ip: Option<bool>,
    ipv6: bool,
    disk_gib: Option<u32>,
    disk_type: Option<String>,
}

impl LaunchSpec {
    pub(super) fn new(
        settings: &Settings,
        request: &LaunchRequest,
        offering: &Offering,
    ) -> Result<Self, ProviderError> {
        let common = &settings.common;
        let user_data = user_data::text(common.user_data, request, &common.user, request.lifetime);
        if user_data.len() > MOST_USER_DATA {
            return Err(ProviderError::new(ErrorClass::Invalid, "the user data is longer than 16 KiB"));
        }
        let own = tags::written(&request.tags).into_iter().map(|(name, value)| (name.to_owned(), value));
        let name = std::iter::once(("Name".to_owned(), request.instance.to_string()));
        Ok(Self {
            token: token(&request.tags.owner, &request.token),
            image: offering.image.clone(),
            instance_type: offering.machine_type.clone(),
            place: offering.place.clone(),
            market: offering.market,
            spot_price: settings.spot_price.clone().filter(|_| offering.market == Market::Spot),
            user_data: Base64::encode_string(user_data.as_bytes()),
            tags: name.chain(own).chain(common.tags.iter().cloned()).collect(),
            security_groups: settings.security_groups.clone(),
            instance_profile: settings.instance_profile.clone(),
            public_ip: settings.public_ip,
            ipv6: common.address == AddressKind::Ipv6,
            disk_gib: common.disk_gib,
            disk_type: common.disk_type.clone(),
        })
    }

    /// Type and place, for messages.
    pub(super) fn scope(&self) -> String {
        format!("{} in {}", self.instance_type, self.place)
    }

    /// The call. Each of the image's `disks` is deleted with its machine, whatever the image sets.
    pub(super) fn call(&self, client: &Client, disks: &[ImageDisk]) -> RunInstancesFluentBuilder {
        let mut call = client
            .run_instances()
            .client_token(&self.token)
            .min_count(1)
            .max_count(1)
            .image_id(&self.image)
            .instance_type(InstanceType::from(self.instance_type.as_str()))
            .user_data(&self.user_data)
            // A machine that shuts itself down is terminated, so that it ends even if its manager is lost.
            .instance_initiated_shutdown_behavior(ShutdownBehavior::Terminate)
            .metadata_options(
                InstanceMetadataOptionsRequest::builder()
                    .http_tokens(HttpTokensState::Required)
                    // Containers of a job are one hop further away: none of them reaches the instance's permissions.
                    .http_put_response_hop_limit(1)
                    .build(),
            )
            .set_tag_specifications(Some(self.tag_specifications()))
            .set_block_device_mappings(Some(disks.iter().map(|disk| self.mapping(disk)).collect()));
        if let Some(profile) = &self.instance_profile {
            call = call.iam_instance_profile(if profile.starts_with("arn:") {
                IamInstanceProfileSpecification::builder().arn(profile).build()
            } else {
                IamInstanceProfileSpecification::builder().name(profile).build()
            });
        }
        if self.market == Market::Spot {
            call = call.instance_market_options(self.spot());
        }
        self.with_network(call)
    }

    fn with_network(&self, call: RunInstancesFluentBuilder) -> RunInstancesFluentBuilder {
        let subnet = self.place.starts_with("subnet-").then(|| self.place.clone());
        let call = match subnet {
            Some(_) => call,
            None => call.placement(Placement::builder().availability_zone(&self.place).build()),
        };
        // Empty only in launch specs that an earlier version stored.
        let groups = Some(self.security_groups.clone()).filter(|groups| !groups.is_empty());
        if self.public_ip.is_none() && !self.ipv6 {
            return call.set_subnet_id(subnet).set_security_group_ids(groups);
        }
        let interface = InstanceNetworkInterfaceSpecification::builder()
            .device_index(0)
            .set_subnet_id(subnet)
            .set_groups(groups)
            .set_associate_public_ip_address(self.public_ip)
            .set_ipv6_address_count(self.ipv6.then_some(1))
            .delete_on_termination(true);
        call.network_interfaces(interface.build())
    }

    fn spot(&self) -> InstanceMarketOptionsRequest {
        let options = SpotMarketOptions::builder()
            .spot_instance_type(SpotInstanceType::OneTime)
            .instance_interruption_behavior(InstanceInterruptionBehavior::Terminate)
            .set_max_price(self.spot_price.clone());
        InstanceMarketOptionsRequest::builder()
            .market_type(MarketType::Spot)
            .spot_options(options.build())
            .build()
    }

    fn mapping(&self, disk: &ImageDisk) -> BlockDeviceMapping {
        let mut ebs = EbsBlockDevice::builder().delete_on_termination(true);
        if disk.is_root {
            ebs = ebs
                .set_volume_size(self.disk_gib.and_then(|gib| i32::try_from(gib).ok()))
                .set_volume_type(self.disk_type.as_deref().map(VolumeType::from));
        }
        BlockDeviceMapping::builder().device_name(&disk.device).ebs(ebs.build()).build()
    }

    /// The tags of everything that the launch creates, set by the launch call itself.
    fn tag_specifications(&self) -> Vec<TagSpecification> {
        let tags: Vec<Tag> =
            self.tags.iter().map(|(name, value)| Tag::builder().key(name).value(value).build()).collect();
        let mut kinds = vec![ResourceType::Instance, ResourceType::Volume, ResourceType::NetworkInterface];
        if self.market == Market::Spot {
            kinds.push(ResourceType::SpotInstancesRequest);
        }
        let of = |kind| TagSpecification::builder().resource_type(kind).set_tags(Some(tags.clone())).build();
        kinds.into_iter().map(of).collect()
    }
}

/// The token of a launch in EC2's form: three quarters of the digest, because the whole would be too long.
pub(super) fn token(owner: &OwnerId, token: &str) -> String {
    let digest = tags::token_digest(owner, token);
    digest.iter().take(24).fold("greenroom-".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// A disk of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageDisk {
    /// `/dev/xvda`.
    pub(super) device: String,
    pub(super) is_root: bool,
}

/// The disks of images, read once for each image, because images do not change.
#[derive(Debug, Default)]
pub(super) struct ImageDisks(Mutex<BTreeMap<String, Rc<[ImageDisk]>>>);

impl ImageDisks {
    /// The disks of an image. [`ErrorClass::Invalid`] if the image is missing. Never [`ErrorClass::Unknown`], because no launch
    /// was requested yet.
    pub(super) async fn disks(&self, client: &Client, image: &str) -> Result<Rc<[ImageDisk]>, ProviderError> {
        // Concurrent launches share one call.
        let mut known = self.0.lock().await;
        if let Some(disks) = known.get(image) {
            return Ok(Rc::clone(disks));
        }
        let answer = client.describe_images().image_ids(image).send().await;
        let answer = answer.map_err(|error| definite(errors::read(&error, image)))?;
        let Some(found) = answer.images().first() else {
            let why = format!("image {image} does not exist, or this account may not use it");
            return Err(ProviderError::new(ErrorClass::Invalid, why));
        };
        let root = found.root_device_name().unwrap_or_default();
        let of_ebs = found.block_device_mappings().iter().filter(|disk| disk.ebs().is_some());
        let mut devices: Vec<&str> = of_ebs.filter_map(|disk| disk.device_name()).collect();
        if !root.is_empty() && !devices.contains(&root) {
            devices.push(root);
        }
        let disks: Rc<[ImageDisk]> = devices
            .into_iter()
            .map(|device| ImageDisk { device: device.to_owned(), is_root: device == root })
            .collect();
        known.insert(image.to_owned(), Rc::clone(&disks));
        Ok(disks)
    }
}

fn definite(error: ProviderError) -> ProviderError {
    match error.class() {
        ErrorClass::Unknown => ProviderError::new(ErrorClass::Transient, error.failure.message),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::golden;
    use greenroom_core::ids::PoolName;

    use super::*;
    use crate::cloud::user_data::tests::launch_request;

    fn settings(more: &str) -> Settings {
        let minimal = "image = \"ami-0a000000000000001\"\ninstance_types = \"m7i.large\"\nsubnets = \"subnet-1\"\n\
                       security_groups = \"sg-0a1b2c3d\"";
        let mut table: toml::Table = minimal.parse().unwrap();
        table.extend(more.parse::<toml::Table>().unwrap());
        Settings::read(&PoolName::new("linux"), &table).unwrap()
    }

    fn request(owner: &str) -> LaunchRequest {
        launch_request("linux", owner, 7)
    }

    fn spec(more: &str) -> LaunchSpec {
        let settings = settings(more);
        LaunchSpec::new(&settings, &request("owner"), &settings.common.offerings[0]).unwrap()
    }

    fn client() -> Client {
        let config =
            aws_sdk_ec2::Config::builder().behavior_version(aws_config::BehaviorVersion::v2026_01_12());
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
            ImageDisk { device: "/dev/xvda".to_owned(), is_root: true },
            ImageDisk { device: "/dev/sdb".to_owned(), is_root: false },
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
                [
                    "Name",
                    "greenroom-pool",
                    "greenroom-owner",
                    "greenroom-generation",
                    "greenroom-number",
                    "team"
                ]
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
        assert_eq!(
            (interface.ipv6_address_count(), interface.associate_public_ip_address()),
            (Some(1), None)
        );
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
}
