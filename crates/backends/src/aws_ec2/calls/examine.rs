//! Calls of EC2 and Service Quotas for `doctor`; they launch nothing.

use std::collections::BTreeSet;
use std::time::SystemTime;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, Subnet};
use futures_util::future::join;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, InstanceKeys, LaunchRequest, ProviderError};

use super::super::findings::{Facts, judge};
use super::super::settings::Settings;
use super::client::Clients;
use super::clock::ClockOf;
use super::errors;
use super::images::Images;
use super::launch_spec::LaunchSpec;
use crate::cloud::offerings::{Market, Offering};

mod groups;
mod manager;
mod quotas;

/// Maximum number of rehearsed offerings: each is a call.
const REHEARSED: usize = 12;
/// EC2's answer to a dry run that would succeed.
const WOULD_SUCCEED: &str = "DryRunOperation";

pub(super) async fn examine(
    clients: &Clients,
    settings: &Settings,
    pool: &PoolName,
    demand: &Demand,
) -> Vec<Finding> {
    let client = &clients.ec2;
    let mut facts = Facts::default();
    let clock = ClockOf::default();
    // A pool cannot work without this list, so a failure ends the examination.
    let first =
        client.describe_instances().max_results(5).customize().interceptor(clock.clone()).send().await;
    facts.clock_ahead_s = clock.ahead_s(SystemTime::now());
    match first {
        Ok(_) => {
            let room = Box::pin(quotas::look_up(clients, settings));
            match join(check(client, settings, pool, &mut facts), room).await.1 {
                Ok(room) => facts.room = room,
                Err(error) => facts.not_checked = Some(error.failure.message),
            }
        }
        Err(error) => facts.unreachable = Some(errors::read(&error, "").failure.message),
    }
    judge(pool, &facts, demand)
}

async fn check(client: &Client, settings: &Settings, pool: &PoolName, facts: &mut Facts) {
    let images = Images::default();
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
    groups::look_up(client, settings, &subnets.unwrap_or_default(), facts).await;
    if let Err(error) = client.describe_volumes().max_results(5).send().await {
        facts.failed.push(("list volumes", errors::read(&error, "").failure.message));
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
    images: &Images,
    offering: &Offering,
) -> Result<(), ProviderError> {
    let spec = LaunchSpec::new(settings, &sample_request(pool, offering), offering)?;
    let disks = images.disks(client, &spec.image).await?;
    match spec.call(client, &disks).dry_run(true).send().await {
        Ok(_) => Ok(()),
        Err(error) if errors::code(&error) == Some(WOULD_SUCCEED) => Ok(()),
        Err(error) => Err(errors::read(&error, &spec.scope())),
    }
}

/// A launch request for dry runs.
fn sample_request(pool: &PoolName, offering: &Offering) -> LaunchRequest {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let (generation, owner) = (Generation::new("doctor"), OwnerId::new("doctor"));
    let instance = InstanceId::launched(pool, &generation, 0);
    let keys = InstanceKeys {
        authorized_key: "ssh-ed25519 AAAA".to_owned(),
        host_key: "none".to_owned(),
        host_key_public: "ssh-ed25519 AAAA".to_owned(),
    };
    LaunchRequest {
        token: format!("doctor/{now}/{}", offering.name),
        instance,
        tags: Tags { pool: pool.clone(), owner, generation, number: 0 },
        offering: Some(offering.name.clone()),
        keys,
        lifetime: None,
        order: None,
    }
}

/// The pool's subnets and the default subnets of its zones. `None` if EC2 does not report them.
async fn subnets(client: &Client, settings: &Settings, facts: &mut Facts) -> Option<Vec<Subnet>> {
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
                    facts.failed.push(("describe subnets", error.failure.message));
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
