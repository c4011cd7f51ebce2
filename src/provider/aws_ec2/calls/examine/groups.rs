//! Checks whether any of the pool's security groups allows inbound SSH.

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::IpPermission;

use super::super::super::findings::Facts;
use super::super::super::settings::Settings;
use super::super::errors;
use crate::core::failure::ErrorClass;
use crate::provider::cloud::settings::AddressKind;

/// The pool's groups, if none of them allows inbound SSH; otherwise empty.
pub(super) async fn closed(client: &Client, settings: &Settings, facts: &mut Facts) -> Vec<String> {
    if settings.security_groups.is_empty() {
        return Vec::new();
    }
    let reply =
        client.describe_security_groups().set_group_ids(Some(settings.security_groups.clone())).send().await;
    let answer = match reply {
        Ok(answer) => answer,
        Err(error) => {
            let error = errors::read(&error, "");
            if *error.class() == ErrorClass::Denied {
                facts.failed.push(("describe security groups", error.failure.message));
            }
            return Vec::new();
        }
    };
    let groups = answer.security_groups();
    // One group is enough: a machine has all of them.
    if groups.iter().any(|group| group.ip_permissions().iter().any(|one| allows_ssh(one, settings))) {
        return Vec::new();
    }
    groups.iter().filter_map(|group| group.group_id().map(str::to_owned)).collect()
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

    use super::*;
    use crate::core::ids::PoolName;

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
}
