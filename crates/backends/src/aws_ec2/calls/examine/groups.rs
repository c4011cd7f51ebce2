//! Checks the inbound rules of the pool's security groups: one of them must allow SSH, none should allow more.

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{IpPermission, SecurityGroup, Subnet};
use greenroom_core::failure::ErrorClass;

use super::super::super::findings::Facts;
use super::super::super::settings::Settings;
use super::super::errors;
use super::manager;
use crate::cloud::inbound::{self, Allows, Exposure};
use crate::cloud::settings::AddressKind;

pub(super) async fn look_up(client: &Client, settings: &Settings, subnets: &[Subnet], facts: &mut Facts) {
    let reply =
        client.describe_security_groups().set_group_ids(Some(settings.security_groups.clone())).send().await;
    let answer = match reply {
        Ok(answer) => answer,
        Err(error) => {
            let error = errors::read(&error, "");
            if *error.class() == ErrorClass::Denied {
                facts.failed.push(("describe security groups", error.failure.message));
            }
            return;
        }
    };
    let groups = answer.security_groups();
    facts.closed_groups = closed(groups, settings);
    let ranges: Vec<String> = subnets.iter().flat_map(ranges).collect();
    let allowed = groups.iter().flat_map(|group| exposures(group, &settings.security_groups, &ranges));
    facts.exposures.extend(allowed);
    let mut shared = manager::groups(client).await;
    shared.retain(|group| settings.security_groups.contains(group));
    let shared =
        shared.iter().map(|group| Exposure { rule: named(group), allows: Allows::SharedWithManager });
    facts.exposures.extend(shared);
}

/// The pool's groups, if none of them allows inbound SSH; otherwise empty.
fn closed(groups: &[SecurityGroup], settings: &Settings) -> Vec<String> {
    // One group is enough: a machine has all of them.
    if groups.iter().any(|group| group.ip_permissions().iter().any(|one| allows_ssh(one, settings))) {
        return Vec::new();
    }
    groups.iter().filter_map(|group| group.group_id().map(str::to_owned)).collect()
}

/// The ranges of addresses of a subnet's machines.
fn ranges(subnet: &Subnet) -> impl Iterator<Item = String> {
    let ipv6 = subnet.ipv6_cidr_block_association_set().iter().filter_map(|block| block.ipv6_cidr_block());
    subnet.cidr_block().into_iter().chain(ipv6).map(str::to_owned)
}

/// What a group allows beyond SSH from the runner host. Lists of prefixes are not looked up. `own`: the pool's groups.
fn exposures<'a>(
    group: &'a SecurityGroup,
    own: &'a [String],
    subnets: &'a [String],
) -> impl Iterator<Item = Exposure> + 'a {
    let rules = group.ip_permissions().iter();
    let rules = rules.filter(|rule| inbound::carries_data(rule.ip_protocol().unwrap_or_default()));
    let allowed = rules.flat_map(move |rule| {
        let ipv4 = rule.ip_ranges().iter().filter_map(|range| range.cidr_ip());
        let ipv6 = rule.ipv6_ranges().iter().filter_map(|range| range.cidr_ipv6());
        let of_ranges = ipv4.chain(ipv6).filter_map(move |range| inbound::of_range(range, subnets));
        let sources = rule.user_id_group_pairs().iter().filter_map(|pair| pair.group_id());
        let members = sources.filter(move |source| own.iter().any(|group| group == source));
        of_ranges.chain(members.map(|source| Allows::Members(source.to_owned())))
    });
    let rule = named(group.group_id().unwrap_or_default());
    allowed.map(move |allows| Exposure { rule: rule.clone(), allows })
}

fn named(group: &str) -> String {
    format!("security group {group}")
}

/// True if the permission allows inbound SSH, from any source with the kind of address that `address` sets.
fn allows_ssh(permission: &IpPermission, settings: &Settings) -> bool {
    let of_its_kind = match settings.common.address {
        AddressKind::Private | AddressKind::Public => !permission.ip_ranges().is_empty(),
        AddressKind::Ipv6 => !permission.ipv6_ranges().is_empty(),
    };
    // Lists of prefixes and groups of machines may have addresses of both kinds.
    let of_any = !permission.prefix_list_ids().is_empty() || !permission.user_id_group_pairs().is_empty();
    (of_its_kind || of_any) && opens(permission, i32::from(settings.common.ssh_port))
}

