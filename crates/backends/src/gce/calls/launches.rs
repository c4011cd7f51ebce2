//! Launches: their specs, inserts, and their status by the operations of a zone.
//!
//! Compute Engine accepts a launch before it looks for capacity. The operation then shows whether there was any. All
//! launches of a zone share one list of operations.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use google_cloud_compute_v1::model::metadata::Items;
use google_cloud_compute_v1::model::network_interface::StackType;
use google_cloud_compute_v1::model::scheduling::{InstanceTerminationAction, ProvisioningModel};
use google_cloud_compute_v1::model::{
    AccessConfig, AttachedDisk, AttachedDiskInitializeParams, Duration as RunDuration, Instance, Metadata,
    NetworkInterface, Operation, Scheduling, ServiceAccount, Tags, access_config, operation,
};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, OwnerId};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use serde::{Deserialize, Serialize};

use super::client::{ComputeEngineClients, answer};
use super::{ComputeEngine, errors, machines};
use crate::cloud::api::{CallKind, Created, LaunchStatus};
use crate::cloud::machine::{Handle, MachineState};
use crate::cloud::offerings::{Market, Offering};
use crate::cloud::settings::UserData;
use crate::cloud::shared::SharedAnswer;
use crate::cloud::{tags, user_data};
use crate::gce::resource::{Image, Net, region};
use crate::gce::settings::Settings;

/// The metadata key for the request id of the launch that created a machine.
const CREATED_BY: &str = "greenroom-request";
/// The metadata entry that keeps the project's SSH keys out: only the key in the user data logs in.
const NO_PROJECT_KEYS: (&str, &str) = ("block-project-ssh-keys", "TRUE");
/// Compute Engine's limits for a maximum run duration.
const SHORTEST_LIFE: Duration = Duration::from_secs(30);
const LONGEST_LIFE: Duration = Duration::from_hours(120 * 24);

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
    let digest = tags::token_digest(owner, token);
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

/// User data, request id, and no SSH keys of the project. The user data has no lifetime, because Compute Engine itself limits
/// the run duration.
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

fn scheduling(market: Market, lifetime: Option<Duration>) -> Scheduling {
    let model = match market {
        Market::Spot => ProvisioningModel::Spot,
        Market::OnDemand => ProvisioningModel::Standard,
    };
    // A restarted machine has lost its job, but would be listed as if it had not.
    let mut scheduling = Scheduling::new().set_provisioning_model(model).set_automatic_restart(false);
    if let Some(lifetime) = lifetime {
        let seconds = lifetime.clamp(SHORTEST_LIFE, LONGEST_LIFE).as_secs();
        let seconds = i64::try_from(seconds).expect("120 days are few seconds");
        scheduling = scheduling.set_max_run_duration(RunDuration::new().set_seconds(seconds));
    }
    if lifetime.is_some() || market == Market::Spot {
        // Compute Engine allows an action only if the run has an end.
        scheduling = scheduling.set_instance_termination_action(InstanceTerminationAction::Delete);
    }
    scheduling
}

/// Launches a machine. The operation is seldom done when the call returns, so the capacity is usually known later.
pub(super) async fn create(engine: &ComputeEngine, spec: &LaunchSpec) -> Result<Created, ProviderError> {
    let clients = engine.clients().await?;
    let insert = clients.instances.insert().set_project(&engine.settings.project).set_zone(&spec.zone);
    let insert = insert.set_request_id(spec.request_id.clone()).set_body(spec.instance.clone());
    let accepted = match answer(Box::pin(insert.send())).await {
        Ok(operation) => operation,
        Err(error) if errors::is(&error, "alreadyExists") => return existing(engine, clients, spec).await,
        Err(error) => return Err(errors::read(&error, CallKind::Create, &spec.place)),
    };
    match launch_status(&accepted, spec) {
        LaunchStatus::Refused(error) => Err(error),
        status => Ok(Created {
            handle: spec.handle(),
            capacity_confirmed: matches!(status, LaunchStatus::Confirmed),
        }),
    }
}

