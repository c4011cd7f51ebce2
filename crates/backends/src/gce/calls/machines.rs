//! Instances and disks as Compute Engine lists them.

use google_cloud_compute_v1::model::disk::Status as DiskStatus;
use google_cloud_compute_v1::model::disks_scoped_list::warning::Code as DiskCode;
use google_cloud_compute_v1::model::instance::Status;
use google_cloud_compute_v1::model::instances_scoped_list::warning::Code;
use google_cloud_compute_v1::model::scheduling::{OnHostMaintenance, ProvisioningModel};
use google_cloud_compute_v1::model::upcoming_maintenance::MaintenanceStatus;
use google_cloud_compute_v1::model::{Disk as ListedDisk, Instance, InstanceAggregatedList};
use greenroom_core::failure::ErrorClass;
use greenroom_core::inventory::{Resource, ResourceKind};
use greenroom_core::metadata::MetadataService;
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;
use jiff::Timestamp;

use super::ComputeEngine;
use super::client::answer;
use super::endings::MAINTENANCE;
use super::errors;
use super::launches::{created_by, name};
use crate::cloud::api::{CallKind, Disk, Disks, Machines};
use crate::cloud::machine::{Addresses, CloudNotice, Handle, Machine, MachineState, moment};
use crate::cloud::tags;

/// Compute Engine's maximum size of a page.
pub(super) const PAGE: u32 = 500;

/// All machines of the pool, in all zones of the project: some may be in zones of an earlier configuration.
/// `matters`: whether a zone may have machines of the pool.
pub(super) async fn list(
    engine: &ComputeEngine,
    matters: impl Fn(&str) -> bool,
) -> Result<Machines, ProviderError> {
    let clients = engine.clients().await?;
    let mut machines =
        Machines { all: Vec::new(), complete: true, location: Some(engine.settings.location()) };
    let mut next = None;
    loop {
        let page = clients.instances.aggregated_list().set_project(&engine.settings.project);
        let page = page.set_filter(engine.pool_filter()).set_max_results(PAGE);
        let page = answer(page.set_or_clear_page_token(next.take()).send()).await;
        let page = page.map_err(|error| errors::read(&error, CallKind::Existing, ""))?;
        machines.complete &= !not_listed(&page).any(|scope| matters(last(scope)));
        machines.all.extend(page.items.values().flat_map(|scope| &scope.instances).filter_map(read));
        next = page.next_page_token.filter(|token| !token.is_empty());
        if next.is_none() {
            return Ok(machines);
        }
    }
}

/// The zones that could not be listed.
fn not_listed(page: &InstanceAggregatedList) -> impl Iterator<Item = &str> {
    let warned = page.items.iter().filter(|(_, scope)| {
        let code = scope.warning.as_ref().and_then(|warning| warning.code.as_ref());
        code.is_some_and(|code| *code != Code::NoResultsOnPage)
    });
    warned.map(|(scope, _)| scope.as_str()).chain(page.unreachables.iter().map(String::as_str))
}

/// A listed instance; `None` if one of Greenroom's labels is missing.
fn read(instance: &Instance) -> Option<Machine> {
    let (id, tags) = tags::read(|name| instance.labels.get(name).map(String::as_str))?;
    let handle = Handle { name: instance.name.clone()?, zone: last(instance.zone.as_deref()?).to_owned() };
    Some(Machine {
        // A copy has the metadata, but a name of its own.
        token: created_by(instance).filter(|_| handle.name == name(&id)).map(str::to_owned),
        disks: instance.disks.iter().filter_map(|disk| disk_name(disk.source.as_deref()?)).collect(),
        handle,
        instance: id,
        tags,
        state: machine_state(instance),
        created_ms: created_ms(instance.creation_timestamp.as_deref()),
        addresses: addresses(instance),
        what: what(instance),
        why: None,
        by_job: false,
        refused: None,
        notice: notice(instance),
        metadata: Some(MetadataService::Gce),
    })
}

/// `ZONE/NAME` out of the path of a disk or an instance.
pub(super) fn zone_and_name(path: &str) -> Option<(&str, &str)> {
    let mut parts = path.rsplit('/');
    let name = parts.next()?;
    Some((parts.nth(1)?, name))
}

/// The name of a disk, as in a list of disks.
fn disk_name(path: &str) -> Option<String> {
    zone_and_name(path).map(|(zone, name)| format!("{zone}/{name}"))
}

