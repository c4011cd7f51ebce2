//! Disks with a pool's labels.

use google_cloud_compute_v1::model::Disk;
use google_cloud_compute_v1::model::disk::Status;
use google_cloud_compute_v1::model::disks_scoped_list::warning::Code;
use greenroom_core::failure::ErrorClass;
use greenroom_core::inventory::{Resource, ResourceKind};
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;

use super::ComputeEngine;
use super::client::answer;
use super::errors::{self, CallKind};
use super::machines::{PAGE, created_ms, last, zone_and_name};
use crate::cloud::api::Disks;
use crate::cloud::machine::{Handle, moment};
use crate::cloud::{self, tags};

/// All disks of the pool, in all zones of the project.
pub(super) async fn list(engine: &ComputeEngine, now: Stamp) -> Result<Disks, ProviderError> {
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
            disks.complete &= code.is_none_or(|code| *code == Code::NoResultsOnPage);
            disks.all.extend(scope.disks.iter().filter_map(|disk| read(disk, now)));
        }
        next = page.next_page_token.filter(|token| !token.is_empty());
        if next.is_none() {
            return Ok(disks);
        }
    }
}

pub(super) async fn delete(engine: &ComputeEngine, disk: &Resource) -> Result<(), ProviderError> {
    let Some((zone, name)) = disk.name.split_once('/') else {
        let why = format!("`{}` is not a disk of Compute Engine (`ZONE/NAME`)", disk.name);
        return Err(ProviderError::new(ErrorClass::Invalid, why));
    };
    let delete = engine.clients().await?.disks.delete().set_project(&engine.settings.project);
    let reply = answer(delete.set_zone(zone).set_disk(name).send()).await;
    reply.map(drop).map_err(|error| errors::read(&error, CallKind::Existing, ""))
}

/// `None` if it is being deleted. The name includes the zone, because names are unique in their zone only.
fn read(disk: &Disk, now: Stamp) -> Option<cloud::api::Disk> {
    if disk.status == Some(Status::Deleting) {
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
    Some(cloud::api::Disk { resource, attached })
}

#[cfg(test)]
mod tests {
    use greenroom_core::time::{BootId, ManagerId};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_disk_is_named_with_its_zone_and_knows_its_instance() {
        let mut disk: Disk = serde_json::from_value(json!({
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
        let cloud::api::Disk { resource, attached } = read(&disk, now).unwrap();
        assert_eq!(
            attached.map(|user| (user.zone, user.name)),
            Some(("us-east1-b".into(), "linux-c0ffee-7".into()))
        );
        assert_eq!(resource.created.map(|at| at.uptime_ms), Some(4_000));
        assert_eq!(resource.name, "us-east1-b/linux-c0ffee-7");
        assert_eq!(resource.instance.unwrap().as_str(), "linux-c0ffee-7");
        assert_eq!(resource.detail.as_deref(), Some("20 GiB, pd-balanced, us-east1-b"));
        disk.status = Some(Status::Deleting);
        assert!(read(&disk, now).is_none());
    }
}
