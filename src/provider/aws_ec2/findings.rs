//! What EC2's answers mean for a pool, as findings of `doctor`.

use crate::core::ids::PoolName;
use crate::port::finding::{Finding, Severity};
use crate::port::provider::Demand;
use crate::provider::cloud::clock;
use crate::provider::cloud::doctor::group_by_message;
use crate::provider::cloud::headroom::{QuotaHeadroom, shortage};

/// What EC2 answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Nothing else could be asked, in EC2's words.
    pub(super) unreachable: Option<String>,
    /// Offerings that the account may not launch, in EC2's words.
    pub(super) denied: Vec<(String, String)>,
    /// Offerings that would be refused for another reason.
    pub(super) refused: Vec<(String, String)>,
    /// IPv4 addresses left in all subnets together; `None`: EC2 does not tell.
    pub(super) free_addresses: Option<u32>,
    /// How many more machines the quotas let in; none: no end is known.
    pub(super) room: Vec<QuotaHeadroom>,
    /// Why quotas could not be looked at: only `doctor` asks.
    pub(super) unseen: Option<String>,
    /// Groups that let nobody in on the SSH port, by the kind of address that is used.
    pub(super) closed_groups: Vec<String>,
    /// EC2's clock less ours, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
    /// Other calls that failed, by what they are needed for.
    pub(super) failed: Vec<(&'static str, String)>,
}

/// What to say about it.
pub(super) fn judge(pool: &PoolName, facts: &Facts, demand: &Demand) -> Vec<Finding> {
    use Severity::{Error, Note, Warning};
    const PERMISSIONS: &str = "grant the account the permissions of docs/providers/aws-ec2.md";
    let mut found = Vec::new();
    let mut say = |code, severity, what: String, remedy: &str| {
        found.push(Finding { code, severity, message: what, remedy: Some(remedy.to_owned()) });
    };
    if demand.max_lifetime.is_none() {
        let what = format!(
            "pool `{pool}` has no `max_lifetime`: if this runner host is lost for good, its instances keep \
             running and cost money"
        );
        say("aws-ec2-no-lifetime", Warning, what, "set `max_lifetime`: instances then shut themselves down");
    }
    if let Some(words) = &facts.unreachable {
        let what = format!("cannot query EC2 for pool `{pool}`: {words}");
        say(
            "aws-ec2-unreachable",
            Error,
            what,
            "check credentials, region and network; docs/providers/aws-ec2.md lists the permissions",
        );
        return found;
    }
    for (offerings, words) in group_by_message(&facts.denied) {
        say(
            "aws-ec2-denied",
            Error,
            format!("pool `{pool}` is not allowed to launch {offerings}: {words}"),
            PERMISSIONS,
        );
    }
    for (offerings, words) in group_by_message(&facts.refused) {
        let what = format!("EC2 would refuse {offerings} of pool `{pool}`: {words}");
        say("aws-ec2-refused", Error, what, "correct the pool's table, or remove the offering");
    }
    for (purpose, words) in &facts.failed {
        say(
            "aws-ec2-denied",
            Error,
            format!("pool `{pool}` is not allowed to {purpose}: {words}"),
            PERMISSIONS,
        );
    }
    let wanted = demand.max_instances.saturating_sub(demand.recorded);
    if let Some(free) = facts.free_addresses.filter(|free| *free < wanted) {
        let what = format!(
            "the subnets of pool `{pool}` have {free} free addresses, but the pool may launch {wanted} more \
             instances"
        );
        say("aws-ec2-addresses", Warning, what, "add subnets or zones, or lower `max_instances`");
    }
    if let Some(what) = shortage(pool, &facts.room, wanted) {
        say(
            "aws-ec2-quota",
            Warning,
            what,
            "request an increase (Service Quotas, service `ec2`), add types of other classes, or lower \
             `max_instances`",
        );
    }
    if let Some(words) = &facts.unseen {
        let what = format!(
            "doctor cannot check the quotas for pool `{pool}` (the pool itself works without): {words}"
        );
        let remedy = "grant the account the permissions for doctor in docs/providers/aws-ec2.md, and allow \
                      the runner host to reach Service Quotas";
        say("aws-ec2-not-checked", Note, what, remedy);
    }
    for group in &facts.closed_groups {
        let what =
            format!("security group {group} of pool `{pool}` allows no inbound traffic on the SSH port");
        let remedy =
            "allow TCP to `ssh_port` from the runner host (from its IPv6 range if `address` is \"ipv6\")";
        say("aws-ec2-group-closed", Error, what, remedy);
    }
    if let Some(off) = clock::off(facts.clock_ahead_s) {
        let what = format!(
            "the runner host's clock is {off} EC2's, and EC2 rejects requests that are signed five minutes \
             off"
        );
        say("aws-ec2-clock", Error, what, "synchronize the clock with NTP: `timedatectl set-ntp true`");
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
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: Some(Duration::from_hours(12)) };
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
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None };
        let facts = Facts {
            denied: vec![("a".to_owned(), "no".to_owned()), ("b".to_owned(), "no".to_owned())],
            refused: vec![("c".to_owned(), "no such type".to_owned())],
            free_addresses: Some(0),
            room: vec![QuotaHeadroom { machines: 0, of: "of m5.large (On-Demand Standard)".to_owned() }],
            unseen: Some("AccessDeniedException".to_owned()),
            closed_groups: vec!["sg-1".to_owned()],
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
            "aws-ec2-group-closed",
            "aws-ec2-clock",
        ];
        assert_eq!(codes(&facts, &demand), wanted);
        let silent = Facts { unreachable: Some("no credentials".to_owned()), ..facts };
        assert_eq!(codes(&silent, &demand), ["aws-ec2-no-lifetime", "aws-ec2-unreachable"]);
    }
}
