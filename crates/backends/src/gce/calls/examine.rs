//! Calls of Compute Engine for `doctor`; they create nothing.
//!
//! Compute Engine has no dry run, so each part of an insert is looked up separately: offerings and quotas here, the network in
//! [`network`]. Whether the account may create a machine shows only when one is created (`greenroom doctor --boot`).

use std::collections::BTreeMap;
use std::time::SystemTime;

use google_cloud_compute_v1::model::{Image, MachineType, Region};
use google_cloud_compute_v1::{Error, Result as Answer};
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, ProviderError};

use super::client::{self, Catalogue, answer};
use super::{ComputeEngine, errors};
use crate::cloud::api::CallKind;
use crate::cloud::findings::{self, QuotaHeadroom, fits};
use crate::cloud::offerings::{Market, Offering};
use crate::gce::findings::{ComputeEngineFacts, judge};
use crate::gce::resource::{self, region};
use crate::gce::settings::Settings;

mod network;

/// An operation that does not exist, because the libraries return headers only with errors.
const NO_OPERATION: &str = "greenroom-doctor-asks-the-time";
/// Maximum number of offerings to look up: each is a call.
const MAX_OFFERINGS: usize = 24;

/// Existing machine types, by zone and name.
type MachineTypes = BTreeMap<(String, String), MachineType>;

pub(super) async fn examine(engine: &ComputeEngine, demand: &Demand) -> Vec<Finding> {
    let mut facts =
        ComputeEngineFacts { clock_ahead_s: clock_ahead_s(engine).await, ..ComputeEngineFacts::default() };
    if let Err(error) = check(engine, &mut facts).await {
        facts.unreachable = Some(error.failure.message);
    }
    judge(&engine.pool, &facts, demand)
}

/// Fails if no call is possible.
async fn check(engine: &ComputeEngine, facts: &mut ComputeEngineFacts) -> Result<(), ProviderError> {
    needed(engine, facts).await?;
    let catalogue = client::open_catalogue(&engine.settings).await?;
    let types = look_up_offerings(engine, &catalogue, facts).await;
    network::check_subnetworks(engine, &catalogue, facts).await;
    look_up_quotas(engine, &catalogue, &types, facts).await;
    network::check_firewall(engine, &catalogue, facts).await;
    facts.exposures.extend(network::shared(&engine.settings).await);
    Ok(())
}

/// Tries the lists that each pass needs.
async fn needed(engine: &ComputeEngine, facts: &mut ComputeEngineFacts) -> Result<(), ProviderError> {
    let clients = engine.clients().await?;
    let project = &engine.settings.project;
    let machines = clients.instances.aggregated_list().set_project(project).set_filter(engine.pool_filter());
    allowed(facts, "list instances", answer(machines.set_max_results(1_u32).send()).await)?;
    let disks = clients.disks.aggregated_list().set_project(project).set_filter(engine.pool_filter());
    allowed(facts, "list disks", answer(disks.set_max_results(1_u32).send()).await)?;
    let zone = &engine.settings.common.offerings[0].place;
    let operations = clients.operations.list().set_project(project).set_zone(zone).set_max_results(1_u32);
    // The check of the offerings reports a missing zone.
    if let Some(error) = answer(operations.send()).await.err().filter(is_forbidden) {
        facts.denied_calls.push(("list operations", message(&error)));
    }
    Ok(())
}

/// Records a call that is not allowed. Any other error would affect all calls.
fn allowed<T>(
    facts: &mut ComputeEngineFacts,
    purpose: &'static str,
    answer: Answer<T>,
) -> Result<(), ProviderError> {
    match answer {
        Ok(_) => {}
        Err(error) if is_forbidden(&error) => facts.denied_calls.push((purpose, message(&error))),
        Err(error) => return Err(errors::read(&error, CallKind::Existing, "")),
    }
    Ok(())
}

/// The offerings, by the region of their zone.
fn by_region(settings: &Settings) -> BTreeMap<&str, Vec<&Offering>> {
    let mut regions: BTreeMap<&str, Vec<&Offering>> = BTreeMap::new();
    for offering in &settings.common.offerings {
        if let Some(region) = region(&offering.place) {
            regions.entry(region).or_default().push(offering);
        }
    }
    regions
}

fn is_forbidden(error: &Error) -> bool {
    error.http_status_code() == Some(403)
}

fn message(error: &Error) -> String {
    errors::read(error, CallKind::Existing, "").failure.message
}

/// Compute Engine's clock minus the runner host's, in seconds; `None` if the answer had no date.
async fn clock_ahead_s(engine: &ComputeEngine) -> Option<i64> {
    let operations = &engine.clients().await.ok()?.operations;
    let zone = &engine.settings.common.offerings[0].place;
    let get =
        operations.get().set_project(&engine.settings.project).set_zone(zone).set_operation(NO_OPERATION);
    let error = answer(get.send()).await.err()?;
    findings::clock_ahead_s(error.http_headers()?.get("date")?.to_str().ok()?, SystemTime::now())
}

