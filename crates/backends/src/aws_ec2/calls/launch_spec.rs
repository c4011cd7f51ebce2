//! The launch spec of RunInstances.

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

use super::super::settings::Settings;
use super::images::Disk;
use crate::cloud::offerings::{Market, Offering};
use crate::cloud::settings::AddressKind;
use crate::cloud::{idempotency, tags, user_data};

/// EC2's maximum, in bytes before the encoding.
const MOST_USER_DATA: usize = 16 << 10;

/// Everything that a launch call sends, except for the image's disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::aws_ec2) struct LaunchSpec {
    /// For idempotency, at most 64 characters.
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
    pub(super) fn call(&self, client: &Client, disks: &[Disk]) -> RunInstancesFluentBuilder {
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

    fn mapping(&self, disk: &Disk) -> BlockDeviceMapping {
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

/// Three quarters of the digest: the whole would be too long.
pub(super) fn token(owner: &OwnerId, token: &str) -> String {
    let digest = idempotency::digest(owner, token);
    digest.iter().take(24).fold("greenroom-".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests;
