//! The headroom of the account's vCPU limits for a pool: EC2 reports the usage, Service Quotas the limits.
//!
//! Classes and codes are those of Amazon's EC2 user guide, where each limit is linked to its page in Service Quotas:
//! "On-Demand Instance quotas" (`ec2-on-demand-instances.html`) and "Spot Instance quotas" (`using-spot-limits.html`). The
//! family of a type is the letters before its first digit, and its class the one that the guide to instance types puts it in:
//! `i4i`, `im4gn` and `is4gen` are all of I.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::{self, Debug, Display, Formatter};
use std::time::Duration;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::types::{Filter, Instance, InstanceLifecycleType, Reservation};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use tokio::time::timeout;

use crate::aws_ec2::calls::client::Ec2Clients;
use crate::aws_ec2::calls::errors;
use crate::aws_ec2::settings::Settings;
use crate::cloud::findings::{QuotaHeadroom, fits};
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
struct RunningInstance {
    machine_type: String,
    market: Market,
    /// `None` if EC2 does not report them.
    vcpus: Option<u32>,
}

/// The number of further machines, by limit; empty if no limit is known.
pub(super) async fn look_up(
    clients: &Ec2Clients,
    settings: &Settings,
) -> Result<Vec<QuotaHeadroom>, ProviderError> {
    timeout(WITHIN, headroom(clients, settings)).await.unwrap_or_else(|_| {
        let why = format!("no answer within {} s", WITHIN.as_secs());
        Err(ProviderError::new(ErrorClass::Unknown, why))
    })
}

async fn headroom(clients: &Ec2Clients, settings: &Settings) -> Result<Vec<QuotaHeadroom>, ProviderError> {
    let offerings = &settings.common.offerings;
    let running = running(clients).await?;
    let without_vcpus = running.iter().filter(|one| one.vcpus.is_none()).map(|one| &one.machine_type);
    let types =
        offerings.iter().map(|offering| &offering.machine_type).chain(without_vcpus).cloned().collect();
    let vcpus = default_vcpus(clients, types).await?;

    let take = |machine_type, market, vcpus| VcpuUse { machine_type, market, vcpus };
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

    let codes: BTreeSet<_> = pool.iter().filter_map(VcpuUse::quota).map(|quota| quota.code).collect();
    let mut limits = BTreeMap::new();
    for code in codes {
        if let Some(limit) = limit(clients, code).await? {
            limits.insert(code, limit);
        }
    }
    Ok(headroom_of(&pool, &in_use, &limits))
}

/// All machines of the account in this region, of any owner.
async fn running(clients: &Ec2Clients) -> Result<Vec<RunningInstance>, ProviderError> {
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
fn read(instance: &Instance) -> Option<RunningInstance> {
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
    Some(RunningInstance { machine_type, market, vcpus: threads.filter(|threads| *threads > 0) })
}

/// vCPUs by type, without missing types.
async fn default_vcpus(
    clients: &Ec2Clients,
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
async fn limit(clients: &Ec2Clients, code: &str) -> Result<Option<f64>, ProviderError> {
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

/// Families that share limits.
#[derive(Debug, PartialEq, Eq)]
struct QuotaClass {
    name: &'static str,
    families: &'static [&'static str],
    /// Codes of Service Quotas.
    on_demand: &'static str,
    /// `None` if the class has no spot machines.
    spot: Option<&'static str>,
}

const CLASSES: [QuotaClass; 10] = [
    QuotaClass {
        name: "Standard",
        families: &["a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"],
        on_demand: "L-1216C47A",
        spot: Some("L-34B43A08"),
    },
    QuotaClass { name: "DL", families: &["dl"], on_demand: "L-6E869C2A", spot: Some("L-85EED4F7") },
    QuotaClass { name: "F", families: &["f"], on_demand: "L-74FC7D96", spot: Some("L-88CF9481") },
    QuotaClass {
        name: "G and VT",
        families: &["g", "gr", "vt"],
        on_demand: "L-DB2E81BA",
        spot: Some("L-3819A6DF"),
    },
    QuotaClass { name: "High Memory", families: &["u"], on_demand: "L-43DA4232", spot: None },
    QuotaClass { name: "HPC", families: &["hpc"], on_demand: "L-F7808C92", spot: None },
    QuotaClass { name: "Inf", families: &["inf"], on_demand: "L-1945791B", spot: Some("L-B5D1601B") },
    QuotaClass { name: "P", families: &["p"], on_demand: "L-417A185B", spot: Some("L-7212CCBC") },
    QuotaClass { name: "Trn", families: &["trn"], on_demand: "L-2C3B7624", spot: Some("L-6B0D517C") },
    QuotaClass { name: "X", families: &["x"], on_demand: "L-7295265B", spot: Some("L-E3A00192") },
];

/// A limit of vCPUs for a class of families in one market.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VcpuQuota {
    /// The limit's code in Service Quotas.
    pub(super) code: &'static str,
    class: &'static str,
    market: Market,
}

impl Display for VcpuQuota {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let market = match self.market {
            Market::OnDemand => "On-Demand",
            Market::Spot => "Spot",
        };
        write!(f, "{market} {}", self.class)
    }
}

