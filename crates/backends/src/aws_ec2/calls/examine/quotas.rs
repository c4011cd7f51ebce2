//! The headroom of the account's vCPU limits for a pool: EC2 reports the usage, Service Quotas the limits.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::types::{Filter, Instance, InstanceLifecycleType, Reservation};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use tokio::time::timeout;

use super::super::super::quotas::{QuotaUse, rooms};
use super::super::super::settings::Settings;
use super::super::client::Clients;
use super::super::errors;
use crate::cloud::headroom::QuotaHeadroom;
use crate::cloud::offerings::Market;

/// Service Quotas may be unreachable, or the account large: `doctor` then reports its other findings without this one.
const WITHIN: Duration = Duration::from_secs(10);
/// Service Quotas' name of EC2.
const SERVICE: &str = "ec2";
/// The account has no limit of its own, only the default; or there is no such limit.
const NO_SUCH: &str = "NoSuchResourceException";
/// Maximum number of a filter's values in one call.
const VALUES: usize = 200;

/// A pending or running instance.
struct Running {
    machine_type: String,
    market: Market,
    /// `None` if EC2 does not report them.
    vcpus: Option<u32>,
}

/// The number of further machines, by limit; empty if no limit is known.
pub(super) async fn look_up(
    clients: &Clients,
    settings: &Settings,
) -> Result<Vec<QuotaHeadroom>, ProviderError> {
    timeout(WITHIN, headroom(clients, settings)).await.unwrap_or_else(|_| {
        let why = format!("no answer within {} s", WITHIN.as_secs());
        Err(ProviderError::new(ErrorClass::Unknown, why))
    })
}

async fn headroom(clients: &Clients, settings: &Settings) -> Result<Vec<QuotaHeadroom>, ProviderError> {
    let offerings = &settings.common.offerings;
    let running = running(clients).await?;
    let without_vcpus = running.iter().filter(|one| one.vcpus.is_none()).map(|one| &one.machine_type);
    let types =
        offerings.iter().map(|offering| &offering.machine_type).chain(without_vcpus).cloned().collect();
    let vcpus = default_vcpus(clients, types).await?;

    let take = |machine_type, market, vcpus| QuotaUse { machine_type, market, vcpus };
    // The rehearsal reports a missing type.
    let pool = offerings.iter().filter_map(|offering| {
        Some(take(&offering.machine_type, offering.market, *vcpus.get(&offering.machine_type)?))
    });
    let pool: Vec<_> = pool.collect();
    let in_use = running.iter().filter_map(|one| {
        let vcpus = one.vcpus.or_else(|| vcpus.get(&one.machine_type).copied())?;
        Some(take(&one.machine_type, one.market, vcpus))
    });
    let in_use: Vec<_> = in_use.collect();

    let codes: BTreeSet<_> = pool.iter().filter_map(QuotaUse::quota).map(|quota| quota.code).collect();
    let mut limits = BTreeMap::new();
    for code in codes {
        if let Some(limit) = limit(clients, code).await? {
            limits.insert(code, limit);
        }
    }
    Ok(rooms(&pool, &in_use, &limits))
}

/// All machines of the account in this region, of any owner.
async fn running(clients: &Clients) -> Result<Vec<Running>, ProviderError> {
    let states = Filter::builder().name("instance-state-name").values("pending").values("running").build();
    let mut pages = clients.ec2.describe_instances().filters(states).into_paginator().page_size(1000).send();
    let mut all = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| errors::read(&error, ""))?;
        all.extend(page.reservations().iter().flat_map(Reservation::instances).filter_map(read));
    }
    Ok(all)
}

/// `None` if it counts against none of these limits, such as one in a reserved block of capacity.
fn read(instance: &Instance) -> Option<Running> {
    let market = match instance.instance_lifecycle() {
        None => Market::OnDemand,
        Some(InstanceLifecycleType::Spot) => Market::Spot,
        Some(_) => return None,
    };
    let threads = instance.cpu_options().and_then(|cpu| {
        let of_each = u32::try_from(cpu.threads_per_core()?).ok()?;
        u32::try_from(cpu.core_count()?).ok()?.checked_mul(of_each)
    });
    let machine_type = instance.instance_type()?.as_str().to_owned();
    Some(Running { machine_type, market, vcpus: threads.filter(|threads| *threads > 0) })
}

/// vCPUs by type, without missing types.
async fn default_vcpus(
    clients: &Clients,
    types: BTreeSet<String>,
) -> Result<BTreeMap<String, u32>, ProviderError> {
    let types: Vec<String> = types.into_iter().collect();
    let mut found = BTreeMap::new();
    for some in types.chunks(VALUES) {
        let named = Filter::builder().name("instance-type").set_values(Some(some.to_vec())).build();
        let mut pages = clients.ec2.describe_instance_types().filters(named).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| errors::read(&error, ""))?;
            found.extend(page.instance_types().iter().filter_map(|kind| {
                let vcpus = u32::try_from(kind.v_cpu_info()?.default_v_cpus()?).ok()?;
                Some((kind.instance_type()?.as_str().to_owned(), vcpus))
            }));
        }
    }
    Ok(found)
}

/// The account's own limit in vCPUs, or the default; `None` if Service Quotas has no such limit.
async fn limit(clients: &Clients, code: &str) -> Result<Option<f64>, ProviderError> {
    let own = clients.quotas.get_service_quota().service_code(SERVICE).quota_code(code).send().await;
    if let Some(quota) = known(own)?.and_then(|answer| answer.quota) {
        return Ok(quota.value);
    }
    let default = clients.quotas.get_aws_default_service_quota().service_code(SERVICE).quota_code(code);
    let quota = known(default.send().await)?.and_then(|answer| answer.quota);
    Ok(quota.and_then(|quota| quota.value))
}

fn known<T, E>(answer: Result<T, SdkError<E, HttpResponse>>) -> Result<Option<T>, ProviderError>
where
    E: ProvideErrorMetadata + Error + Debug + 'static,
{
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if errors::code(&error) == Some(NO_SUCH) => Ok(None),
        Err(error) => Err(errors::read(&error, "")),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{CpuOptions, InstanceType};

    use super::*;

    #[test]
    fn a_machine_is_counted_by_what_it_runs_with() {
        let plain = || Instance::builder().instance_type(InstanceType::M5Large);
        let seen = |instance: &Instance| read(instance).map(|one| (one.machine_type, one.market, one.vcpus));
        let large = |market, vcpus| Some(("m5.large".to_owned(), market, vcpus));
        assert_eq!(seen(&plain().build()), large(Market::OnDemand, None));
        let cpu = CpuOptions::builder().core_count(3).threads_per_core(2).build();
        let spot = plain().instance_lifecycle(InstanceLifecycleType::Spot).cpu_options(cpu).build();
        assert_eq!(seen(&spot), large(Market::Spot, Some(6)));
        let block = plain().instance_lifecycle(InstanceLifecycleType::CapacityBlock).build();
        assert_eq!(seen(&block), None);
    }
}
