//! Findings of `doctor` from Compute Engine's answers.

use std::collections::BTreeMap;

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::Demand;

use crate::cloud::clock;
use crate::cloud::doctor::group_by_message;
use crate::cloud::headroom::{QuotaHeadroom, fits, shortage};
use crate::cloud::inbound::{self, Exposure};

const EXPOSED: inbound::Codes = inbound::Codes {
    world: "gce-firewall-open",
    members: "gce-firewall-members",
    manager: "gce-firewall-manager",
};

/// Compute Engine's answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Its error, if no further call was possible.
    pub(super) unreachable: Option<String>,
    /// Calls that a pool needs but is not allowed to make, by their purpose.
    pub(super) denied: Vec<(&'static str, String)>,
    /// Offerings that Compute Engine would refuse, and why.
    pub(super) refused: Vec<(String, String)>,
    /// The number of further machines that the quotas of each region allow.
    pub(super) room: Vec<QuotaHeadroom>,
    /// The network, if none of its firewall rules allows inbound SSH.
    pub(super) closed: Option<String>,
    /// What firewall rules allow beyond SSH from the runner host.
    pub(super) exposures: Vec<Exposure>,
    /// Compute Engine's clock minus the runner host's, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
    /// Calls that only `doctor` needs but is not allowed to make.
    pub(super) not_checked: Vec<&'static str>,
}

/// The share of a region's quotas that one machine of an offering uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaUse<'a> {
    pub(super) machine_type: &'a str,
    pub(super) processors: u32,
    pub(super) spot: bool,
    pub(super) public_ip: bool,
}

