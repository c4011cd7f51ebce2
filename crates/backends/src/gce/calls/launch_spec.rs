//! The launch spec of an insert.

use std::collections::HashMap;
use std::time::Duration as Time;

use google_cloud_compute_v1::model::metadata::Items;
use google_cloud_compute_v1::model::network_interface::StackType;
use google_cloud_compute_v1::model::scheduling::{InstanceTerminationAction, ProvisioningModel};
use google_cloud_compute_v1::model::{
    AccessConfig, AttachedDisk, AttachedDiskInitializeParams, Duration, Instance, Metadata, NetworkInterface,
    Scheduling, ServiceAccount, Tags, access_config,
};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, OwnerId};
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use serde::{Deserialize, Serialize};

use super::super::resource::{Image, Net, region};
use super::super::settings::Settings;
use crate::cloud::machine::Handle;
use crate::cloud::offerings::{Market, Offering};
use crate::cloud::settings::UserData;
use crate::cloud::{idempotency, tags, user_data};

/// The metadata key for the request id of the launch that created a machine.
const CREATED_BY: &str = "greenroom-request";
/// The metadata entry that keeps the project's SSH keys out: only the key in the user data logs in.
const NO_PROJECT_KEYS: (&str, &str) = ("block-project-ssh-keys", "TRUE");
/// Compute Engine's limits for a maximum run duration.
const SHORTEST_LIFE: Time = Time::from_secs(30);
const LONGEST_LIFE: Time = Time::from_hours(120 * 24);

/// Everything that a launch call sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LaunchSpec {
    pub(super) zone: String,
    /// A UUID, by which Compute Engine recognises a repeat.
    pub(super) request_id: String,
    /// Type and zone, for messages about capacity.
    pub(super) place: String,
    pub(super) instance: Instance,
}

impl LaunchSpec {
    pub(super) fn new(
        settings: &Settings,
        request: &LaunchRequest,
        offering: &Offering,
    ) -> Result<Self, ProviderError> {
        let zone = &offering.place;
        let wrong = |what: &str| {
            ProviderError::new(
                ErrorClass::Invalid,
                format!("`{what}` is not a valid name for Compute Engine"),
            )
        };
        let region = region(zone).ok_or_else(|| wrong(zone))?;
        let image = Image::parse(&offering.image).ok_or_else(|| wrong(&offering.image))?;
        let request_id = request_id(&request.tags.owner, &request.token);
        let mut labels: HashMap<String, String> = settings.common.tags.iter().cloned().collect();
        labels.extend(tags::written(&request.tags).map(|(name, value)| (name.to_owned(), value)));
        let mut instance = Instance::new()
            .set_name(name(&request.instance))
            .set_machine_type(format!("zones/{zone}/machineTypes/{}", offering.machine_type))
            .set_labels(labels.clone())
            .set_disks([boot_disk(settings, zone, &image, labels)])
            .set_network_interfaces([interface(settings, region)])
            .set_metadata(metadata(settings, request, &request_id))
            .set_scheduling(scheduling(offering.market, request.lifetime));
        if let Some(account) = &settings.service_account {
            let account =
                ServiceAccount::new().set_email(account.email.clone()).set_scopes(account.scopes.clone());
            instance = instance.set_service_accounts([account]);
        }
        if !settings.network_tags.is_empty() {
            instance = instance.set_tags(Tags::new().set_items(settings.network_tags.clone()));
        }
        let spot = if offering.market == Market::Spot { " spot" } else { "" };
        let place = format!("{}{spot} in {zone}", offering.machine_type);
        Ok(Self { zone: zone.clone(), request_id, place, instance })
    }

    pub(super) fn handle(&self) -> Handle {
        Handle { name: self.instance.name.clone().unwrap_or_default(), zone: self.zone.clone() }
    }
}

/// Compute Engine's names begin with a letter; pools' may begin with a digit.
pub(super) fn name(id: &InstanceId) -> String {
    let fits = id.as_str().starts_with(|c: char| c.is_ascii_lowercase());
    if fits { id.to_string() } else { format!("greenroom-{id}") }
}

