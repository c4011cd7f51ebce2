//! Compares what Greenroom does about instances that begin no stages or no containers with what really happened there.
//!
//! Promise 4: an instance that began no stage of two jobs in a row serves no third one, and one that did not prepare a job's
//! containers serves none before the keeper's check. None is thrown away that begins stages, or starts containers.

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, InstanceId};
use greenroom_core::instance::{DrainReason, Phase};
use greenroom_core::pool::PoolState;
use greenroom_core::unbegun::{CheckKind, Unbegun};

use super::check;
use super::cloud::Machine;
use super::world::World;

/// The beginning of the reason for which a host goes out of service.
const REASON: &str = "it responds, but begins no stages";
const CHECK: &str = "it did not pass the keeper's check";

/// A stage has begun there: the jobs before count no more.
pub(super) fn begun(world: &mut World, id: &InstanceId) {
    world.truth.unbegun.remove(id);
}

/// Clears the suspicion of an instance that has left service or come back, or has passed the check of its engine.
fn acquitted(world: &mut World, id: &InstanceId) {
    world.truth.suspect.remove(id);
}

/// An event was recorded; `state` is the result of its transaction.
pub(super) fn committed(world: &mut World, manager: usize, state: &PoolState, event: &Event) {
    if world.is_copy(manager) {
        return; // a copy serves no jobs
    }
    match &event.change {
        Change::StageNotBegun { attempt, kind: CheckKind::Stages, .. } => not_begun(world, state, attempt),
        Change::StageNotBegun { attempt, .. } => {
            let instance = state.granted.get(attempt).map(|grant| grant.instance.clone());
            world.truth.suspect.extend(instance);
        }
        Change::StageBegun { instance, kind: CheckKind::Engine | CheckKind::Network } => {
            acquitted(world, instance);
        }
        Change::Granted { attempt, instance } if world.truth.suspect.contains(instance) => {
            world.broken(format!("promise 4: {attempt} gets {instance}, whose engine is to be checked"));
        }
        Change::Granted { attempt, instance } if in_a_row(world, instance) > 1 => {
            world.broken(format!("promise 4: {instance} begins no stages, and {attempt} gets it"));
        }
        Change::OutOfService { instance, reason } if reason.starts_with(REASON) => {
            thrown_away(world, instance, |m| m.begins_no_stage);
        }
        Change::DrainingBegun { instance, reason: DrainReason::BeginsNoStage { .. } } => {
            thrown_away(world, instance, |m| m.begins_no_stage);
        }
        Change::OutOfService { instance, reason } if reason.starts_with(CHECK) => {
            thrown_away(world, instance, |m| m.engine_broken);
        }
        Change::DrainingBegun { instance, reason: DrainReason::FailedCheck { .. } } => {
            thrown_away(world, instance, |m| m.engine_broken);
        }
        Change::ReturnedToService { instance } | Change::Forgotten { instance } => {
            begun(world, instance);
            acquitted(world, instance);
        }
        _ => {}
    }
}

/// Records were lost in a power cut: the recorded jobs count now.
pub(super) fn records_lost(world: &mut World) {
    let instances = world.ledgers[0].journals.values().flat_map(|j| j.state().instances.values());
    let instances: Vec<_> = instances.collect();
    let suspect =
        instances.iter().filter(|i| matches!(i.awaits_check(), Some(CheckKind::Engine | CheckKind::Network)));
    let suspect = suspect.map(|i| i.id.clone()).collect();
    let rows = instances.iter().filter_map(|i| Some((i.id.clone(), i.unbegun.as_ref()?)));
    let domain = |attempt: &AttemptName| {
        let (pool, facts) = world.truth.attempts.get(attempt)?;
        Some((attempt.clone(), check::domain(world.config[pool].policy.reuse, facts)))
    };
    let rows = rows.map(|(id, row)| (id, stages(row).filter_map(&domain).collect()));
    let rows = rows.collect();
    world.truth.unbegun = rows;
    world.truth.suspect = suspect;
}

/// The attempts of a row that began no stage.
fn stages(row: &Unbegun) -> impl Iterator<Item = &AttemptName> {
    row.jobs.iter().filter(|job| job.kind == CheckKind::Stages).map(|job| &job.attempt)
}

fn in_a_row(world: &World, id: &InstanceId) -> usize {
    world.truth.unbegun.get(id).map_or(0, Vec::len)
}

fn not_begun(world: &mut World, state: &PoolState, attempt: &AttemptName) {
    let Some(id) = state.granted.get(attempt).map(|grant| grant.instance.clone()) else { return };
    let Some((pool, facts)) = world.truth.attempts.get(attempt).cloned() else { return };
    let domain = check::domain(world.config[&pool].policy.reuse, &facts);
    let row = world.truth.unbegun.entry(id.clone()).or_default();
    row.push((attempt.clone(), domain.clone()));
    let others = row.iter().any(|(_, other)| *other != domain);
    let serves = |phase: &Phase| !matches!(phase, Phase::OutOfService { .. } | Phase::Draining { .. });
    if others && state.instance(&id).is_some_and(|known| serves(&known.phase)) {
        world.broken(format!("promise 4: {id} begins no stages of two trust domains, and stays in use"));
    }
}

fn thrown_away(world: &mut World, id: &InstanceId, rightly: fn(&Machine) -> bool) {
    if world.cloud.machines.get(id).is_some_and(|m| !rightly(m)) {
        world.broken(format!("promise 4: {id} is thrown away, and begins stages and containers"));
    }
}
