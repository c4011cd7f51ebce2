//! Pools whose list loses everything: wrongly for a while, or because all instances are really gone.
//!
//! Everything is drawn from a stream of its own, so that the course of the other seeds does not depend on this file.

use std::time::Duration;

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::instance::{DrainReason, Instance, Phase};
use greenroom_core::plan::health::HOLD;
use greenroom_core::pool::PoolState;

use super::fate;
use super::fault::{Fault, Window, Windows};
use super::process::Proc;
use super::rng::Rng;
use super::scenario::Moment;
use super::world::World;
use crate::exec::Channel;

/// A list that was empty this long ago may still be the one that a pass decides by.
const CACHED_MS: u64 = 60_000;
/// The time after a fault of the network in which instances may go that do not respond until then.
const AFTER_CUT_MS: u64 = 60_000;
/// Idle instances that are really gone are replaced within this. Without a keeper, a `reap` finds them missing and the
/// next one, five minutes later, finds them absent.
const RECOVERS_MS: u64 = 15 * 60_000;

/// Some seeds have a few minutes in which the list is empty.
pub(super) fn faults(seed: u64, mut windows: Windows, calm: u64) -> Windows {
    let mut rng = Rng::new(seed, "empty lists");
    let times = if rng.chance(300) { rng.within(1..5) } else { 0 };
    for _ in 0..times {
        let from = rng.below(calm * 9 / 10);
        let to = (from + rng.within(60_000..240_000)).min(calm);
        windows = windows.and(Window { fault: Fault::ListLosesAll, from, to, per_mille: 1000 });
    }
    windows
}

/// Some seeds lose all instances just before everything calms down, so that no other fault holds up their replacement.
pub(super) fn draw(seed: u64, calm: u64) -> Option<Moment> {
    let mut rng = Rng::new(seed, "lost pools");
    let at = calm.saturating_sub(rng.within(1_000..60_000));
    rng.chance(200).then(|| Moment { at, fault: Fault::LosesAll, dice: rng.word() })
}

/// True if no list shows an instance of the pool and no call finds one, although a ready one answers.
///
/// Otherwise the list is right for the rest of the window: where nothing answers, an empty list is proof.
pub(super) fn loses_all(world: &mut World, pool: &PoolName) -> bool {
    let now = world.now;
    let windows = &world.scenario.windows;
    let Some(window) = windows.open(Fault::ListLosesAll, now).copied() else { return false };
    if world.truth.right_lists.get(pool).is_some_and(|until| now < *until) {
        return false;
    }
    let is_possible = windows.open(Fault::NetworkCut, now).is_none()
        && world.config[pool].capabilities.launches
        && answers(world, pool)
        && world.strikes(Fault::ListLosesAll);
    if is_possible {
        world.truth.lost_lists.insert(pool.clone(), now);
    } else if world.truth.lost_lists.get(pool).is_some_and(|at| window.from <= *at) {
        world.truth.right_lists.insert(pool.clone(), window.to);
    }
    is_possible
}

/// True if the list has lacked everything until a moment ago. What it omits then counts as omitted for longer.
pub(super) fn was_lost(world: &World, pool: &PoolName) -> bool {
    world.truth.lost_lists.get(pool).is_some_and(|at| world.now < at + CACHED_MS)
}

/// True if an instance is recorded as ready and responds.
fn answers(world: &World, pool: &PoolName) -> bool {
    let Some(journal) = world.ledgers[0].journals.get(pool) else { return false };
    let responds = |i: &Instance| {
        let machine = world.cloud.machines.get(&i.id);
        machine.is_some_and(|m| m.owned && !m.orphaned && m.answers(world.now))
    };
    journal.state().instances.values().any(|i| i.phase == Phase::Ready && responds(i))
}

/// Promise 4: an instance that was ready and answers is not replaced because of lists alone: neither while they lack
/// everything, nor where `endpoint` never denied it.
pub(super) fn committed(
    world: &mut World,
    manager: usize,
    pool: &PoolName,
    state: &PoolState,
    event: &Event,
) {
    let Change::DrainingBegun { instance, reason } = &event.change else { return };
    let was_ready = state.instance(instance).is_some_and(|i| i.ready.is_some());
    if world.is_copy(manager) || !was_ready || is_after_cut(world) {
        return;
    }
    let why = match reason {
        DrainReason::Vanished | DrainReason::Unresponsive { .. } if was_lost(world, pool) => {
            "the list lost everything"
        }
        DrainReason::Vanished if !world.truth.denied.contains(instance) => "lists omitted it",
        _ => return,
    };
    let now = world.now;
    let long = |since: u64| since + CACHED_MS <= now;
    let machine = world.cloud.machines.get(instance);
    if machine.is_some_and(|m| !m.going && m.answers(now) && m.up.is_some_and(long)) {
        world.broken(format!("promise 4: {instance} answers, and is replaced because {why}"));
    }
}

/// True if instances may be unreachable because of the manager's network.
fn is_after_cut(world: &World) -> bool {
    let allowed = u64::try_from(HOLD.as_millis()).unwrap_or(u64::MAX) + AFTER_CUT_MS;
    world.scenario.windows.touches(Fault::NetworkCut, world.now.saturating_sub(allowed), world.now)
}

/// All instances of the pool are gone. Those that were idle are replaced within a limit.
pub(super) async fn lost(proc: &Proc) {
    let pool = PoolName::new("cloud");
    let lost = {
        let mut world = proc.world.borrow_mut();
        let own = world.cloud.billing(&pool).filter(|m| !m.going);
        let lost: Vec<InstanceId> = own.map(|m| m.id.clone()).collect();
        if lost.is_empty() {
            return;
        }
        world.cover.fault(Fault::LosesAll);
        world.log_as("cloud", format_args!("all {} instances are gone", lost.len()));
        let now = world.now;
        for id in &lost {
            fate::excuse_jobs(&mut world, id, "its instance was lost with all others");
            world.cloud.end(id, now);
            world.steps.notify(&Channel::Instance(id.clone()));
        }
        lost
    };
    proc.pause(RECOVERS_MS).await;
    let mut world = proc.world.borrow_mut();
    let state = world.ledgers[0].journal(&pool).state().clone();
    let left = lost.iter().filter_map(|id| state.instance(id)).find(|i| i.is_idle());
    if let Some(left) = left.map(|i| i.id.clone()) {
        let limit = Duration::from_millis(RECOVERS_MS).as_secs() / 60;
        world
            .broken(format!("promise 3: all instances were lost {limit} min ago, and {left} is still ready"));
    }
}