pub(super) fn machine_state(instance: &Instance) -> MachineState {
    match &instance.status {
        // Still without capacity.
        Some(Status::Provisioning | Status::Pending) => MachineState::Accepted,
        Some(Status::Running) => MachineState::Running,
        Some(Status::Stopping | Status::PendingStop | Status::Suspending | Status::Deprovisioning) => {
            MachineState::Ending
        }
        // A machine under repair has lost its processes.
        Some(Status::Terminated | Status::Stopped | Status::Suspended | Status::Repairing) => {
            MachineState::Stopped
        }
        _ => MachineState::Starting,
    }
}

fn addresses(instance: &Instance) -> Addresses {
    let Some(interface) = instance.network_interfaces.first() else { return Addresses::default() };
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    Addresses {
        private: text(&interface.network_ip),
        public: interface.access_configs.iter().find_map(|access| text(&access.nat_ip)),
        // An external address is part of the access configuration, an internal one of the interface.
        ipv6: interface
            .ipv_6_access_configs
            .iter()
            .find_map(|access| text(&access.external_ipv_6))
            .or_else(|| text(&interface.ipv_6_address)),
    }
}

fn what(instance: &Instance) -> String {
    let model = instance.scheduling.as_ref().and_then(|scheduling| scheduling.provisioning_model.as_ref());
    let spot = if model == Some(&ProvisioningModel::Spot) { " spot" } else { "" };
    let kind = last(instance.machine_type.as_deref().unwrap_or("unknown type"));
    format!("{kind}{spot}, {}", last(instance.zone.as_deref().unwrap_or("unknown zone")))
}

/// The notice of maintenance of the host that stops the machine; `None` if Compute Engine moves the machine instead.
fn notice(instance: &Instance) -> Option<CloudNotice> {
    let upcoming = instance.resource_status.as_ref()?.upcoming_maintenance.as_ref()?;
    let reaction = instance.scheduling.as_ref()?.on_host_maintenance.as_ref()?;
    if *reaction != OnHostMaintenance::Terminate || machine_state(instance) <= MachineState::Stopped {
        return None;
    }
    if upcoming.maintenance_status == Some(MaintenanceStatus::Ongoing) {
        let text = format!("{MAINTENANCE} now");
        return Some(CloudNotice { text, at_ms: None });
    }
    let at = upcoming.window_start_time.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
    let at_ms = at.map(Timestamp::as_millisecond);
    let at = at.map(|at| at.strftime(" at %Y-%m-%d %H:%M UTC").to_string()).unwrap_or_default();
    Some(CloudNotice { text: format!("{MAINTENANCE}{at}"), at_ms })
}

/// The `creationTimestamp` in milliseconds since 1970.
pub(super) fn created_ms(created: Option<&str>) -> Option<i64> {
    created?.parse().ok().map(Timestamp::as_millisecond)
}

