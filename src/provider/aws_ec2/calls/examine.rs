//! Asks EC2 what `doctor` wants to know; launches nothing.

use std::collections::BTreeSet;
use std::time::SystemTime;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{InstanceType, IpPermission};

use super::super::findings::{Facts, Rehearsal, judge};
use super::super::settings::Settings;
use super::clock::ClockOf;
use super::errors;
use super::images::Images;
use super::order::Order;
use crate::core::failure::ErrorClass;
use crate::core::ids::{Generation, InstanceId, OwnerId, PoolName};
use crate::core::inventory::Tags;
use crate::port::finding::Finding;
use crate::port::provider::{Demand, InstanceKeys, LaunchRequest};
use crate::provider::cloud::offers::Offer;

/// More candidates than this are not rehearsed: each is a call.
const REHEARSED: usize = 12;
/// EC2's answer to a dry run that would be carried out.
const WOULD_SUCCEED: &str = "DryRunOperation";

pub(super) async fn examine(
    client: &Client,
    settings: &Settings,
    pool: &PoolName,
    demand: &Demand,
) -> Vec<Finding> {
    let mut facts = Facts::default();
    let clock = ClockOf::default();
    // Without a list nothing works: who may not have it need not be asked about the rest.
    let first =
        client.describe_instances().max_results(5).customize().interceptor(clock.clone()).send().await;
    facts.clock_ahead_s = clock.ahead_s(SystemTime::now());
    match first {
        Ok(_) => look(client, settings, pool, demand, &mut facts).await,
        Err(error) => facts.unreachable = Some(errors::read(&error, "").failure.message),
    }
    judge(pool, &facts, demand)
}

async fn look(client: &Client, settings: &Settings, pool: &PoolName, demand: &Demand, facts: &mut Facts) {
    let images = Images::default();
    for offer in settings.common.offers.iter().take(REHEARSED) {
        let rehearsal = rehearse(client, settings, pool, &images, offer).await;
        facts.rehearsals.push((offer.candidate.to_string(), rehearsal));
    }
    facts.free_addresses = free_addresses(client, settings, facts).await;
    facts.processors = processors(client, settings, demand).await;
    facts.closed_groups = closed_groups(client, settings, facts).await;
    if let Err(error) = client.describe_volumes().max_results(5).send().await {
        facts.failed.push(("list volumes", errors::read(&error, "").failure.message));
    }
}

/// The launch itself, as a dry run.
async fn rehearse(
    client: &Client,
    settings: &Settings,
    pool: &PoolName,
    images: &Images,
    offer: &Offer,
) -> Rehearsal {
    let answer = async {
        let order = Order::new(settings, &nobody(pool, offer), offer)?;
        let disks = images.disks(client, &order.image).await?;
        match order.call(client, &disks).dry_run(true).send().await {
            Ok(_) => Ok(()),
            Err(error) if errors::code(&error) == Some(WOULD_SUCCEED) => Ok(()),
            Err(error) => Err(errors::read(&error, &order.scope())),
        }
    };
    match answer.await {
        Ok(()) => Rehearsal::Allowed,
        Err(error) if *error.class() == ErrorClass::Denied => Rehearsal::Denied(error.failure.message),
        // That there is none left just now is no fault of the table.
        Err(error) if matches!(error.class(), ErrorClass::NoCapacity { .. }) => Rehearsal::Allowed,
        Err(error) => Rehearsal::Refused(error.failure.message),
    }
}

/// A launch that is never carried out.
fn nobody(pool: &PoolName, offer: &Offer) -> LaunchRequest {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let (generation, owner) = (Generation::new("doctor"), OwnerId::new("doctor"));
    let instance = InstanceId::launched(pool, &generation, 0);
    let keys = InstanceKeys {
        authorized_key: "ssh-ed25519 AAAA".to_owned(),
        host_key: "none".to_owned(),
        host_key_public: "ssh-ed25519 AAAA".to_owned(),
    };
    LaunchRequest {
        token: format!("doctor/{now}/{}", offer.candidate),
        instance,
        tags: Tags { pool: pool.clone(), owner, generation, number: 0 },
        candidate: Some(offer.candidate.clone()),
        keys,
        lifetime: None,
    }
}

async fn free_addresses(client: &Client, settings: &Settings, facts: &mut Facts) -> Option<u32> {
    let places: BTreeSet<&str> = settings.common.offers.iter().map(|offer| offer.place.as_str()).collect();
    let subnets: Vec<String> =
        places.into_iter().filter(|place| place.starts_with("subnet-")).map(str::to_owned).collect();
    if subnets.is_empty() {
        return None;
    }
    match client.describe_subnets().set_subnet_ids(Some(subnets)).send().await {
        Ok(answer) => {
            let free = answer
                .subnets()
                .iter()
                .filter_map(|subnet| u32::try_from(subnet.available_ip_address_count()?).ok());
            Some(free.sum())
        }
        // A subnet that does not exist is found by the rehearsal.
        Err(error) => {
            let error = errors::read(&error, "");
            if *error.class() == ErrorClass::Denied {
                facts.failed.push(("look at subnets", error.failure.message));
            }
            None
        }
    }
}

async fn processors(client: &Client, settings: &Settings, demand: &Demand) -> Option<u32> {
    let types: BTreeSet<&str> =
        settings.common.offers.iter().map(|offer| offer.machine_type.as_str()).collect();
    let types: Vec<InstanceType> = types.into_iter().map(InstanceType::from).collect();
    let answer = client.describe_instance_types().set_instance_types(Some(types)).send().await.ok()?;
    let each = answer
        .instance_types()
        .iter()
        .filter_map(|kind| u32::try_from(kind.v_cpu_info()?.default_v_cpus()?).ok());
    each.max().map(|largest| largest.saturating_mul(demand.max_instances))
}

async fn closed_groups(client: &Client, settings: &Settings, facts: &mut Facts) -> Vec<String> {
    if settings.security_groups.is_empty() {
        return Vec::new();
    }
    let asked =
        client.describe_security_groups().set_group_ids(Some(settings.security_groups.clone())).send().await;
    let answer = match asked {
        Ok(answer) => answer,
        Err(error) => {
            let error = errors::read(&error, "");
            if *error.class() == ErrorClass::Denied {
                facts.failed.push(("look at security groups", error.failure.message));
            }
            return Vec::new();
        }
    };
    let lets_in = |permission: &IpPermission| opens(permission, i32::from(settings.common.ssh_port));
    let groups = answer.security_groups();
    // One that lets us in is enough: a machine has all of them.
    if groups.iter().any(|group| group.ip_permissions().iter().any(lets_in)) {
        return Vec::new();
    }
    groups.iter().filter_map(|group| group.group_id().map(str::to_owned)).collect()
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