/// The first half of the digest, as a UUID.
pub(super) fn request_id(owner: &OwnerId, token: &str) -> String {
    let digest = idempotency::digest(owner, token);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    // Version 8 is for custom ids (RFC 9562).
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let text = format!("{:032x}", u128::from_be_bytes(bytes));
    [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-")
}

/// The boot disk. It is deleted with its machine, and has the same labels, by which it is listed if that fails.
fn boot_disk(
    settings: &Settings,
    zone: &str,
    image: &Image,
    labels: HashMap<String, String>,
) -> AttachedDisk {
    let kind = settings.common.disk_type.as_ref().map(|kind| format!("zones/{zone}/diskTypes/{kind}"));
    let made = AttachedDiskInitializeParams::new()
        .set_source_image(image.path())
        .set_labels(labels)
        .set_or_clear_disk_type(kind)
        .set_or_clear_disk_size_gb(settings.common.disk_gib.map(i64::from));
    AttachedDisk::new().set_boot(true).set_auto_delete(true).set_initialize_params(made)
}

fn interface(settings: &Settings, region: &str) -> NetworkInterface {
    let subnetwork = settings.subnetwork.as_ref().map(|net| net.subnetwork_path(region));
    let interface = NetworkInterface::new()
        .set_or_clear_network(settings.network.as_ref().map(Net::network_path))
        .set_or_clear_subnetwork(subnetwork);
    let access = |name: &str, kind| AccessConfig::new().set_name(name).set_type(kind);
    match (settings.has_ipv6(), settings.public_ip) {
        (false, false) => interface,
        (false, true) => {
            interface.set_access_configs([access("external-nat", access_config::Type::OneToOneNat)])
        }
        (true, false) => interface.set_stack_type(StackType::Ipv4Ipv6),
        (true, true) => {
            let direct = access("external-ipv6", access_config::Type::DirectIpv6);
            // IPv6 has no other tier.
            let direct = direct.set_network_tier(access_config::NetworkTier::Premium);
            interface.set_stack_type(StackType::Ipv4Ipv6).set_ipv_6_access_configs([direct])
        }
    }
}

/// User data, request id, and no SSH keys of the project. The user data has no lifetime, because Compute Engine itself limits the run duration.
fn metadata(settings: &Settings, request: &LaunchRequest, request_id: &str) -> Metadata {
    let kind = settings.common.user_data;
    let key = match kind {
        UserData::CloudInit => "user-data",
        UserData::Script => "startup-script",
    };
    let text = user_data::text(kind, request, &settings.common.user, None);
    let item = |key: &str, value: &str| Items::new().set_key(key).set_value(value);
    let no_project_keys = item(NO_PROJECT_KEYS.0, NO_PROJECT_KEYS.1);
    Metadata::new().set_items([item(key, &text), item(CREATED_BY, request_id), no_project_keys])
}

/// The request id of the launch that created a machine.
pub(super) fn created_by(instance: &Instance) -> Option<&str> {
    let mut items = instance.metadata.iter().flat_map(|metadata| &metadata.items);
    items.find(|item| item.key.as_deref() == Some(CREATED_BY))?.value.as_deref()
}

fn scheduling(market: Market, lifetime: Option<Time>) -> Scheduling {
    let model = match market {
        Market::Spot => ProvisioningModel::Spot,
        Market::OnDemand => ProvisioningModel::Standard,
    };
    // A restarted machine has lost its job, but would be listed as if it had not.
    let mut scheduling = Scheduling::new().set_provisioning_model(model).set_automatic_restart(false);
    if let Some(lifetime) = lifetime {
        let seconds = lifetime.clamp(SHORTEST_LIFE, LONGEST_LIFE).as_secs();
        let seconds = i64::try_from(seconds).expect("120 days are few seconds");
        scheduling = scheduling.set_max_run_duration(Duration::new().set_seconds(seconds));
    }
    if lifetime.is_some() || market == Market::Spot {
        // Compute Engine allows an action only if the run has an end.
        scheduling = scheduling.set_instance_termination_action(InstanceTerminationAction::Delete);
    }
    scheduling
}

#[cfg(test)]
mod tests;
