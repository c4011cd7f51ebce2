//! Holds the choice of offerings against what the provider really said.
//!
//! Keeps its own account of refusals: what the product remembers does not count here.

use std::collections::BTreeMap;

use super::world::World;
use crate::core::event::{Change, Event};
use crate::core::failure::ErrorClass;
use crate::core::ids::{InstanceId, OfferingName, PoolName};
use crate::core::instance::Answer;
use crate::core::report::{Report, WaitingOn};
use crate::core::time::Stamp;

/// What was said to the launches of one pool of machine 0.
#[derive(Debug, Default)]
pub struct Said {
    /// Present launches: offering, and when they were intended.
    intended: BTreeMap<InstanceId, (OfferingName, u64)>,
    /// Offerings that were refused and not accepted since, with when.
    refused: BTreeMap<OfferingName, u64>,
    /// When refusals were last forgotten by order.
    forgiven: u64,
}

/// A moment of machine 0, by the world's own clock.
fn ms(world: &World, at: Stamp) -> u64 {
    let age = world.stamp(0).since(at).as_millis();
    world.now.saturating_sub(u64::try_from(age).unwrap_or(u64::MAX))
}

/// When something was recorded.
pub(super) fn committed(world: &mut World, machine: usize, pool: &PoolName, event: &Event) {
    if machine != 0 {
        return; // a copy launches nothing
    }
    let at = ms(world, event.at);
    if let Change::LaunchIntended { instance, offering, .. } = &event.change {
        intended(world, pool, instance, offering.as_ref(), at);
    }
    let said = world.truth.said.entry(pool.clone()).or_default();
    match &event.change {
        Change::LaunchIntended { instance, offering: Some(offering), .. } => {
            said.intended.insert(instance.clone(), (offering.clone(), at));
        }
        Change::LaunchAnswered { instance, answer: Answer::Refused { failure, .. }, .. } => {
            let of_offering = matches!(
                failure.class,
                ErrorClass::NoCapacity { .. } | ErrorClass::Quota | ErrorClass::Invalid
            );
            if let Some((offering, _)) = said.intended.get(instance).filter(|_| of_offering) {
                said.refused.insert(offering.clone(), at);
            }
        }
        Change::LaunchAnswered { instance, answer: Answer::Accepted { .. }, .. }
        | Change::Reached { instance, .. } => {
            // One that was asked for before the refusal tells nothing of the time after it.
            if let Some((offering, asked)) = said.intended.get(instance)
                && said.refused.get(offering).is_some_and(|refused| asked > refused)
            {
                said.refused.remove(offering);
            }
        }
        Change::PoolResumed => {
            said.refused.clear();
            said.forgiven = at;
        }
        _ => {}
    }
}

/// A launch takes what was not just refused, while there is another.
fn intended(world: &mut World, pool: &PoolName, id: &InstanceId, offering: Option<&OfferingName>, at: u64) {
    let plan = &world.config[pool];
    let named = plan.capabilities.offerings.clone();
    let timing = &plan.policy.timing;
    let shortest = timing.stockout_backoff.min(timing.quota_backoff).as_millis();
    let Some(offering) = offering else {
        if !named.is_empty() {
            world.broken(format!("offerings: {id} is launched without one"));
        }
        return;
    };
    if !named.contains(offering) {
        world.broken(format!("offerings: {id} is launched as {offering}, which there is not"));
    }
    let Some(said) = world.truth.said.get(pool) else { return };
    let Some(refused) = said.refused.get(offering) else { return };
    let free = named.iter().find(|other| !said.refused.contains_key(other)).cloned();
    if let Some(free) = free.filter(|_| u128::from(at.saturating_sub(*refused)) < shortest) {
        let ago = at.saturating_sub(*refused);
        world.broken(format!(
            "offerings: {id} is launched as {offering}, refused {ago} ms ago; {free} is free"
        ));
    }
}

/// When a pass tells what it waits for: not for one offering while another was not refused.
pub(super) fn reported(world: &mut World, machine: usize, pool: &PoolName, report: &Report) {
    let (0, Some(WaitingOn::NoOffering { .. })) = (machine, &report.launches) else { return };
    let Some(said) = world.truth.said.get(pool) else { return };
    let named = &world.config[pool].capabilities.offerings;
    let free = named.iter().find(|offering| !said.refused.contains_key(offering)).cloned();
    if let Some(free) = free.filter(|_| ms(world, report.at) > said.forgiven) {
        world.broken(format!("offerings: {pool} waits although {free} was not refused"));
    }
}

/// Records were lost in a power cut: what is remembered by now is what counts, be it older than what was said.
pub(super) fn records_lost(world: &mut World) {
    for (pool, said) in &mut world.truth.said {
        let Some(journal) = world.managers[0].journals.get(pool) else { continue };
        let matrix = &journal.state().availability;
        said.refused.retain(|offering, _| matrix.refusal(offering).is_some());
        for offering in matrix.offerings().iter().filter(|offering| matrix.refusal(offering).is_some()) {
            said.refused.entry(offering.clone()).or_insert(0);
        }
    }
}
