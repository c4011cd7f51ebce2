//! Findings of `doctor` from EC2's answers.

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::Demand;

use crate::cloud::clock;
use crate::cloud::doctor::group_by_message;
use crate::cloud::headroom::{QuotaHeadroom, shortage};
use crate::cloud::inbound::{self, Exposure};

const EXPOSED: inbound::Codes = inbound::Codes {
    world: "aws-ec2-group-open",
    members: "aws-ec2-group-members",
    manager: "aws-ec2-group-manager",
};

/// EC2's answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// EC2's error, if no further call was possible.
    pub(super) unreachable: Option<String>,
    /// Offerings that the account may not launch, with EC2's error.
    pub(super) denied: Vec<(String, String)>,
    /// Offerings that EC2 would refuse for another reason, with its error.
    pub(super) refused: Vec<(String, String)>,
    /// Free IPv4 addresses of all subnets; `None` if EC2 does not report them.
    pub(super) free_addresses: Option<u32>,
    /// The number of further machines that the quotas allow; empty if no limit is known.
    pub(super) room: Vec<QuotaHeadroom>,
    /// Why the quotas could not be checked; only `doctor` needs them.
    pub(super) not_checked: Option<String>,
    /// Denied calls without which the pool works, but knows no notices, by their purpose.
    pub(super) no_notices: Vec<(&'static str, String)>,
    /// Groups that allow no inbound SSH, if none of the pool's groups does.
    pub(super) closed_groups: Vec<String>,
    /// What the pool's groups allow beyond SSH from the runner host.
    pub(super) exposures: Vec<Exposure>,
    /// EC2's clock minus the runner host's, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
    /// Other failed calls, by their purpose.
    pub(super) failed: Vec<(&'static str, String)>,
}

/// The findings.
pub(super) fn judge(pool: &PoolName, facts: &Facts, demand: &Demand) -> Vec<Finding> {
    use Severity::{Error, Note, Warning};
    const PERMISSIONS: &str = "grant the account the permissions of docs/providers/aws-ec2.md";
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
            "aws-ec2-no-lifetime",
            Warning,
            message,
            "remove `max_lifetime` or set a limit: instances then shut themselves down",
        );
    }
    if let Some(error) = &facts.unreachable {
        let message = format!("cannot query EC2 for pool `{pool}`: {error}");
        add(
            "aws-ec2-unreachable",
            Error,
            message,
            "check credentials, region and network; docs/providers/aws-ec2.md lists the permissions",
        );
        return found;
    }
    for (offerings, error) in group_by_message(&facts.denied) {
        add(
            "aws-ec2-denied",
            Error,
            format!("pool `{pool}` is not allowed to launch {offerings}: {error}"),
            PERMISSIONS,
        );
    }
    for (offerings, error) in group_by_message(&facts.refused) {
        let message = format!("EC2 would refuse {offerings} of pool `{pool}`: {error}");
        add("aws-ec2-refused", Error, message, "correct the pool's table, or remove the offering");
    }
    for (purpose, error) in &facts.failed {
        add(
            "aws-ec2-denied",
            Error,
            format!("pool `{pool}` is not allowed to {purpose}: {error}"),
            PERMISSIONS,
        );
    }
    let wanted = demand.max_instances.saturating_sub(demand.recorded);
    if let Some(free) = facts.free_addresses.filter(|free| *free < wanted) {
        let message = format!(
            "the subnets of pool `{pool}` have {free} free addresses, but the pool may launch {wanted} more \
             instances"
        );
        add("aws-ec2-addresses", Warning, message, "add subnets or zones, or lower `max_instances`");
    }
    if let Some(message) = shortage(pool, &facts.room, wanted) {
        add(
            "aws-ec2-quota",
            Warning,
            message,
            "request an increase (Service Quotas, service `ec2`), add types of other classes, or lower \
             `max_instances`",
        );
    }
    if let Some(error) = &facts.not_checked {
        let message = format!(
            "doctor cannot check the quotas for pool `{pool}` (the pool itself works without): {error}"
        );
        let remedy = "grant the account the permissions for doctor in docs/providers/aws-ec2.md, and allow \
                      the runner host to reach Service Quotas";
        add("aws-ec2-not-checked", Note, message, remedy);
    }
    for (purpose, error) in &facts.no_notices {
        let message = format!("pool `{pool}` is not allowed to {purpose} (it works without): {error}");
        add("aws-ec2-notices-denied", Note, message, PERMISSIONS);
    }
    for group in &facts.closed_groups {
        let message =
            format!("security group {group} of pool `{pool}` allows no inbound traffic on the SSH port");
        let remedy =
            "allow TCP to `ssh_port` from the runner host (from its IPv6 range if `address` is \"ipv6\")";
        add("aws-ec2-group-closed", Error, message, remedy);
    }
    found.extend(inbound::judge(pool, &facts.exposures, EXPOSED));
    if let Some(off) = clock::off(facts.clock_ahead_s) {
        let message = format!(
            "the runner host's clock is {off} EC2's, and EC2 rejects requests that are signed five minutes \
             off"
        );
        let remedy = "synchronize the clock with NTP: `timedatectl set-ntp true`".to_owned();
        found.push(Finding { code: "aws-ec2-clock", severity: Error, message, remedy: Some(remedy) });
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

    #[test]
    fn a_pool_that_is_well_has_nothing_said_of_it() {
        let demand = Demand {
            max_instances: 8,
            recorded: 3,
            max_lifetime: Some(Duration::from_hours(12)),
            idle_stopped: 0,
        };
        let room = vec![QuotaHeadroom { machines: 5, of: "of m5.large (On-Demand Standard)".to_owned() }];
        let facts = Facts { room, free_addresses: Some(5), clock_ahead_s: Some(-150), ..Facts::default() };
        assert_eq!(codes(&facts, &demand), Vec::<&str>::new());
        assert_eq!(
            codes(&Facts { free_addresses: Some(4), ..facts.clone() }, &demand),
            ["aws-ec2-addresses"]
        );
        let demand = Demand { recorded: 2, ..demand };
        assert_eq!(codes(&Facts { free_addresses: Some(6), ..facts }, &demand), ["aws-ec2-quota"]);
    }

    #[test]
    fn each_trouble_has_its_code() {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None, idle_stopped: 0 };
        let facts = Facts {
            denied: vec![("a".to_owned(), "no".to_owned()), ("b".to_owned(), "no".to_owned())],
            refused: vec![("c".to_owned(), "no such type".to_owned())],
            free_addresses: Some(0),
            room: vec![QuotaHeadroom { machines: 0, of: "of m5.large (On-Demand Standard)".to_owned() }],
            not_checked: Some("AccessDeniedException".to_owned()),
            no_notices: vec![("list scheduled events", "UnauthorizedOperation".to_owned())],
            closed_groups: vec!["sg-1".to_owned()],
            exposures: vec![Exposure {
                rule: "security group sg-1".to_owned(),
                allows: inbound::Allows::SharedWithManager,
            }],
            clock_ahead_s: Some(400),
            failed: vec![("list volumes", "UnauthorizedOperation".to_owned())],
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
        let silent = Facts { unreachable: Some("no credentials".to_owned()), ..facts };
        assert_eq!(codes(&silent, &demand), ["aws-ec2-no-lifetime", "aws-ec2-unreachable"]);
    }
}
