//! Findings of `doctor` from EC2's answers.

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::Demand;

use crate::cloud::findings::{PoolFindings, QuotaHeadroom, further_instances, group_by_message};
use crate::cloud::inbound::{self, Exposure};

const EXPOSED: inbound::InboundCodes = inbound::InboundCodes {
    world: "aws-ec2-group-open",
    members: "aws-ec2-group-members",
    manager: "aws-ec2-group-manager",
};

const PERMISSIONS: &str = "grant the account the permissions of docs/providers/aws-ec2.md";

/// EC2's answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Ec2Facts {
    /// EC2's error, if no further call was possible.
    pub(super) unreachable: Option<String>,
    /// Offerings that the account may not launch, with EC2's error.
    pub(super) denied: Vec<(String, String)>,
    /// Offerings that EC2 would refuse for another reason, with its error.
    pub(super) refused: Vec<(String, String)>,
    /// Free IPv4 addresses of all subnets; `None` if EC2 does not report them.
    pub(super) free_addresses: Option<u32>,
    /// The number of further machines that the quotas allow; empty if no limit is known.
    pub(super) headroom: Vec<QuotaHeadroom>,
    /// The error of the check of quotas, which only `doctor` needs.
    pub(super) not_checked: Option<String>,
    /// Denied calls without which the pool works, but knows no notices, by their purpose.
    pub(super) no_notices: Vec<(&'static str, String)>,
    /// Groups that allow no inbound SSH, if none of the pool's groups does.
    pub(super) closed_groups: Vec<String>,
    /// The accesses that the pool's groups allow beyond SSH from the runner host.
    pub(super) exposures: Vec<Exposure>,
    /// EC2's clock minus the runner host's, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
    /// Calls that a pool needs and may not make, by their purpose.
    pub(super) denied_calls: Vec<(&'static str, String)>,
}

/// The findings.
pub(super) fn judge(pool: &PoolName, facts: &Ec2Facts, demand: &Demand) -> Vec<Finding> {
    use Severity::{Error, Note, Warning};
    let mut found = PoolFindings::new(pool);
    let loss = "instances keep running and cost money";
    found.check_lifetime("aws-ec2-no-lifetime", demand, loss, "instances then shut themselves down");
    if let Some(error) = &facts.unreachable {
        let remedy = "check credentials, region and network; docs/providers/aws-ec2.md lists the permissions";
        found.unreachable("aws-ec2-unreachable", "EC2", error, remedy);
        return found.into_vec();
    }
    for (offerings, error) in group_by_message(&facts.denied) {
        let message = format!("pool `{pool}` is not allowed to launch {offerings}: {error}");
        found.add("aws-ec2-denied", Error, message, PERMISSIONS);
    }
    let remedy = "correct the pool's table, or remove the offering";
    found.refused_offerings("aws-ec2-refused", "EC2", &facts.refused, remedy);
    found.denied_calls("aws-ec2-denied", &facts.denied_calls, PERMISSIONS);
    let wanted = further_instances(demand);
    if let Some(free) = facts.free_addresses.filter(|free| *free < wanted) {
        let message = format!(
            "the subnets of pool `{pool}` have {free} free addresses, but the pool may launch {wanted} more \
             instances"
        );
        let remedy = "add subnets or zones, or lower `max_instances`";
        found.add("aws-ec2-addresses", Warning, message, remedy);
    }
    let remedy = "request an increase (Service Quotas, service `ec2`), add types of other classes, or lower \
                  `max_instances`";
    found.check_quotas("aws-ec2-quota", &facts.headroom, demand, remedy);
    if let Some(error) = &facts.not_checked {
        let message = format!(
            "doctor cannot check the quotas for pool `{pool}` (the pool itself works without): {error}"
        );
        let remedy = "grant the account the permissions for doctor in docs/providers/aws-ec2.md, and allow \
                      the runner host to reach Service Quotas";
        found.add("aws-ec2-not-checked", Note, message, remedy);
    }
    for (purpose, error) in &facts.no_notices {
        let message = format!("pool `{pool}` is not allowed to {purpose} (it works without): {error}");
        found.add("aws-ec2-notices-denied", Note, message, PERMISSIONS);
    }
    for group in &facts.closed_groups {
        let message =
            format!("security group {group} of pool `{pool}` allows no inbound traffic on the SSH port");
        let remedy =
            "allow TCP to `ssh_port` from the runner host (from its IPv6 range if `address` is \"ipv6\")";
        found.add("aws-ec2-group-closed", Error, message, remedy);
    }
    found.extend(inbound::judge(pool, &facts.exposures, EXPOSED));
    let service = "EC2's, and EC2 rejects requests that are signed five minutes off";
    found.check_clock("aws-ec2-clock", Error, facts.clock_ahead_s, service);
    found.into_vec()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn codes(facts: &Ec2Facts, demand: &Demand) -> Vec<&'static str> {
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
        let headroom = vec![QuotaHeadroom { machines: 5, of: "of m5.large (On-Demand Standard)".to_owned() }];
        let facts =
            Ec2Facts { headroom, free_addresses: Some(5), clock_ahead_s: Some(-150), ..Ec2Facts::default() };
        assert_eq!(codes(&facts, &demand), Vec::<&str>::new());
        assert_eq!(
            codes(&Ec2Facts { free_addresses: Some(4), ..facts.clone() }, &demand),
            ["aws-ec2-addresses"]
        );
        let demand = Demand { recorded: 2, ..demand };
        assert_eq!(codes(&Ec2Facts { free_addresses: Some(6), ..facts }, &demand), ["aws-ec2-quota"]);
    }

    #[test]
    fn each_trouble_has_its_code() {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None, idle_stopped: 0 };
        let facts = Ec2Facts {
            denied: vec![("a".to_owned(), "no".to_owned()), ("b".to_owned(), "no".to_owned())],
            refused: vec![("c".to_owned(), "no such type".to_owned())],
            free_addresses: Some(0),
            headroom: vec![QuotaHeadroom { machines: 0, of: "of m5.large (On-Demand Standard)".to_owned() }],
            not_checked: Some("AccessDeniedException".to_owned()),
            no_notices: vec![("list scheduled events", "UnauthorizedOperation".to_owned())],
            closed_groups: vec!["sg-1".to_owned()],
            exposures: vec![Exposure {
                rule: "security group sg-1".to_owned(),
                allows: inbound::Allows::SharedWithManager,
            }],
            clock_ahead_s: Some(400),
            denied_calls: vec![("list volumes", "UnauthorizedOperation".to_owned())],
            unreachable: None,
        };
        let wanted = [
            "aws-ec2-no-lifetime",
            "aws-ec2-denied",
            "aws-ec2-refused",
            "aws-ec2-denied",
            "aws-ec2-addresses",
            "aws-ec2-quota",
            "aws-ec2-not-checked",
            "aws-ec2-notices-denied",
            "aws-ec2-group-closed",
            "aws-ec2-group-manager",
            "aws-ec2-clock",
        ];
        assert_eq!(codes(&facts, &demand), wanted);
        let silent = Ec2Facts { unreachable: Some("no credentials".to_owned()), ..facts };
        assert_eq!(codes(&silent, &demand), ["aws-ec2-no-lifetime", "aws-ec2-unreachable"]);
    }
}
