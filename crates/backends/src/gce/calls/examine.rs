//! Calls of Compute Engine for `doctor`; they create nothing.
//!
//! Compute Engine has no dry run, so each part of an insert is looked up separately. Whether the account may create a
//! machine shows only when one is created (`greenroom doctor --boot`).

use std::collections::BTreeMap;

use google_cloud_compute_v1::{Error, Result as Answer};
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, ProviderError};

use super::super::findings::{Facts, judge};
use super::super::resource::region;
use super::super::settings::Settings;
use super::ComputeEngine;
use super::client::{self, answer};
use super::errors::{self, CallKind};
use crate::cloud::offerings::Offering;

mod clock;
mod firewall;
mod manager;
mod offerings;
mod quotas;
mod subnetworks;

pub(super) async fn examine(engine: &ComputeEngine, demand: &Demand) -> Vec<Finding> {
    let mut facts = Facts { clock_ahead_s: clock::ahead_s(engine).await, ..Facts::default() };
    if let Err(error) = check(engine, &mut facts).await {
        facts.unreachable = Some(error.failure.message);
    }
    judge(&engine.pool, &facts, demand)
}

/// Fails if no call is possible.
async fn check(engine: &ComputeEngine, facts: &mut Facts) -> Result<(), ProviderError> {
    needed(engine, facts).await?;
    let catalogue = client::open_catalogue(&engine.settings).await?;
    let types = offerings::look_up(engine, &catalogue, facts).await;
    subnetworks::look_up(engine, &catalogue, facts).await;
    quotas::look_up(engine, &catalogue, &types, facts).await;
    firewall::look_up(engine, &catalogue, facts).await;
    facts.exposures.extend(manager::shared(&engine.settings).await);
    Ok(())
}

/// Tries the lists that each pass needs.
async fn needed(engine: &ComputeEngine, facts: &mut Facts) -> Result<(), ProviderError> {
    let clients = engine.clients().await?;
    let project = &engine.settings.project;
    let machines = clients.instances.aggregated_list().set_project(project).set_filter(engine.pool_filter());
    allowed(facts, "list instances", answer(machines.set_max_results(1_u32).send()).await)?;
    let disks = clients.disks.aggregated_list().set_project(project).set_filter(engine.pool_filter());
    allowed(facts, "list disks", answer(disks.set_max_results(1_u32).send()).await)?;
    let zone = &engine.settings.common.offerings[0].place;
    let operations = clients.operations.list().set_project(project).set_zone(zone).set_max_results(1_u32);
    // The check of the offerings reports a missing zone.
    if let Some(error) = answer(operations.send()).await.err().filter(is_forbidden) {
        facts.denied.push(("list operations", message(&error)));
    }
    Ok(())
}

/// Records a call that is not allowed. Any other error would affect all calls.
fn allowed<T>(facts: &mut Facts, purpose: &'static str, answer: Answer<T>) -> Result<(), ProviderError> {
    match answer {
        Ok(_) => {}
        Err(error) if is_forbidden(&error) => facts.denied.push((purpose, message(&error))),
        Err(error) => return Err(errors::read(&error, CallKind::Existing, "")),
    }
    Ok(())
}

/// The offerings, by the region of their zone.
fn by_region(settings: &Settings) -> BTreeMap<&str, Vec<&Offering>> {
    let mut regions: BTreeMap<&str, Vec<&Offering>> = BTreeMap::new();
    for offering in &settings.common.offerings {
        if let Some(region) = region(&offering.place) {
            regions.entry(region).or_default().push(offering);
        }
    }
    regions
}

fn is_forbidden(error: &Error) -> bool {
    error.http_status_code() == Some(403)
}

fn message(error: &Error) -> String {
    errors::read(error, CallKind::Existing, "").failure.message
}