fn opens(permission: &IpPermission, port: i32) -> bool {
    match permission.ip_protocol() {
        Some("-1") => true,
        Some("tcp" | "6") => {
            permission.from_port().is_none_or(|from| from <= port)
                && permission.to_port().is_none_or(|to| port <= to)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::builders::IpPermissionBuilder;
    use aws_sdk_ec2::types::{IpRange, Ipv6Range, UserIdGroupPair};
    use greenroom_core::ids::PoolName;

    use super::*;

    fn settings(address: &str) -> Settings {
        let text = "image = \"ami-0a000000000000001\"\ninstance_types = \"m7i.large\"\nsubnets = \"subnet-1\"\n\
                    security_groups = \"sg-0a1b2c3d\"";
        let text = format!("{text}\naddress = \"{address}\"");
        Settings::read(&PoolName::new("linux"), &text.parse().unwrap()).unwrap()
    }

    fn tcp(from: i32, to: i32) -> IpPermissionBuilder {
        IpPermission::builder().ip_protocol("tcp").from_port(from).to_port(to)
    }

    #[test]
    fn a_permission_counts_for_its_ports_and_its_kind_of_address() {
        let ipv4 = || IpRange::builder().cidr_ip("0.0.0.0/0").build();
        let ipv6 = || Ipv6Range::builder().cidr_ipv6("::/0").build();
        let members = UserIdGroupPair::builder().group_id("sg-0a1b2c3d").build();
        let all = IpPermission::builder().ip_protocol("-1");
        for (permission, by_ipv4, by_ipv6) in [
            (tcp(22, 22).ip_ranges(ipv4()), true, false),
            (tcp(22, 22).ipv6_ranges(ipv6()), false, true),
            (tcp(1, 65535).ip_ranges(ipv4()).ipv6_ranges(ipv6()), true, true),
            (tcp(80, 443).ip_ranges(ipv4()).ipv6_ranges(ipv6()), false, false),
            (all.clone().ipv6_ranges(ipv6()), false, true),
            (all.user_id_group_pairs(members), true, true),
            (tcp(22, 22), false, false),
        ] {
            let permission = permission.build();
            for (address, wanted) in [("private", by_ipv4), ("public", by_ipv4), ("ipv6", by_ipv6)] {
                assert_eq!(allows_ssh(&permission, &settings(address)), wanted, "{address}: {permission:?}");
            }
        }
    }

    #[test]
    fn a_group_is_open_to_the_world_to_its_members_or_to_neither() {
        let own = ["sg-0a1b2c3d", "sg-00000002"].map(str::to_owned);
        let subnets = ["10.1.2.0/24".to_owned()];
        let ipv4 = |range: &str| IpRange::builder().cidr_ip(range).build();
        let ipv6 = |range: &str| Ipv6Range::builder().cidr_ipv6(range).build();
        let pair = |id: &str| UserIdGroupPair::builder().group_id(id).build();
        let icmp = IpPermission::builder().ip_protocol("icmp").ip_ranges(ipv4("0.0.0.0/0"));
        let all = IpPermission::builder().ip_protocol("-1");
        let (world, members) = (Allows::World, Allows::Members);
        for (permission, wanted) in [
            (tcp(22, 22).ip_ranges(ipv4("10.1.2.7/32")).ipv6_ranges(ipv6("2001:db8::7/128")), vec![]),
            (tcp(22, 22).ip_ranges(ipv4("0.0.0.0/0")), vec![world("0.0.0.0/0".to_owned())]),
            (tcp(80, 80).ipv6_ranges(ipv6("::/0")), vec![world("::/0".to_owned())]),
            (icmp, vec![]),
            (tcp(22, 22).ip_ranges(ipv4("10.0.0.0/8")), vec![members("10.0.0.0/8".to_owned())]),
            (all.clone().user_id_group_pairs(pair("sg-0a1b2c3d")), vec![members("sg-0a1b2c3d".to_owned())]),
            (tcp(1, 2).user_id_group_pairs(pair("sg-00000002")), vec![members("sg-00000002".to_owned())]),
            (all.user_id_group_pairs(pair("sg-0000dead")), vec![]),
        ] {
            let group = SecurityGroup::builder().group_id("sg-0a1b2c3d").ip_permissions(permission.build());
            let found = exposures(&group.build(), &own, &subnets).collect::<Vec<_>>();
            let rule = || "security group sg-0a1b2c3d".to_owned();
            let wanted: Vec<_> = wanted.into_iter().map(|allows| Exposure { rule: rule(), allows }).collect();
            assert_eq!(found, wanted);
        }
    }
}
