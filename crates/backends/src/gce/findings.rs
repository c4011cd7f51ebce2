//! Findings of `doctor` from Compute Engine's answers.

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::Demand;

use crate::cloud::findings::{PoolFindings, QuotaHeadroom};
use crate::cloud::inbound::{self, Exposure};

const EXPOSED: inbound::InboundCodes = inbound::InboundCodes {
    world: "gce-firewall-open",
    members: "gce-firewall-members",
    manager: "gce-firewall-manager",
};

/// Compute Engine's answers.
#[derive(Debug, Clone, Default)]
pub(super) struct ComputeEngineFacts {
    /// Compute Engine's error, if no further call was possible.
    pub(super) unreachable: Option<String>,
    /// Calls that a pool needs but is not allowed to make, by their purpose.
    pub(super) denied_calls: Vec<(&'static str, String)>,
    /// Offerings that Compute Engine would refuse, and why.
    pub(super) refused: Vec<(String, String)>,
    /// The number of further machines that the quotas of each region allow.
    pub(super) headroom: Vec<QuotaHeadroom>,
    /// The network, if none of its firewall rules allows inbound SSH.
    pub(super) closed: Option<String>,
    /// The accesses that firewall rules allow beyond SSH from the runner host.
    pub(super) exposures: Vec<Exposure>,
    /// Compute Engine's clock minus the runner host's, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
    /// Calls that only `doctor` needs but is not allowed to make.
    pub(super) not_checked: Vec<&'static str>,
}

/// The findings.
pub(super) fn judge(pool: &PoolName, facts: &ComputeEngineFacts, demand: &Demand) -> Vec<Finding> {
    use Severity::Warning;
    const PERMISSIONS: &str = "grant the account the role of docs/providers/gce.md";
    let mut found = PoolFindings::new(pool);
    let loss = "instances keep running and cost money";
    let effect = "Compute Engine then terminates instances by itself";
    found.check_lifetime("gce-no-lifetime", demand, loss, effect);
    let service =
        "Compute Engine's: ages of instances are wrong, and requests signed with a key may be rejected";
    found.check_clock("gce-clock", Warning, facts.clock_ahead_s, service);
    if let Some(error) = &facts.unreachable {
        let remedy =
            "check credentials, project and network; docs/providers/gce.md lists the role's permissions";
        found.unreachable("gce-unreachable", "Compute Engine", error, remedy);
        return found.into_vec();
    }
    found.denied_calls("gce-denied", &facts.denied_calls, PERMISSIONS);
    let remedy = "correct the pool's table, or remove the offering";
    found.refused_offerings("gce-refused", "Compute Engine", &facts.refused, remedy);
    let remedy = "request more quota from Google, add zones of other regions, or lower `max_instances`";
    found.check_quotas("gce-quota", &facts.headroom, demand, remedy);
    if let Some(network) = &facts.closed {
        let message = format!(
            "no firewall rule of network `{network}` allows inbound traffic to pool `{pool}` on the SSH port"
        );
        let remedy = "allow TCP to `ssh_port` from the runner host, unless a firewall policy does";
        found.add("gce-firewall", Warning, message, remedy);
    }
    found.not_checked("gce-not-checked", &facts.not_checked, PERMISSIONS);
    found.extend(inbound::judge(pool, &facts.exposures, EXPOSED));
    found.into_vec()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn codes(facts: &ComputeEngineFacts, demand: &Demand) -> Vec<&'static str> {
        let found = judge(&PoolName::new("linux"), facts, demand);
        found.iter().map(|finding| finding.code).collect()
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
        let facts = ComputeEngineFacts { headroom: vec![room(2), room(3)], ..ComputeEngineFacts::default() };
        assert_eq!(codes(&facts, &demand), Vec::<&str>::new());
        assert_eq!(
            codes(&ComputeEngineFacts { headroom: vec![room(2), room(2)], ..facts }, &demand),
            ["gce-quota"]
        );
    }

    #[test]
    fn each_trouble_has_its_code() {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None, idle_stopped: 0 };
        let facts = ComputeEngineFacts {
            denied_calls: vec![("list disks", "forbidden".to_owned())],
            refused: vec![("a".to_owned(), "no such type".to_owned())],
            closed: Some("default".to_owned()),
            exposures: vec![Exposure {
                rule: "network tag `ci`".to_owned(),
                allows: inbound::Allows::SharedWithManager,
            }],
            clock_ahead_s: Some(400),
            not_checked: vec!["list firewall rules"],
            ..ComputeEngineFacts::default()
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
        let silent = ComputeEngineFacts { unreachable: Some("no credentials".to_owned()), ..facts };
        assert_eq!(codes(&silent, &demand), ["gce-no-lifetime", "gce-clock", "gce-unreachable"]);
    }
}
