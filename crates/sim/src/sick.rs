//! Jobs that spoil their instance for the next ones, such as by filling its disk, and the check between two jobs.
//!
//! Promise 4: what a job has spoiled before it left serves no other job, and no instance is thrown away as unfit that
//! never was.

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, InstanceId};
use greenroom_core::instance::DrainReason;
use greenroom_core::pool::PoolState;

use super::fault::Fault;
use super::process::Proc;
use super::rng::Rng;
use super::scenario::Moment;
use super::world::World;
use crate::offerings;

/// The beginning of the reason for which a host goes out of service.
const REASON: &str = "it failed the check between jobs";

/// Some seeds have jobs that spoil their instances.
pub(super) fn draw(seed: u64, calm: u64) -> Vec<Moment> {
    let mut rng = Rng::new(seed, "sick");
    let times = if rng.chance(500) { rng.within(1..6) } else { 0 };
    let moment =
        |rng: &mut Rng| Moment { at: rng.below(calm * 9 / 10), fault: Fault::FallsSick, dice: rng.word() };
    (0..times).map(|_| moment(&mut rng)).collect()
}

/// Waits some time for an instance with a job, which fills the disk: now, or while the instance is checked after another
/// job. Static hosts are cleaned of that, unless it is the operator's disk.
pub(super) async fn falls(proc: &Proc, dice: u64) {
    if dice.is_multiple_of(2) {
        proc.world.borrow_mut().truth.spoils_during_check += 1;
        return;
    }
    for _ in 0..60 {
        let struck = {
            let mut world = proc.world.borrow_mut();
            let now = world.now;
            let live = world.truth.live.values().map(|live| live.instance.clone());
            let held: Vec<InstanceId> =
                live.filter(|id| world.cloud.machines.get(id).is_some_and(|m| m.answers(now))).collect();
            let index = usize::try_from(dice / 2).unwrap_or(0).checked_rem(held.len());
            index.map(|index| spoil(&mut world, &held[index]))
        };
        if struck.is_some() {
            return;
        }
        proc.pause(5_000).await;
    }
}

fn spoil(world: &mut World, id: &InstanceId) {
    world.log_as("cloud", format_args!("a job fills the disk of {id}"));
    world.truth.spoiled.insert(id.clone());
    let now = world.now;
    if let Some(m) = world.cloud.machines.get_mut(id) {
        m.sick = m.sick.or(Some(now));
    }
}

/// The duration of the check on an instance, and true if it passes. The check sees the instance as it was at the
/// beginning: a present job may fill the disk meanwhile, and leave.
pub(super) fn check(world: &mut World, id: &InstanceId) -> (u64, bool) {
    let is_sick = world.cloud.machines.get(id).is_some_and(|m| m.sick.is_some());
    if is_sick {
        world.cover.fault(Fault::FallsSick);
    }
    let has_job = world.truth.live.values().any(|live| live.instance == *id);
    if !is_sick && has_job && world.truth.spoils_during_check > 0 {
        world.truth.spoils_during_check -= 1;
        spoil(world, id);
        return (world.streams.latency.within(5_000..60_000), true);
    }
    (world.streams.latency.within(200..4_000), !is_sick)
}

/// An event was recorded; `state` is the result of its transaction.
pub(super) fn committed(world: &mut World, manager: usize, state: &PoolState, event: &Event) {
    if world.is_copy(manager) {
        return; // a copy serves no jobs
    }
    match &event.change {
        Change::Granted { attempt, instance } => granted(world, state, attempt, instance),
        Change::OutOfService { instance, reason } if reason.starts_with(REASON) => {
            thrown_away(world, instance);
        }
        Change::DrainingBegun { instance, reason: DrainReason::Unfit { .. } } => thrown_away(world, instance),
        _ => {}
    }
}

fn granted(world: &mut World, state: &PoolState, attempt: &AttemptName, id: &InstanceId) {
    let Some(spoiled) = world.cloud.machines.get(id).and_then(|m| m.sick) else { return };
    let left = state.instance(id).and_then(|i| i.released).map(|left| offerings::ms(world, left));
    if left.is_some_and(|left| left > spoiled) {
        world.broken(format!("promise 4: a job has spoiled {id} and left, and {attempt} gets it"));
    }
}

fn thrown_away(world: &mut World, id: &InstanceId) {
    if world.cloud.machines.contains_key(id) && !world.truth.spoiled.contains(id) {
        world.broken(format!("promise 4: {id} is thrown away as unfit, and it is fit"));
    }
}
