//! Calls of EC2 and Service Quotas for `doctor`; they launch nothing.
//!
//! One of the pool's security groups must allow SSH, none should allow more, and none should be the runner host's.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{
    Filter, Instance, InstanceNetworkInterface, IpPermission, Reservation, SecurityGroup, Subnet,
};
use futures_util::future::join;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::PoolName;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, ProviderError};

use super::client::{Ec2Clients, ServerClock};
use super::errors;
use super::launch_spec::{ImageDisks, LaunchSpec};
use crate::aws_ec2::findings::{Ec2Facts, judge};
use crate::aws_ec2::settings::Settings;
use crate::cloud::findings::sample_request;
use crate::cloud::inbound::{self, Allows, Exposure};
use crate::cloud::offerings::{Market, Offering};
use crate::cloud::settings::AddressKind;

mod quotas;

/// Maximum number of rehearsed offerings: each is a call.
const REHEARSED: usize = 12;
/// EC2's answer to a dry run that would succeed.
const WOULD_SUCCEED: &str = "DryRunOperation";

pub(super) async fn examine(
    clients: &Ec2Clients,
    settings: &Settings,
    pool: &PoolName,
    demand: &Demand,
) -> Vec<Finding> {
    let client = &clients.ec2;
    let mut facts = Ec2Facts::default();
    let clock = ServerClock::default();
    // A pool cannot work without this list, so a failure ends the examination.
    let first =
        client.describe_instances().max_results(5).customize().interceptor(clock.clone()).send().await;
    facts.clock_ahead_s = clock.ahead_s(SystemTime::now());
    match first {
        Ok(_) => {
            let room = Box::pin(quotas::look_up(clients, settings));
            match join(check(client, settings, pool, &mut facts), room).await.1 {
                Ok(room) => facts.headroom = room,
                Err(error) => facts.not_checked = Some(error.failure.message),
            }
        }
        Err(error) => facts.unreachable = Some(errors::read(&error, "").failure.message),
    }
    judge(pool, &facts, demand)
}

async fn check(client: &Client, settings: &Settings, pool: &PoolName, facts: &mut Ec2Facts) {
    let images = ImageDisks::default();
    for offering in settings.common.offerings.iter().take(REHEARSED) {
        let Err(error) = rehearse(client, settings, pool, &images, offering).await else { continue };
        match error.class() {
            // A temporary lack of capacity is not an error in the table.
            ErrorClass::NoCapacity { .. } => {}
            ErrorClass::Denied => facts.denied.push((offering.name.to_string(), error.failure.message)),
            _ => facts.refused.push((offering.name.to_string(), error.failure.message)),
        }
    }
    let subnets = subnets(client, settings, facts).await;
    facts.free_addresses = subnets.as_deref().map(free_addresses);
    look_up_groups(client, settings, &subnets.unwrap_or_default(), facts).await;
    if let Err(error) = client.describe_volumes().max_results(5).send().await {
        facts.denied_calls.push(("list volumes", errors::read(&error, "").failure.message));
    }
    facts.no_notices = no_notices(client, settings).await;
}

/// The lists of notices that the account may not make. Another error says nothing about the account.
async fn no_notices(client: &Client, settings: &Settings) -> Vec<(&'static str, String)> {
    let mut failed = Vec::new();
    if let Err(error) = client.describe_instance_status().max_results(5).send().await {
        failed.push(("list scheduled events", errors::read(&error, "")));
    }
    let is_spot = |offering: &Offering| offering.market == Market::Spot;
    if settings.common.offerings.iter().any(is_spot)
        && let Err(error) = client.describe_spot_instance_requests().max_results(5).send().await
    {
        failed.push(("list spot requests", errors::read(&error, "")));
    }
    failed.retain(|(_, error)| *error.class() == ErrorClass::Denied);
    failed.into_iter().map(|(purpose, error)| (purpose, error.failure.message)).collect()
}

/// The launch itself, as a dry run.
async fn rehearse(
    client: &Client,
    settings: &Settings,
    pool: &PoolName,
    images: &ImageDisks,
    offering: &Offering,
) -> Result<(), ProviderError> {
    // A token that was used before would answer for another offering.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let token = format!("doctor/{now}/{}", offering.name);
    let request = LaunchRequest { token, offering: Some(offering.name.clone()), ..sample_request(pool) };
    let spec = LaunchSpec::new(settings, &request, offering)?;
    let disks = images.disks(client, &spec.image).await?;
    match spec.call(client, &disks).dry_run(true).send().await {
        Ok(_) => Ok(()),
        Err(error) if errors::code(&error) == Some(WOULD_SUCCEED) => Ok(()),
        Err(error) => Err(errors::read(&error, &spec.scope())),
    }
}