/// The share of a limit that one machine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VcpuUse<'a> {
    pub(super) machine_type: &'a str,
    pub(super) market: Market,
    pub(super) vcpus: u32,
}

impl VcpuUse<'_> {
    /// The limit that it counts against; `None` if no limit is known.
    pub(super) fn quota(&self) -> Option<VcpuQuota> {
        let end = self.machine_type.find(|c: char| !c.is_ascii_lowercase())?;
        let family = &self.machine_type[..end];
        let class = CLASSES.iter().find(|class| class.families.contains(&family))?;
        let code = match self.market {
            Market::OnDemand => class.on_demand,
            Market::Spot => class.spot?,
        };
        Some(VcpuQuota { code, class: class.name, market: self.market })
    }
}

/// A limit, and the smallest of a pool's types under it.
struct SmallestUse<'a> {
    quota: VcpuQuota,
    limit: f64,
    each: &'a VcpuUse<'a>,
}

/// The number of further machines that each limit allows, by the smallest of the pool's types under it. Empty if the
/// limit of one of the types is unknown.
///
/// `limits`: vCPUs by code; `running`: all machines of the account and region, of any owner.
pub(super) fn headroom_of(
    pool: &[VcpuUse<'_>],
    running: &[VcpuUse<'_>],
    limits: &BTreeMap<&'static str, f64>,
) -> Vec<QuotaHeadroom> {
    let mut smallest: Vec<SmallestUse<'_>> = Vec::new();
    for one in pool {
        let Some(quota) = one.quota() else { return Vec::new() };
        let Some(limit) = limits.get(quota.code) else { return Vec::new() };
        match smallest.iter_mut().find(|known| known.quota == quota) {
            Some(known) if one.vcpus < known.each.vcpus => known.each = one,
            Some(_) => {}
            None => smallest.push(SmallestUse { quota, limit: *limit, each: one }),
        }
    }
    let headroom = |SmallestUse { quota, limit, each }: SmallestUse<'_>| {
        let counted = running.iter().filter(|running| running.quota() == Some(quota));
        let used = counted.fold(0_u32, |sum, running| sum.saturating_add(running.vcpus));
        QuotaHeadroom {
            machines: fits(limit - f64::from(used), each.vcpus),
            of: format!("of {} ({quota}: {used} of {limit} vCPUs used)", each.machine_type),
        }
    };
    smallest.into_iter().map(headroom).collect()
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{CpuOptions, InstanceType};

    use super::Market::{OnDemand, Spot};
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

    fn take(machine_type: &str, market: Market, vcpus: u32) -> VcpuUse<'_> {
        VcpuUse { machine_type, market, vcpus }
    }

    #[test]
    fn a_type_counts_under_the_limit_of_its_family() {
        for (machine_type, on_demand, spot) in [
            ("m5.large", "On-Demand Standard L-1216C47A", "Spot Standard L-34B43A08"),
            ("i4i.large", "On-Demand Standard L-1216C47A", "Spot Standard L-34B43A08"),
            ("im4gn.large", "On-Demand Standard L-1216C47A", "Spot Standard L-34B43A08"),
            ("inf2.xlarge", "On-Demand Inf L-1945791B", "Spot Inf L-B5D1601B"),
            ("trn1.2xlarge", "On-Demand Trn L-2C3B7624", "Spot Trn L-6B0D517C"),
            ("t3.micro", "On-Demand Standard L-1216C47A", "Spot Standard L-34B43A08"),
            ("dl1.24xlarge", "On-Demand DL L-6E869C2A", "Spot DL L-85EED4F7"),
            ("d3.xlarge", "On-Demand Standard L-1216C47A", "Spot Standard L-34B43A08"),
            ("g6.xlarge", "On-Demand G and VT L-DB2E81BA", "Spot G and VT L-3819A6DF"),
            ("vt1.3xlarge", "On-Demand G and VT L-DB2E81BA", "Spot G and VT L-3819A6DF"),
            ("p6-b200.48xlarge", "On-Demand P L-417A185B", "Spot P L-7212CCBC"),
            ("hpc7a.96xlarge", "On-Demand HPC L-F7808C92", "none"),
            ("u-6tb1.metal", "On-Demand High Memory L-43DA4232", "none"),
            ("u7i-12tb.224xlarge", "On-Demand High Memory L-43DA4232", "none"),
            ("mac2.metal", "none", "none"),
            ("m", "none", "none"),
            ("", "none", "none"),
        ] {
            let shown = |market| {
                take(machine_type, market, 2)
                    .quota()
                    .map_or("none".to_owned(), |quota| format!("{quota} {}", quota.code))
            };
            assert_eq!((shown(OnDemand).as_str(), shown(Spot).as_str()), (on_demand, spot), "{machine_type}");
        }
    }

    #[test]
    fn no_family_and_no_code_is_in_two_classes() {
        let families = CLASSES.iter().flat_map(|class| class.families);
        let codes = CLASSES.iter().flat_map(|class| class.spot.iter().chain([&class.on_demand]));
        for all in [families.collect::<Vec<_>>(), codes.collect()] {
            let mut once = all.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), all.len());
        }
    }

    #[test]
    fn limits_add_up_and_types_under_one_do_not() {
        let limits = BTreeMap::from([("L-1216C47A", 32.0), ("L-34B43A08", 16.5)]);
        let running = [
            take("c7i.2xlarge", OnDemand, 8),
            take("m5.large", OnDemand, 2),
            take("t3.large", Spot, 12),
            take("g6.xlarge", OnDemand, 4),
            take("mac2.metal", OnDemand, 8),
        ];
        let of = |pool: &[VcpuUse<'_>]| -> Vec<String> {
            let rooms = headroom_of(pool, &running, &limits);
            rooms.iter().map(|room| format!("{} {}", room.machines, room.of)).collect()
        };
        let large = take("m5.large", OnDemand, 2);
        let xlarge = take("m5.xlarge", OnDemand, 4);
        let standard = "11 of m5.large (On-Demand Standard: 10 of 32 vCPUs used)";
        assert_eq!(of(&[xlarge]), ["5 of m5.xlarge (On-Demand Standard: 10 of 32 vCPUs used)"]);
        assert_eq!(of(&[xlarge, large, take("c5.large", OnDemand, 2)]), [standard]);
        let spot = "1 of m5.xlarge (Spot Standard: 12 of 16.5 vCPUs used)";
        assert_eq!(of(&[take("m5.xlarge", Spot, 4), large]), [spot, standard]);
        assert!(of(&[large, take("mac2.metal", OnDemand, 8)]).is_empty(), "a class that is not known");
        assert!(of(&[large, take("g6.xlarge", OnDemand, 4)]).is_empty(), "a limit that is not told");
    }

    #[test]
    fn an_account_beyond_its_limit_has_no_room() {
        let limits = BTreeMap::from([("L-1216C47A", 5.0)]);
        let rooms =
            headroom_of(&[take("m5.large", OnDemand, 2)], &[take("m5.4xlarge", OnDemand, 16)], &limits);
        assert_eq!(rooms[0].machines, 0);
    }
}
