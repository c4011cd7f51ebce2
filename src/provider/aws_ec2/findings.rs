//! What EC2's answers mean for a pool, as findings of `doctor`.

use crate::core::ids::PoolName;
use crate::port::finding::{Finding, Severity};
use crate::port::provider::Demand;
use crate::provider::cloud::clock;

/// How a launch would be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rehearsal {
    Allowed,
    /// The account may not do it, in EC2's words.
    Denied(String),
    /// It would be refused for another reason.
    Refused(String),
}

/// What EC2 answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Nothing else could be asked, in EC2's words.
    pub(super) unreachable: Option<String>,
    /// By candidate.
    pub(super) rehearsals: Vec<(String, Rehearsal)>,
    /// Addresses left in all subnets together; `None`: they are not ours to name.
    pub(super) free_addresses: Option<u32>,
    /// Processors that `max_instances` of the largest type would have.
    pub(super) processors: Option<u32>,
    /// Groups that let nobody in on the SSH port.
    pub(super) closed_groups: Vec<String>,
    /// EC2's clock less ours, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
    /// Other calls that failed, by what they are needed for.
    pub(super) failed: Vec<(&'static str, String)>,
}

/// What to say about it.
pub(super) fn judge(pool: &PoolName, facts: &Facts, demand: &Demand) -> Vec<Finding> {
    use Severity::{Error, Note, Warning};
    let mut found = Vec::new();
    let mut say = |code, severity, what: String, remedy: &str| {
        found.push(Finding { code, severity, what, remedy: Some(remedy.to_owned()) });
    };
    if demand.max_lifetime.is_none() {
        let what = format!(
            "pool `{pool}` has no `max_lifetime`: should this manager be gone for good, its machines run on, and cost"
        );
        say("aws-ec2-no-lifetime", Warning, what, "set `max_lifetime`: machines then end by themselves");
    }
    if let Some(words) = &facts.unreachable {
        let what = format!("EC2 cannot be asked about pool `{pool}`: {words}");
        say(
            "aws-ec2-unreachable",
            Error,
            what,
            "see to credentials, region and network; docs/providers/aws-ec2.md has the permissions",
        );
        return found;
    }
    for (candidate, rehearsal) in &facts.rehearsals {
        match rehearsal {
            Rehearsal::Allowed => {}
            Rehearsal::Denied(words) => {
                let what = format!("pool `{pool}` may not launch {candidate}: {words}");
                say(
                    "aws-ec2-denied",
                    Error,
                    what,
                    "give the account the permissions of docs/providers/aws-ec2.md",
                );
            }
            Rehearsal::Refused(words) => {
                let what = format!("EC2 would refuse {candidate} of pool `{pool}`: {words}");
                say("aws-ec2-refused", Error, what, "correct the pool's table, or take the candidate out");
            }
        }
    }
    for (purpose, words) in &facts.failed {
        let what = format!("pool `{pool}` may not {purpose}: {words}");
        say("aws-ec2-denied", Error, what, "give the account the permissions of docs/providers/aws-ec2.md");
    }
    let wanted = demand.max_instances.saturating_sub(demand.recorded);
    if let Some(free) = facts.free_addresses.filter(|free| *free < wanted) {
        let what = format!(
            "the subnets of pool `{pool}` have {free} addresses left, and {wanted} more machines may come"
        );
        say("aws-ec2-addresses", Warning, what, "name more subnets, or lower `max_instances`");
    }
    if let Some(processors) = facts.processors {
        let what = format!(
            "pool `{pool}` may come to {processors} vCPUs; EC2 tells its limits to another service only, which doctor does not ask"
        );
        say(
            "aws-ec2-quota",
            Note,
            what,
            "`aws service-quotas list-service-quotas --service-code ec2` shows the limits of the account",
        );
    }
    for group in &facts.closed_groups {
        let what = format!("security group {group} of pool `{pool}` lets nobody in on the SSH port");
        say("aws-ec2-group-closed", Error, what, "allow TCP to `ssh_port` from this machine");
    }
    if let Some(off) = clock::off(facts.clock_ahead_s) {
        let what =
            format!("this machine's clock is {off} EC2's, which refuses what is signed five minutes off");
        say("aws-ec2-clock", Error, what, "have the clock set by NTP: `timedatectl set-ntp true`");
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
        let rehearsals = vec![("a".to_owned(), Rehearsal::Allowed)];
        let facts =
            Facts { rehearsals, free_addresses: Some(5), clock_ahead_s: Some(-150), ..Facts::default() };
        assert_eq!(codes(&facts, &demand), Vec::<&str>::new());
        assert_eq!(codes(&Facts { free_addresses: Some(4), ..facts }, &demand), ["aws-ec2-addresses"]);
    }

    #[test]
    fn each_trouble_has_its_code() {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None };
        let facts = Facts {
            rehearsals: vec![
                ("a".to_owned(), Rehearsal::Denied("no".to_owned())),
                ("b".to_owned(), Rehearsal::Refused("no such type".to_owned())),
            ],
            free_addresses: Some(0),
            processors: Some(32),
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
            "aws-ec2-group-closed",
            "aws-ec2-clock",
        ];
        assert_eq!(codes(&facts, &demand), wanted);
        let silent = Facts { unreachable: Some("no credentials".to_owned()), ..facts };
        assert_eq!(codes(&silent, &demand), ["aws-ec2-no-lifetime", "aws-ec2-unreachable"]);
    }
}