/// The pool's subnets and the default subnets of its zones. `None` if EC2 does not report them.
async fn subnets(client: &Client, settings: &Settings, facts: &mut Ec2Facts) -> Option<Vec<Subnet>> {
    let places: BTreeSet<&str> =
        settings.common.offerings.iter().map(|offering| offering.place.as_str()).collect();
    let (subnets, zones): (Vec<_>, Vec<_>) =
        places.into_iter().map(str::to_owned).partition(|place| place.starts_with("subnet-"));
    let filter = |name: &str, values| Filter::builder().name(name).set_values(Some(values)).build();
    let named = (!subnets.is_empty()).then(|| client.describe_subnets().set_subnet_ids(Some(subnets)));
    let of_zones = (!zones.is_empty()).then(|| {
        let default = filter("default-for-az", vec!["true".to_owned()]);
        client.describe_subnets().filters(default).filters(filter("availability-zone", zones))
    });
    let mut found = Vec::new();
    for call in named.into_iter().chain(of_zones) {
        match call.send().await {
            Ok(answer) => found.extend(answer.subnets.unwrap_or_default()),
            // The rehearsal reports a missing subnet.
            Err(error) => {
                let error = errors::read(&error, "");
                if *error.class() == ErrorClass::Denied {
                    facts.denied_calls.push(("describe subnets", error.failure.message));
                }
                return None;
            }
        }
    }
    Some(found)
}

fn free_addresses(subnets: &[Subnet]) -> u32 {
    let left = subnets.iter().filter_map(Subnet::available_ip_address_count);
    left.filter_map(|left| u32::try_from(left).ok()).sum()
}

/// Looks up the pool's groups, and records what is wrong with them.
async fn look_up_groups(client: &Client, settings: &Settings, subnets: &[Subnet], facts: &mut Ec2Facts) {
    let reply =
        client.describe_security_groups().set_group_ids(Some(settings.security_groups.clone())).send().await;
    let answer = match reply {
        Ok(answer) => answer,
        Err(error) => {
            let error = errors::read(&error, "");
            if *error.class() == ErrorClass::Denied {
                facts.denied_calls.push(("describe security groups", error.failure.message));
            }
            return;
        }
    };
    let groups = answer.security_groups();
    facts.closed_groups = closed(groups, settings);
    let ranges: Vec<String> = subnets.iter().flat_map(ranges).collect();
    let allowed = groups.iter().flat_map(|group| exposures(group, &settings.security_groups, &ranges));
    facts.exposures.extend(allowed);
    let mut shared = manager_groups(client).await;
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

/// The accesses that a group allows beyond SSH from the runner host. Lists of prefixes are not looked up. `own`: the pool's
/// groups.
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

/// The file in which instances of the Nitro system show their ID, to every user. Older ones do not show it.
const ASSET_TAG: &str = "/sys/devices/virtual/dmi/id/board_asset_tag";

/// The security groups of the runner host, if it is an instance of the pool's account and region; empty if they are unknown.
async fn manager_groups(client: &Client) -> Vec<String> {
    let Some(id) = instance_id(Path::new(ASSET_TAG)) else { return Vec::new() };
    // EC2 does not know instances of other accounts and regions.
    let Ok(answer) = client.describe_instances().instance_ids(id).send().await else { return Vec::new() };
    let instances = || answer.reservations().iter().flat_map(Reservation::instances);
    let of_interfaces =
        instances().flat_map(Instance::network_interfaces).flat_map(InstanceNetworkInterface::groups);
    let groups = instances().flat_map(Instance::security_groups).chain(of_interfaces);
    groups.filter_map(|group| group.group_id()).map(str::to_owned).collect()
}

fn instance_id(asset_tag: &Path) -> Option<String> {
    let text = fs_err::read_to_string(asset_tag).ok()?;
    let id = text.trim();
    let digits = id.strip_prefix("i-")?;
    (digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
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
        let world = Allows::World;
        let members = Allows::Members;
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

    #[test]
    fn an_instance_shows_its_id_and_other_machines_show_other_text() {
        let dir = tempfile::tempdir().unwrap();
        let tag = dir.path().join("board_asset_tag");
        assert_eq!(instance_id(&tag), None);
        for (text, wanted) in [
            ("i-0123456789abcdef0\n", Some("i-0123456789abcdef0")),
            ("\n", None),
            ("Default string\n", None),
            ("i-rack-7\n", None),
        ] {
            fs_err::write(&tag, text).unwrap();
            assert_eq!(instance_id(&tag).as_deref(), wanted, "{text:?}");
        }
    }
}
