//! What Compute Engine's answers mean for a pool, as findings of `doctor`.

use std::collections::BTreeMap;

use crate::core::ids::PoolName;
use crate::port::finding::{Finding, Severity};
use crate::port::provider::Demand;
use crate::provider::cloud::clock;
use crate::provider::cloud::doctor::group_by_message;
use crate::provider::cloud::headroom::{QuotaHeadroom, fits, shortage};

/// What Compute Engine answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Nothing else could be asked, in its words.
    pub(super) unreachable: Option<String>,
    /// Calls that a pool needs and that are not allowed, by what they are needed for.
    pub(super) denied: Vec<(&'static str, String)>,
    /// Offerings that would be refused, and why.
    pub(super) refused: Vec<(String, String)>,
    /// How many more machines the quotas of each region let in.
    pub(super) room: Vec<QuotaHeadroom>,
    /// The network in which no firewall rule lets anybody in on the SSH port.
    pub(super) closed: Option<String>,
    /// Compute Engine's clock less ours, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
    /// What only `doctor` asks, and may not.
    pub(super) unseen: Vec<&'static str>,
}

/// What one machine takes of the quotas of a region, in one way of launching it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaUse<'a> {
    pub(super) machine_type: &'a str,
    pub(super) processors: u32,
    pub(super) spot: bool,
    pub(super) public_ip: bool,
}

/// How many machines fit into what is left of each quota, each by the way that has the most room; quotas that are not
/// named have no end.
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

/// Under which quota processors are counted: spot ones under their own where the region has one, others under that of
/// their family, or the common one.
fn processors(left: &BTreeMap<String, f64>, take: &QuotaUse<'_>) -> String {
    let family = take.machine_type.split('-').next().unwrap_or_default().to_ascii_uppercase();
    let known = |metric: String| left.contains_key(&metric).then_some(metric);
    let spot = take.spot.then(|| known("PREEMPTIBLE_CPUS".to_owned())).flatten();
    spot.or_else(|| known(format!("{family}_CPUS"))).unwrap_or_else(|| "CPUS".to_owned())
}

/// What to say about it.
pub(super) fn judge(pool: &PoolName, facts: &Facts, demand: &Demand) -> Vec<Finding> {
    use Severity::{Error, Note, Warning};
    const PERMISSIONS: &str = "grant the account the role of docs/providers/gce.md";
    let mut found = Vec::new();
    let mut say = |code, severity, what: String, remedy: &str| {
        found.push(Finding { code, severity, message: what, remedy: Some(remedy.to_owned()) });
    };
    if demand.max_lifetime.is_none() {
        let what = format!(
            "pool `{pool}` has no `max_lifetime`: if this runner host is lost for good, its instances keep \
             running and cost money"
        );
        say(
            "gce-no-lifetime",
            Warning,
            what,
            "set `max_lifetime`: Compute Engine then terminates instances by itself",
        );
    }
    if let Some(off) = clock::off(facts.clock_ahead_s) {
        let what = format!(
            "the runner host's clock is {off} Compute Engine's: ages of instances are wrong, and requests \
             signed with a key may be rejected"
        );
        say("gce-clock", Warning, what, "synchronize the clock with NTP: `timedatectl set-ntp true`");
    }
    if let Some(words) = &facts.unreachable {
        let what = format!("cannot query Compute Engine for pool `{pool}`: {words}");
        say(
            "gce-unreachable",
            Error,
            what,
            "check credentials, project and network; docs/providers/gce.md lists the role's permissions",
        );
        return found;
    }
    for (purpose, words) in &facts.denied {
        say("gce-denied", Error, format!("pool `{pool}` is not allowed to {purpose}: {words}"), PERMISSIONS);
    }
    for (offerings, words) in group_by_message(&facts.refused) {
        let what = format!("Compute Engine would refuse {offerings} of pool `{pool}`: {words}");
        say("gce-refused", Error, what, "correct the pool's table, or remove the offering");
    }
    let wanted = demand.max_instances.saturating_sub(demand.recorded);
    if let Some(what) = shortage(pool, &facts.room, wanted) {
        say(
            "gce-quota",
            Warning,
            what,
            "request more quota from Google, add zones of other regions, or lower `max_instances`",
        );
    }
    if let Some(network) = &facts.closed {
        let what = format!(
            "no firewall rule of network `{network}` allows inbound traffic to pool `{pool}` on the SSH port"
        );
        say(
            "gce-firewall",
            Warning,
            what,
            "allow TCP to `ssh_port` from the runner host, unless a firewall policy does",
        );
    }
    for purpose in &facts.unseen {
        let what =
            format!("doctor is not allowed to {purpose} for pool `{pool}`; the pool itself works without");
        say("gce-not-checked", Note, what, PERMISSIONS);
    }
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
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: Some(Duration::from_hours(12)) };
        let room = |machines| QuotaHeadroom { machines, of: "in r (CPUS)".to_owned() };
        let facts = Facts { room: vec![room(2), room(3)], ..Facts::default() };
        assert_eq!(codes(&facts, &demand), Vec::<&str>::new());
        assert_eq!(codes(&Facts { room: vec![room(2), room(2)], ..facts }, &demand), ["gce-quota"]);
    }

    #[test]
    fn each_trouble_has_its_code() {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None };
        let facts = Facts {
            denied: vec![("list disks", "forbidden".to_owned())],
            refused: vec![("a".to_owned(), "no such type".to_owned())],
            closed: Some("default".to_owned()),
            clock_ahead_s: Some(400),
            unseen: vec!["list firewall rules"],
            ..Facts::default()
        };
        let wanted =
            ["gce-no-lifetime", "gce-clock", "gce-denied", "gce-refused", "gce-firewall", "gce-not-checked"];
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