/// Handles a name that is taken. The machine is that of this launch if an earlier answer was lost and Compute Engine no
/// longer has the request.
async fn existing(
    engine: &ComputeEngine,
    clients: &ComputeEngineClients,
    spec: &LaunchSpec,
) -> Result<Created, ProviderError> {
    let handle = spec.handle();
    let get = clients.instances.get().set_project(&engine.settings.project).set_zone(&spec.zone);
    let transient =
        |why: &str| Err(ProviderError::new(ErrorClass::Transient, format!("`{}` {why}", handle.name)));
    let found = match answer(get.set_instance(&handle.name).send()).await {
        Ok(found) => found,
        Err(error) if error.http_status_code() == Some(404) => {
            return transient("is deleted, but its disk still exists");
        }
        Err(error) => return Err(errors::read(&error, CallKind::Create, &spec.place)),
    };
    let label = |name: &str| found.labels.get(name).map(String::as_str);
    if created_by(&found) == Some(&spec.request_id) {
        return Ok(Created {
            capacity_confirmed: machines::machine_state(&found) > MachineState::Accepted,
            handle,
        });
    }
    let wanted = tags::read(|name| spec.instance.labels.get(name).map(String::as_str));
    if wanted.is_some() && tags::read(label) == wanted {
        return transient("of an earlier launch still exists");
    }
    let why = format!("an instance named `{}` exists but does not belong to this owner", handle.name);
    Err(ProviderError::new(ErrorClass::Invalid, why))
}

/// Maximum age of a list: short compared with the seconds that a refusal takes.
const AGE: Duration = Duration::from_millis(500);
const FILTER: &str = "operationType = \"insert\"";

/// The latest inserts of each zone, as last listed.
pub(super) struct Inserts {
    clock: Rc<dyn Clock>,
    zones: RefCell<BTreeMap<String, Rc<SharedAnswer<Vec<Operation>>>>>,
}

impl std::fmt::Debug for Inserts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inserts").field("zones", &self.zones).finish_non_exhaustive()
    }
}

impl Inserts {
    pub(super) fn new(clock: Rc<dyn Clock>) -> Self {
        Self { clock, zones: RefCell::default() }
    }

    /// Status of a launch.
    pub(super) async fn launch_status(
        &self,
        engine: &ComputeEngine,
        spec: &LaunchSpec,
    ) -> Result<LaunchStatus, ProviderError> {
        let zone = Rc::clone(self.zones.borrow_mut().entry(spec.zone.clone()).or_default());
        let list = async |_| engine.operations(&spec.zone, FILTER).await;
        let last = zone.within(AGE, &*self.clock, list).await?;
        let of_launch =
            |operation: &&Operation| operation.client_operation_id.as_ref() == Some(&spec.request_id);
        Ok(last
            .iter()
            .find(of_launch)
            .map_or(LaunchStatus::Unknown, |operation| launch_status(operation, spec)))
    }
}

/// Status of a launch, by its operation.
pub(super) fn launch_status(operation: &Operation, spec: &LaunchSpec) -> LaunchStatus {
    match errors::of_operation(operation, &spec.place) {
        Some(error) => LaunchStatus::Refused(error),
        None if operation.status == Some(operation::Status::Done) => LaunchStatus::Confirmed,
        None => LaunchStatus::Pending,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::golden;
    use greenroom_core::ids::PoolName;
    use serde_json::{Value, json};

    use super::*;
    use crate::cloud::user_data::tests::launch_request;

    fn request(pool: &str, lifetime: Option<Duration>) -> LaunchRequest {
        LaunchRequest { lifetime, ..launch_request(pool, "0123456789abcdef", 7) }
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
        let sent = body(&spec(text, &request("linux", Some(Duration::from_hours(2)))));
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
        let account =
            json!([{ "email": "ci@x", "scopes": ["https://www.googleapis.com/auth/cloud-platform"] }]);
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
        assert_eq!(scheduling("", Some(Duration::from_secs(1)))["maxRunDuration"]["seconds"], "30");
        assert_eq!(scheduling("", Some(Duration::MAX))["maxRunDuration"]["seconds"], "10368000");
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
        let own = request("linux", None);
        let mut other = request("linux", None);
        // Version 8, variant 2.
        let id = |request: &LaunchRequest| request_id(&request.tags.owner, &request.token);
        assert_eq!(id(&own), "5d3a42f7-de61-8480-95cc-81ba8973d13c");
        other.tags.owner = OwnerId::new("fedcba9876543210");
        assert_ne!(id(&own), id(&other), "another owner's is another");
    }

    #[test]
    fn recorded_specs_are_read() {
        let more = "market = \"spot\"\ndisk = \"50G\"\nnetwork_tags = \"ci\"\nservice_account = \"ci@my-project.iam.gserviceaccount.com\"\n";
        let lifetime = Some(Duration::from_hours(8));
        let samples =
            [spec("", &request("linux", None)), spec(more, &request("linux", lifetime))].map(|mut spec| {
                // The script of the first boot may change within a format.
                let items = &mut spec.instance.metadata.as_mut().unwrap().items;
                items[0].value = Some("#!/bin/sh\n".to_owned());
                spec
            });
        golden::hold(golden::recorded!("launch-specs-gce.jsonl"), &samples);
    }
}
