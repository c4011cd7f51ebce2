//! Holds the choice of candidates against what the provider really said.
//!
//! Keeps its own account of refusals: what the product remembers does not count here.

use std::collections::BTreeMap;

use super::world::World;
use crate::core::event::{Change, Event};
use crate::core::failure::ErrorClass;
use crate::core::ids::{Candidate, InstanceId, PoolName};
use crate::core::instance::Answer;
use crate::core::report::{Report, WaitingOn};
use crate::core::time::Stamp;

/// What was said to the launches of one pool of machine 0.
#[derive(Debug, Default)]
pub struct Said {
    /// Present launches: candidate, and when they were intended.
    intended: BTreeMap<InstanceId, (Candidate, u64)>,
    /// Candidates that were refused and not accepted since, with when.
    refused: BTreeMap<Candidate, u64>,
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
    if let Change::LaunchIntended { instance, candidate, .. } = &event.change {
        intended(world, pool, instance, candidate.as_ref(), at);
    }
    let said = world.truth.said.entry(pool.clone()).or_default();
    match &event.change {
        Change::LaunchIntended { instance, candidate: Some(candidate), .. } => {
            said.intended.insert(instance.clone(), (candidate.clone(), at));
        }
        Change::LaunchAnswered { instance, answer: Answer::Refused { failure, .. }, .. } => {
            let of_candidate = matches!(
                failure.class,
                ErrorClass::NoCapacity { .. } | ErrorClass::Quota | ErrorClass::Invalid
            );
            if let Some((candidate, _)) = said.intended.get(instance).filter(|_| of_candidate) {
                said.refused.insert(candidate.clone(), at);
            }
        }
        Change::LaunchAnswered { instance, answer: Answer::Accepted { .. }, .. }
        | Change::Reached { instance, .. } => {
            // One that was asked for before the refusal tells nothing of the time after it.
            if let Some((candidate, asked)) = said.intended.get(instance)
                && said.refused.get(candidate).is_some_and(|refused| asked > refused)
            {
                said.refused.remove(candidate);
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
fn intended(world: &mut World, pool: &PoolName, id: &InstanceId, candidate: Option<&Candidate>, at: u64) {
    let plan = &world.config[pool];
    let named = plan.capabilities.candidates.clone();
    let timing = &plan.policy.timing;
    let shortest = timing.stockout_backoff.min(timing.quota_backoff).as_millis();
    let Some(candidate) = candidate else {
        if !named.is_empty() {
            world.broken(format!("candidates: {id} is launched without one"));
        }
        return;
    };
    if !named.contains(candidate) {
        world.broken(format!("candidates: {id} is launched as {candidate}, which there is not"));
    }
    let Some(said) = world.truth.said.get(pool) else { return };
    let Some(refused) = said.refused.get(candidate) else { return };
    let free = named.iter().find(|other| !said.refused.contains_key(other)).cloned();
    if let Some(free) = free.filter(|_| u128::from(at.saturating_sub(*refused)) < shortest) {
        let ago = at.saturating_sub(*refused);
        world.broken(format!(
            "candidates: {id} is launched as {candidate}, refused {ago} ms ago; {free} is free"
        ));
    }
}

/// When a pass tells what it waits for: not for one candidate while another was not refused.
pub(super) fn reported(world: &mut World, machine: usize, pool: &PoolName, report: &Report) {
    let (0, Some(WaitingOn::NoCandidate { .. })) = (machine, &report.launches) else { return };
    let Some(said) = world.truth.said.get(pool) else { return };
    let named = &world.config[pool].capabilities.candidates;
    let free = named.iter().find(|candidate| !said.refused.contains_key(candidate)).cloned();
    if let Some(free) = free.filter(|_| ms(world, report.at) > said.forgiven) {
        world.broken(format!("candidates: {pool} waits although {free} was not refused"));
    }
}

/// Records were lost in a power cut: what is remembered by now is what counts, be it older than what was said.
pub(super) fn records_lost(world: &mut World) {
    for (pool, said) in &mut world.truth.said {
        let Some(journal) = world.managers[0].journals.get(pool) else { continue };
        let matrix = &journal.state().matrix;
        said.refused.retain(|candidate, _| matrix.refusal(candidate).is_some());
        for candidate in matrix.named().iter().filter(|candidate| matrix.refusal(candidate).is_some()) {
            said.refused.entry(candidate.clone()).or_insert(0);
        }
    }
}