/// Looks up images and types of the offerings; returns the types.
async fn look_up_offerings(
    engine: &ComputeEngine,
    catalogue: &Catalogue,
    facts: &mut ComputeEngineFacts,
) -> MachineTypes {
    let mut types: BTreeMap<_, Answer<MachineType>> = BTreeMap::new();
    let mut images: BTreeMap<_, Answer<Image>> = BTreeMap::new();
    for offering in engine.settings.common.offerings.iter().take(MAX_OFFERINGS) {
        let key = (offering.place.clone(), offering.machine_type.clone());
        if !images.contains_key(&offering.image) {
            images.insert(offering.image.clone(), image(engine, catalogue, &offering.image).await);
        }
        if !types.contains_key(&key) {
            let get = catalogue.machine_types.get().set_project(&engine.settings.project);
            let get = get.set_zone(&offering.place).set_machine_type(&offering.machine_type);
            types.insert(key.clone(), answer(get.send()).await);
        }
        let image = &images[&offering.image];
        let kind = &types[&key];
        if let Some(error) = image.as_ref().err().or(kind.as_ref().err()) {
            if is_forbidden(error) {
                facts.denied_calls.push(("get its images and machine types", message(error)));
            } else {
                facts.refused.push((offering.name.to_string(), message(error)));
            }
        } else if let (Ok(image), Ok(kind)) = (image, kind) {
            let wrong = mismatch(image, kind, engine.settings.common.disk_gib);
            facts.refused.extend(wrong.map(|why| (offering.name.to_string(), why)));
        }
    }
    facts.denied_calls.dedup();
    types.into_iter().filter_map(|(key, kind)| Some((key, kind.ok()?))).collect()
}

async fn image(engine: &ComputeEngine, catalogue: &Catalogue, named: &str) -> Answer<Image> {
    let image = resource::Image::parse(named).expect("settings have only images that are read");
    let project = image.project.as_ref().unwrap_or(&engine.settings.project);
    if image.is_family {
        let newest = catalogue.images.get_from_family().set_project(project).set_family(&image.name);
        answer(newest.send()).await
    } else {
        answer(catalogue.images.get().set_project(project).set_image(&image.name).send()).await
    }
}

/// The reason why the image cannot be used with the type, or on the disk.
fn mismatch(image: &Image, kind: &MachineType, disk_gib: Option<u32>) -> Option<String> {
    let of_image = image.architecture.as_ref().and_then(|architecture| architecture.name());
    let of_kind = kind.architecture.as_ref().and_then(|architecture| architecture.name());
    if let (Some(of_image), Some(of_kind)) = (of_image, of_kind)
        && of_image != of_kind
    {
        return Some(format!("the image is for {of_image}, but the machine type is {of_kind}"));
    }
    let least = image.disk_size_gb?;
    let wanted = i64::from(disk_gib?);
    (wanted < least).then(|| format!("`disk` is {wanted} GiB, but the image needs {least}"))
}

/// Looks up the headroom of the quotas in the pool's regions.
async fn look_up_quotas(
    engine: &ComputeEngine,
    catalogue: &Catalogue,
    types: &MachineTypes,
    facts: &mut ComputeEngineFacts,
) {
    for (name, here) in by_region(&engine.settings) {
        let get = catalogue.regions.get().set_project(&engine.settings.project).set_region(name);
        let region = match answer(get.send()).await {
            Ok(region) => region,
            Err(error) if is_forbidden(&error) => {
                facts.not_checked.push("get quotas");
                continue;
            }
            // The check of the offerings reports a missing region.
            Err(_) => continue,
        };
        // IPv6 addresses count against no quota.
        let public_ip = engine.settings.public_ip && !engine.settings.has_ipv6();
        let uses: Vec<_> =
            here.into_iter().filter_map(|offering| quota_use(offering, types, public_ip)).collect();
        facts.headroom.extend(region_headroom(name, &left(&region), &uses));
    }
    facts.not_checked.dedup();
}

fn quota_use<'a>(
    offering: &'a Offering,
    types: &MachineTypes,
    public_ip: bool,
) -> Option<RegionQuotaUse<'a>> {
    let kind = types.get(&(offering.place.clone(), offering.machine_type.clone()))?;
    Some(RegionQuotaUse {
        machine_type: &offering.machine_type,
        processors: u32::try_from(kind.guest_cpus?).ok()?,
        spot: offering.market == Market::Spot,
        public_ip,
    })
}