/// The name at the end of a path.
pub(super) fn last(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// All disks of the pool, in all zones of the project.
pub(super) async fn list_disks(engine: &ComputeEngine, now: Stamp) -> Result<Disks, ProviderError> {
    let clients = engine.clients().await?;
    let mut disks = Disks { all: Vec::new(), complete: true };
    let mut next = None;
    loop {
        let page = clients.disks.aggregated_list().set_project(&engine.settings.project);
        let page = page.set_filter(engine.pool_filter()).set_max_results(PAGE);
        let page = answer(page.set_or_clear_page_token(next.take()).send()).await;
        let page = page.map_err(|error| errors::read(&error, CallKind::Existing, ""))?;
        disks.complete &= page.unreachables.is_empty();
        for scope in page.items.values() {
            let code = scope.warning.as_ref().and_then(|warning| warning.code.as_ref());
            disks.complete &= code.is_none_or(|code| *code == DiskCode::NoResultsOnPage);
            disks.all.extend(scope.disks.iter().filter_map(|disk| read_disk(disk, now)));
        }
        next = page.next_page_token.filter(|token| !token.is_empty());
        if next.is_none() {
            return Ok(disks);
        }
    }
}

pub(super) async fn delete_disk(engine: &ComputeEngine, disk: &Resource) -> Result<(), ProviderError> {
    let Some((zone, name)) = disk.name.split_once('/') else {
        let why = format!("`{}` is not a disk of Compute Engine (`ZONE/NAME`)", disk.name);
        return Err(ProviderError::new(ErrorClass::Invalid, why));
    };
    let delete = engine.clients().await?.disks.delete().set_project(&engine.settings.project);
    let reply = answer(delete.set_zone(zone).set_disk(name).send()).await;
    reply.map(drop).map_err(|error| errors::read(&error, CallKind::Existing, ""))
}

/// A listed disk; `None` if it is being deleted. The name includes the zone, because names are unique in their zone only.
fn read_disk(disk: &ListedDisk, now: Stamp) -> Option<Disk> {
    if disk.status == Some(DiskStatus::Deleting) {
        return None;
    }
    let zone = last(disk.zone.as_deref()?);
    let (instance, tags) = tags::read(|name| disk.labels.get(name).map(String::as_str)).unzip();
    let size = disk.size_gb.map(|gib| format!("{gib} GiB"));
    let details = [size.as_deref(), disk.r#type.as_deref().map(last), Some(zone)];
    let user = disk.users.first().and_then(|path| zone_and_name(path));
    let attached = user.map(|(zone, name)| Handle { name: name.to_owned(), zone: zone.to_owned() });
    let resource = Resource {
        kind: ResourceKind::Volume,
        name: format!("{zone}/{}", disk.name.as_deref()?),
        instance,
        tags,
        created: created_ms(disk.creation_timestamp.as_deref()).map(|at_ms| moment(at_ms, now)),
        detail: Some(details.into_iter().flatten().collect::<Vec<_>>().join(", ")),
    };
    Some(Disk { resource, attached })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use google_cloud_compute_v1::model::InstancesScopedList;
    use google_cloud_compute_v1::model::instances_scoped_list::Warning;
    use greenroom_core::time::{BootId, ManagerId};
    use serde_json::json;

    use super::*;

    fn instance(status: &str) -> Instance {
        let labels = json!({
            "greenroom-pool": "linux", "greenroom-owner": "owner", "greenroom-generation": "c0ffee",
            "greenroom-number": "7",
        });
        let zone = "https://www.googleapis.com/compute/v1/projects/p/zones/us-east1-b";
        serde_json::from_value(json!({
            "name": "linux-c0ffee-7", "zone": zone, "status": status, "labels": labels,
            "machineType": format!("{zone}/machineTypes/e2-medium"),
            "creationTimestamp": "2026-11-21T06:03:07.250-08:00",
            "scheduling": { "provisioningModel": "SPOT" },
            "metadata": { "items": [{ "key": "greenroom-request", "value": "5d3a" }] },
            "disks": [{ "source": format!("{zone}/disks/linux-c0ffee-7") }],
            "networkInterfaces": [{ "networkIP": "10.0.0.7", "accessConfigs": [{ "natIP": "203.0.113.7" }] }],
        }))
        .unwrap()
    }

    #[test]
    fn an_instance_is_read_as_it_is_shown() {
        let machine = read(&instance("RUNNING")).unwrap();
        assert_eq!(
            (machine.handle.name.as_str(), machine.handle.zone.as_str()),
            ("linux-c0ffee-7", "us-east1-b")
        );
        assert_eq!(
            (machine.instance.as_str(), machine.what.as_str()),
            ("linux-c0ffee-7", "e2-medium spot, us-east1-b")
        );
        assert_eq!(machine.created_ms, Some(1_795_269_787_250));
        assert_eq!(machine.addresses.private.as_deref(), Some("10.0.0.7"));
        assert_eq!(machine.addresses.public.as_deref(), Some("203.0.113.7"));
        assert_eq!(machine.token.as_deref(), Some("5d3a"));
        assert_eq!(machine.disks, ["us-east1-b/linux-c0ffee-7"]);
        let mut copy = instance("RUNNING");
        copy.name = Some("linux-c0ffee-7-copy".to_owned());
        assert_eq!(read(&copy).unwrap().token, None, "a copy has the metadata, but not the name");
        let mut foreign = instance("RUNNING");
        foreign.labels.remove("greenroom-owner");
        assert_eq!(read(&foreign), None);
    }

    #[test]
    fn an_ipv6_address_is_internal_or_external() {
        let mut instance = instance("RUNNING");
        let ipv6 = |instance: &Instance| read(instance).unwrap().addresses.ipv6;
        assert_eq!(ipv6(&instance), None);
        instance.network_interfaces[0].ipv_6_address = Some("fd20::7".to_owned());
        assert_eq!(ipv6(&instance).as_deref(), Some("fd20::7"));
        let external = json!([{ "type": "DIRECT_IPV6", "externalIpv6": "2001:db8::7" }]);
        instance.network_interfaces[0].ipv_6_access_configs = serde_json::from_value(external).unwrap();
        assert_eq!(ipv6(&instance).as_deref(), Some("2001:db8::7"));
    }

    #[test]
    fn maintenance_that_stops_a_machine_is_a_notice() {
        let start = "2026-12-01T06:00:00-08:00";
        for (status, reaction, upcoming, expected) in [
            (
                "RUNNING",
                "TERMINATE",
                json!({ "type": "SCHEDULED", "maintenanceStatus": "PENDING", "windowStartTime": start }),
                Some("has host maintenance by Compute Engine at 2026-12-01 14:00 UTC"),
            ),
            (
                "RUNNING",
                "TERMINATE",
                json!({ "maintenanceStatus": "ONGOING", "windowStartTime": start }),
                Some("has host maintenance by Compute Engine now"),
            ),
            (
                "STAGING",
                "TERMINATE",
                json!({ "windowStartTime": "soon" }),
                Some("has host maintenance by Compute Engine"),
            ),
            ("STOPPING", "TERMINATE", json!({ "windowStartTime": start }), None),
            ("RUNNING", "MIGRATE", json!({ "windowStartTime": start }), None),
            ("RUNNING", "TERMINATE", json!(null), None),
        ] {
            let mut listed = instance(status);
            let scheduling = json!({ "onHostMaintenance": reaction });
            listed.scheduling = serde_json::from_value(scheduling).unwrap();
            let resource_status = json!({ "upcomingMaintenance": upcoming });
            listed.resource_status = serde_json::from_value(resource_status).unwrap();
            assert_eq!(
                read(&listed).unwrap().notice.map(|notice| notice.text).as_deref(),
                expected,
                "{status} {reaction}"
            );
        }
    }

    #[test]
    fn each_status_is_a_standing() {
        for (status, wanted) in [
            ("PENDING", MachineState::Accepted),
            ("PROVISIONING", MachineState::Accepted),
            ("STAGING", MachineState::Starting),
            ("RUNNING", MachineState::Running),
            ("PENDING_STOP", MachineState::Ending),
            ("STOPPING", MachineState::Ending),
            ("SUSPENDING", MachineState::Ending),
            ("DEPROVISIONING", MachineState::Ending),
            ("TERMINATED", MachineState::Stopped),
            ("STOPPED", MachineState::Stopped),
            ("SUSPENDED", MachineState::Stopped),
            ("REPAIRING", MachineState::Stopped),
            ("SOMETHING_NEW", MachineState::Starting),
        ] {
            assert_eq!(machine_state(&instance(status)), wanted, "{status}");
        }
    }

    #[test]
    fn a_zone_that_could_not_be_asked_is_named() {
        let warned = |code| InstancesScopedList::new().set_warning(Warning::new().set_code(code));
        let items = HashMap::from([
            ("zones/us-east1-b".to_owned(), warned(Code::NoResultsOnPage)),
            ("zones/us-east1-c".to_owned(), warned(Code::Unreachable)),
        ]);
        let page = InstanceAggregatedList::new().set_items(items).set_unreachables(["zones/us-east1-d"]);
        assert_eq!(not_listed(&page).map(last).collect::<Vec<_>>(), ["us-east1-c", "us-east1-d"]);
    }

    #[test]
    fn a_disk_is_named_with_its_zone_and_knows_its_instance() {
        let mut disk: ListedDisk = serde_json::from_value(json!({
            "name": "linux-c0ffee-7", "zone": "https://x/zones/us-east1-b", "sizeGb": "20", "status": "READY",
            "creationTimestamp": "1970-01-01T00:00:09.000-00:00",
            "type": "https://x/zones/us-east1-b/diskTypes/pd-balanced",
            "users": ["https://x/projects/p/zones/us-east1-b/instances/linux-c0ffee-7"],
            "labels": {
                "greenroom-pool": "linux", "greenroom-owner": "owner", "greenroom-generation": "c0ffee",
                "greenroom-number": "7",
            },
        }))
        .unwrap();
        let now = Stamp { wall_ms: 10_000, manager: ManagerId(1), boot: BootId(1), uptime_ms: 5_000 };
        let Disk { resource, attached } = read_disk(&disk, now).unwrap();
        assert_eq!(
            attached.map(|user| (user.zone, user.name)),
            Some(("us-east1-b".into(), "linux-c0ffee-7".into()))
        );
        assert_eq!(resource.created.map(|at| at.uptime_ms), Some(4_000));
        assert_eq!(resource.name, "us-east1-b/linux-c0ffee-7");
        assert_eq!(resource.instance.unwrap().as_str(), "linux-c0ffee-7");
        assert_eq!(resource.detail.as_deref(), Some("20 GiB, pd-balanced, us-east1-b"));
        disk.status = Some(DiskStatus::Deleting);
        assert!(read_disk(&disk, now).is_none());
    }
}