/// The number of machines that the rest of the quotas allows, by the offering with the most headroom; quotas that the
/// region does not list have no limit.
pub(super) fn room(
    region: &str,
    left: &BTreeMap<String, f64>,
    takes: &[QuotaUse<'_>],
) -> Option<QuotaHeadroom> {
    let best = takes.iter().filter_map(|take| tightest(left, take)).max_by_key(|(machines, _)| *machines);
    best.map(|(machines, metric)| QuotaHeadroom { machines, of: format!("in {region} ({metric})") })
}

fn tightest(left: &BTreeMap<String, f64>, take: &QuotaUse<'_>) -> Option<(u32, String)> {
    let mut needs = vec![("INSTANCES".to_owned(), 1), (processors(left, take), take.processors)];
    if take.public_ip {
        needs.push(("IN_USE_ADDRESSES".to_owned(), 1));
    }
    let known =
        needs.into_iter().filter_map(|(metric, each)| Some((fits(*left.get(&metric)?, each), metric)));
    known.min_by_key(|(machines, _)| *machines)
}

/// The quota that processors count against: for spot, its own if the region has one; otherwise that of the family, or
/// the common one.
fn processors(left: &BTreeMap<String, f64>, take: &QuotaUse<'_>) -> String {
    let family = take.machine_type.split('-').next().unwrap_or_default().to_ascii_uppercase();
    let known = |metric: String| left.contains_key(&metric).then_some(metric);
    let spot = take.spot.then(|| known("PREEMPTIBLE_CPUS".to_owned())).flatten();
    spot.or_else(|| known(format!("{family}_CPUS"))).unwrap_or_else(|| "CPUS".to_owned())
}

/// The findings.
pub(super) fn judge(pool: &PoolName, facts: &Facts, demand: &Demand) -> Vec<Finding> {
    use Severity::{Error, Note, Warning};
    const PERMISSIONS: &str = "grant the account the role of docs/providers/gce.md";
    let mut found = Vec::new();
    let mut add = |code, severity, message: String, remedy: &str| {
        found.push(Finding { code, severity, message, remedy: Some(remedy.to_owned()) });
    };
    if demand.max_lifetime.is_none() {
        let message = format!(
            "`max_lifetime` of pool `{pool}` is 0: if this runner host is lost for good, its instances keep \
             running and cost money"
        );
        add(
            "gce-no-lifetime",
            Warning,
            message,
            "remove `max_lifetime` or set a limit: Compute Engine then terminates instances by itself",
        );
    }
    if let Some(off) = clock::off(facts.clock_ahead_s) {
        let message = format!(
            "the runner host's clock is {off} Compute Engine's: ages of instances are wrong, and requests \
             signed with a key may be rejected"
        );
        add("gce-clock", Warning, message, "synchronize the clock with NTP: `timedatectl set-ntp true`");
    }
    if let Some(error) = &facts.unreachable {
        let message = format!("cannot query Compute Engine for pool `{pool}`: {error}");
        add(
            "gce-unreachable",
            Error,
            message,
            "check credentials, project and network; docs/providers/gce.md lists the role's permissions",
        );
        return found;
    }
    for (purpose, error) in &facts.denied {
        add("gce-denied", Error, format!("pool `{pool}` is not allowed to {purpose}: {error}"), PERMISSIONS);
    }
    for (offerings, error) in group_by_message(&facts.refused) {
        let message = format!("Compute Engine would refuse {offerings} of pool `{pool}`: {error}");
        add("gce-refused", Error, message, "correct the pool's table, or remove the offering");
    }
    let wanted = demand.max_instances.saturating_sub(demand.recorded);
    if let Some(message) = shortage(pool, &facts.room, wanted) {
        add(
            "gce-quota",
            Warning,
            message,
            "request more quota from Google, add zones of other regions, or lower `max_instances`",
        );
    }
    if let Some(network) = &facts.closed {
        let message = format!(
            "no firewall rule of network `{network}` allows inbound traffic to pool `{pool}` on the SSH port"
        );
        add(
            "gce-firewall",
            Warning,
            message,
            "allow TCP to `ssh_port` from the runner host, unless a firewall policy does",
        );
    }
    for purpose in &facts.not_checked {
        let message =
            format!("doctor is not allowed to {purpose} for pool `{pool}`; the pool itself works without");
        add("gce-not-checked", Note, message, PERMISSIONS);
    }
    found.extend(inbound::judge(pool, &facts.exposures, EXPOSED));
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn codes(facts: &Facts, demand: &Demand) -> Vec<&'static str> {
        let found = judge(&PoolName::new("linux"), facts, demand);
        found.iter().map(|finding| finding.code).collect()
    }

    fn left(quotas: &[(&str, f64)]) -> BTreeMap<String, f64> {
        quotas.iter().map(|(metric, left)| ((*metric).to_owned(), *left)).collect()
    }

    #[test]
    fn a_pool_that_is_well_has_nothing_said_of_it() {
        let demand = Demand {
            max_instances: 8,
            recorded: 3,
            max_lifetime: Some(Duration::from_hours(12)),
            idle_stopped: 0,
        };
        let room = |machines| QuotaHeadroom { machines, of: "in r (CPUS)".to_owned() };
        let facts = Facts { room: vec![room(2), room(3)], ..Facts::default() };
        assert_eq!(codes(&facts, &demand), Vec::<&str>::new());
        assert_eq!(codes(&Facts { room: vec![room(2), room(2)], ..facts }, &demand), ["gce-quota"]);
    }

    #[test]
    fn each_trouble_has_its_code() {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None, idle_stopped: 0 };
        let facts = Facts {
            denied: vec![("list disks", "forbidden".to_owned())],
            refused: vec![("a".to_owned(), "no such type".to_owned())],
            closed: Some("default".to_owned()),
            exposures: vec![Exposure {
                rule: "network tag `ci`".to_owned(),
                allows: inbound::Allows::SharedWithManager,
            }],
            clock_ahead_s: Some(400),
            not_checked: vec!["list firewall rules"],
            ..Facts::default()
        };
        let wanted = [
            "gce-no-lifetime",
            "gce-clock",
            "gce-denied",
            "gce-refused",
            "gce-firewall",
            "gce-not-checked",
            "gce-firewall-manager",
        ];
        assert_eq!(codes(&facts, &demand), wanted);
        let silent = Facts { unreachable: Some("no credentials".to_owned()), ..facts };
        assert_eq!(codes(&silent, &demand), ["gce-no-lifetime", "gce-clock", "gce-unreachable"]);
    }

    #[test]
    fn the_tightest_quota_of_the_roomiest_way_counts() {
        let take = |machine_type, spot| QuotaUse { machine_type, processors: 4, spot, public_ip: false };
        let fits = |quotas: &[(&str, f64)], takes: &[QuotaUse<'_>]| {
            room("r", &left(quotas), takes).map(|room| format!("{} {}", room.machines, room.of))
        };
        let quotas = [("CPUS", 9.0), ("N2D_CPUS", 24.0), ("PREEMPTIBLE_CPUS", 100.0), ("INSTANCES", 20.0)];
        assert_eq!(fits(&quotas, &[take("e2-standard-4", false)]), Some("2 in r (CPUS)".to_owned()));
        assert_eq!(fits(&quotas, &[take("n2d-standard-4", false)]), Some("6 in r (N2D_CPUS)".to_owned()));
        let both = [take("e2-standard-4", false), take("e2-standard-4", true)];
        assert_eq!(fits(&quotas, &both), Some("20 in r (INSTANCES)".to_owned()));
        let public = QuotaUse { public_ip: true, ..take("e2-standard-4", true) };
        let addresses = [("IN_USE_ADDRESSES", 1.0), ("INSTANCES", 20.0)];
        assert_eq!(fits(&addresses, &[public]), Some("1 in r (IN_USE_ADDRESSES)".to_owned()));
        assert_eq!(fits(&[], &[take("e2-standard-4", true)]), None, "no quota, no limit");
    }
}