fn left(region: &Region) -> BTreeMap<String, f64> {
    let known = region.quotas.iter().filter_map(|quota| {
        let metric = quota.metric.as_ref()?.name()?.to_owned();
        Some((metric, (quota.limit? - quota.usage.unwrap_or_default()).max(0.0)))
    });
    known.collect()
}

/// The share of a region's quotas that one machine of an offering uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RegionQuotaUse<'a> {
    machine_type: &'a str,
    processors: u32,
    spot: bool,
    public_ip: bool,
}

/// The number of machines that the rest of the quotas allows, by the offering with the most headroom; quotas that the
/// region does not list have no limit.
fn region_headroom(
    region: &str,
    left: &BTreeMap<String, f64>,
    uses: &[RegionQuotaUse<'_>],
) -> Option<QuotaHeadroom> {
    let best = uses.iter().filter_map(|one| tightest(left, one)).max_by_key(|(machines, _)| *machines);
    best.map(|(machines, metric)| QuotaHeadroom { machines, of: format!("in {region} ({metric})") })
}

fn tightest(left: &BTreeMap<String, f64>, one: &RegionQuotaUse<'_>) -> Option<(u32, String)> {
    let mut needs = vec![("INSTANCES".to_owned(), 1), (processors(left, one), one.processors)];
    if one.public_ip {
        needs.push(("IN_USE_ADDRESSES".to_owned(), 1));
    }
    let known =
        needs.into_iter().filter_map(|(metric, each)| Some((fits(*left.get(&metric)?, each), metric)));
    known.min_by_key(|(machines, _)| *machines)
}

/// The quota that processors count against: for spot, its own if the region has one; otherwise that of the family, or
/// the common one.
fn processors(left: &BTreeMap<String, f64>, one: &RegionQuotaUse<'_>) -> String {
    let family = one.machine_type.split('-').next().unwrap_or_default().to_ascii_uppercase();
    let known = |metric: String| left.contains_key(&metric).then_some(metric);
    let spot = one.spot.then(|| known("PREEMPTIBLE_CPUS".to_owned())).flatten();
    spot.or_else(|| known(format!("{family}_CPUS"))).unwrap_or_else(|| "CPUS".to_owned())
}

#[cfg(test)]
mod tests {
    use google_cloud_compute_v1::model::{image, machine_type};

    use super::*;

    #[test]
    fn an_image_that_does_not_fit_is_told() {
        let image = Image::new().set_architecture(image::Architecture::Arm64).set_disk_size_gb(10);
        let arm = MachineType::new().set_architecture(machine_type::Architecture::Arm64);
        let x86 = MachineType::new().set_architecture(machine_type::Architecture::X8664);
        assert_eq!(mismatch(&image, &arm, None), None);
        assert_eq!(mismatch(&image, &MachineType::new(), Some(10)), None);
        let reason = mismatch(&image, &x86, None);
        assert_eq!(reason.as_deref(), Some("the image is for ARM64, but the machine type is X86_64"));
        let reason = mismatch(&image, &arm, Some(8));
        assert_eq!(reason.as_deref(), Some("`disk` is 8 GiB, but the image needs 10"));
    }

    fn amounts(quotas: &[(&str, f64)]) -> BTreeMap<String, f64> {
        quotas.iter().map(|(metric, left)| ((*metric).to_owned(), *left)).collect()
    }

    #[test]
    fn the_tightest_quota_of_the_roomiest_way_counts() {
        let quota_use =
            |machine_type, spot| RegionQuotaUse { machine_type, processors: 4, spot, public_ip: false };
        let fits = |quotas: &[(&str, f64)], uses: &[RegionQuotaUse<'_>]| {
            region_headroom("r", &amounts(quotas), uses).map(|room| format!("{} {}", room.machines, room.of))
        };
        let quotas = [("CPUS", 9.0), ("N2D_CPUS", 24.0), ("PREEMPTIBLE_CPUS", 100.0), ("INSTANCES", 20.0)];
        assert_eq!(fits(&quotas, &[quota_use("e2-standard-4", false)]), Some("2 in r (CPUS)".to_owned()));
        assert_eq!(
            fits(&quotas, &[quota_use("n2d-standard-4", false)]),
            Some("6 in r (N2D_CPUS)".to_owned())
        );
        let both = [quota_use("e2-standard-4", false), quota_use("e2-standard-4", true)];
        assert_eq!(fits(&quotas, &both), Some("20 in r (INSTANCES)".to_owned()));
        let public = RegionQuotaUse { public_ip: true, ..quota_use("e2-standard-4", true) };
        let addresses = [("IN_USE_ADDRESSES", 1.0), ("INSTANCES", 20.0)];
        assert_eq!(fits(&addresses, &[public]), Some("1 in r (IN_USE_ADDRESSES)".to_owned()));
        assert_eq!(fits(&[], &[quota_use("e2-standard-4", true)]), None, "no quota, no limit");
    }
}
