//! The headroom of the quotas in the pool's regions.

use std::collections::BTreeMap;

use google_cloud_compute_v1::model::Region;

use super::super::super::findings::{Facts, QuotaUse, room};
use super::super::ComputeEngine;
use super::super::client::{Catalogue, answer};
use super::offerings::Types;
use super::{by_region, is_forbidden};
use crate::cloud::offerings::{Market, Offering};

pub(super) async fn look_up(engine: &ComputeEngine, catalogue: &Catalogue, types: &Types, facts: &mut Facts) {
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
        let takes: Vec<_> =
            here.into_iter().filter_map(|offering| take(offering, types, public_ip)).collect();
        facts.room.extend(room(name, &left(&region), &takes));
    }
    facts.not_checked.dedup();
}

fn take<'a>(offering: &'a Offering, types: &Types, public_ip: bool) -> Option<QuotaUse<'a>> {
    let kind = types.get(&(offering.place.clone(), offering.machine_type.clone()))?;
    Some(QuotaUse {
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
