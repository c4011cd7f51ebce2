//! EC2's limits of vCPUs, and the number of further machines that they allow.
//!
//! Classes and codes are those of Amazon's EC2 user guide, where each limit is linked to its page in Service Quotas:
//! "On-Demand Instance quotas" (`ec2-on-demand-instances.html`) and "Spot Instance quotas"
//! (`using-spot-limits.html`). The family of a type is the letters before its first digit, and its class the one that
//! the guide to instance types puts it in: `i4i`, `im4gn` and `is4gen` are all of I.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::cloud::headroom::{QuotaHeadroom, fits};
use crate::cloud::offerings::Market;

/// Families that share limits.
#[derive(Debug, PartialEq, Eq)]
struct Class {
    name: &'static str,
    families: &'static [&'static str],
    /// Codes of Service Quotas.
    on_demand: &'static str,
    /// `None` if the class has no spot machines.
    spot: Option<&'static str>,
}

const CLASSES: [Class; 10] = [
    Class {
        name: "Standard",
        families: &["a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"],
        on_demand: "L-1216C47A",
        spot: Some("L-34B43A08"),
    },
    Class { name: "DL", families: &["dl"], on_demand: "L-6E869C2A", spot: Some("L-85EED4F7") },
    Class { name: "F", families: &["f"], on_demand: "L-74FC7D96", spot: Some("L-88CF9481") },
    Class {
        name: "G and VT",
        families: &["g", "gr", "vt"],
        on_demand: "L-DB2E81BA",
        spot: Some("L-3819A6DF"),
    },
    Class { name: "High Memory", families: &["u"], on_demand: "L-43DA4232", spot: None },
    Class { name: "HPC", families: &["hpc"], on_demand: "L-F7808C92", spot: None },
    Class { name: "Inf", families: &["inf"], on_demand: "L-1945791B", spot: Some("L-B5D1601B") },
    Class { name: "P", families: &["p"], on_demand: "L-417A185B", spot: Some("L-7212CCBC") },
    Class { name: "Trn", families: &["trn"], on_demand: "L-2C3B7624", spot: Some("L-6B0D517C") },
    Class { name: "X", families: &["x"], on_demand: "L-7295265B", spot: Some("L-E3A00192") },
];

/// One limit: vCPUs of a class of families, by how they are paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quota {
    /// Its code in Service Quotas.
    pub(super) code: &'static str,
    class: &'static str,
    market: Market,
}

impl Display for Quota {
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
pub(super) struct QuotaUse<'a> {
    pub(super) machine_type: &'a str,
    pub(super) market: Market,
    pub(super) vcpus: u32,
}

impl QuotaUse<'_> {
    /// The limit that it counts against; `None` if no limit is known.
    pub(super) fn quota(&self) -> Option<Quota> {
        let end = self.machine_type.find(|c: char| !c.is_ascii_lowercase())?;
        let family = &self.machine_type[..end];
        let class = CLASSES.iter().find(|class| class.families.contains(&family))?;
        let code = match self.market {
            Market::OnDemand => class.on_demand,
            Market::Spot => class.spot?,
        };
        Some(Quota { code, class: class.name, market: self.market })
    }
}

/// The number of further machines that each limit allows, by the smallest of the pool's types under it. Empty if the
/// limit of one of the types is unknown.
///
/// `limits`: vCPUs by code; `running`: all machines of the account and region, of any owner.
pub(super) fn rooms(
    pool: &[QuotaUse<'_>],
    running: &[QuotaUse<'_>],
    limits: &BTreeMap<&'static str, f64>,
) -> Vec<QuotaHeadroom> {
    let mut smallest: Vec<(Quota, f64, &QuotaUse<'_>)> = Vec::new();
    for take in pool {
        let Some(quota) = take.quota() else { return Vec::new() };
        let Some(limit) = limits.get(quota.code) else { return Vec::new() };
        match smallest.iter_mut().find(|(known, ..)| *known == quota) {
            Some((.., least)) if take.vcpus < least.vcpus => *least = take,
            Some(_) => {}
            None => smallest.push((quota, *limit, take)),
        }
    }
    let room = |(quota, limit, take): (Quota, f64, &QuotaUse<'_>)| {
        let counted = running.iter().filter(|running| running.quota() == Some(quota));
        let used = counted.fold(0_u32, |sum, running| sum.saturating_add(running.vcpus));
        QuotaHeadroom {
            machines: fits(limit - f64::from(used), take.vcpus),
            of: format!("of {} ({quota}: {used} of {limit} vCPUs used)", take.machine_type),
        }
    };
    smallest.into_iter().map(room).collect()
}

#[cfg(test)]
mod tests {
    use super::Market::{OnDemand, Spot};
    use super::*;

    fn take(machine_type: &str, market: Market, vcpus: u32) -> QuotaUse<'_> {
        QuotaUse { machine_type, market, vcpus }
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
        let of = |pool: &[QuotaUse<'_>]| -> Vec<String> {
            let rooms = rooms(pool, &running, &limits);
            rooms.iter().map(|room| format!("{} {}", room.machines, room.of)).collect()
        };
        let (large, xlarge) = (take("m5.large", OnDemand, 2), take("m5.xlarge", OnDemand, 4));
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
        let rooms = rooms(&[take("m5.large", OnDemand, 2)], &[take("m5.4xlarge", OnDemand, 16)], &limits);
        assert_eq!(rooms[0].machines, 0);
    }
}
