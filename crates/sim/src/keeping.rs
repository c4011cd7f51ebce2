//! Checks keepers: only one acts, and none leaves work behind.
//!
//! Promise 3 depends on it: the keeper completes what a killed process left undone.

use std::collections::BTreeSet;

use greenroom_core::ids::PoolName;
use greenroom_core::instance::Phase;
use greenroom_core::time::Stamp;

use super::check::ALLOWANCE_MS;
use super::process::{Exit, Kind};
use super::world::World;
use crate::exec::Pid;

/// The shortest time between two failed waits of a keeper.
const BACK_OFF_MS: u64 = 1_000;

/// A process is about to call a provider. A keeper does so under its lock only.
pub(super) fn acts(world: &mut World, pid: Pid, call: &str) {
    let Some(process) = world.processes.get(&pid).filter(|p| p.kind == Kind::Keep) else { return };
    if !world.managers[process.manager].directory.borrow().keeper_lives() {
        let name = process.name.clone();
        world.broken(format!("promise 3: {name} makes {call} without being the keeper"));
    }
}

/// A manager's last keeper.
#[derive(Debug, Default)]
pub struct LastKeeper {
    pid: Option<Pid>,
    /// The pools in which a process has since relied on it.
    relied: BTreeSet<PoolName>,
    /// The moment when the keeper exited by itself, unless a later event excuses it.
    left: Option<u64>,
}

/// A process becomes its manager's keeper.
pub(super) fn locked(world: &mut World, manager: usize, pid: Pid) {
    if world.is_copy(manager) {
        return;
    }
    world.truth.last_keepers.insert(manager, LastKeeper { pid: Some(pid), ..LastKeeper::default() });
    // It knows of no failed call.
    world.truth.pauses.clear();
}

/// A process has found a living keeper, and relies on it to see what was committed before.
pub(super) fn relied_on(world: &mut World, manager: usize) {
    if !world.is_copy(manager) {
        let pools = world.config.keys().cloned().collect();
        world.truth.last_keepers.entry(manager).or_default().relied = pools;
    }
}

/// A process has read a pool's state.
pub(super) fn state_read(world: &mut World, manager: usize, pid: Pid, pool: &PoolName) {
    if let Some(keeper) = world.truth.last_keepers.get_mut(&manager).filter(|keeper| keeper.pid == Some(pid))
    {
        keeper.relied.remove(pool);
    }
}

/// A keeper's wait fails. It pauses before it waits again, instead of making pass after pass.
pub(super) fn wait_failed(world: &mut World, pid: Pid, pool: &PoolName) {
    let now = world.now;
    let last = world.truth.failed_waits.insert((pid, pool.clone()), now);
    if last.is_some_and(|last| now < last + BACK_OFF_MS) {
        world.broken(format!("promise 3: the keeper of {pool} runs in circles while its waits fail"));
    }
}

/// A keeper that exits by itself leaves no work behind. A process that commits work later finds that it is gone.
pub(super) fn process_ended(world: &mut World, pid: Pid, exit: Exit) {
    let Some(process) = world.processes.get(&pid).filter(|p| !world.is_copy(p.manager)) else { return };
    let directory = &world.managers[process.manager].directory;
    let keeps = process.kind == Kind::Keep && !directory.borrow().keeper_lives();
    let keeper = world.truth.last_keepers.entry(process.manager).or_default();
    if exit == Exit::Killed {
        keeper.left = None; // it may have been about to start the next one
    } else if keeps && exit == Exit::Code(0) {
        keeper.left = Some(world.now);
        if keeper.pid == Some(pid)
            && let Some(pool) = keeper.relied.first()
        {
            let missed = format!("promise 3: the keeper leaves, and somebody in {pool} relies on it");
            world.broken(missed);
        }
    }
}

/// Checks that, while there is work, a keeper is running, except for the time it takes to notice that it exited.
pub(super) fn after_step(world: &mut World) {
    let mut gone = world.truth.last_keepers.iter().filter(|(_, keeper)| is_missed(world, keeper));
    let found = gone.find_map(|(manager, keeper)| Some((*manager, keeper.left?, work(world, *manager)?)));
    let Some((manager, left, work)) = found else { return };
    if let Some(keeper) = world.truth.last_keepers.get_mut(&manager) {
        keeper.left = None;
    }
    world.broken(format!("promise 3: the keeper left {} ms ago, and {work}", world.now - left));
}

/// True if the keeper exited by itself so long ago that the next one would have been started.
fn is_missed(world: &World, keeper: &LastKeeper) -> bool {
    keeper.left.is_some_and(|left| world.now > left.max(world.truth.excused) + ALLOWANCE_MS)
}

/// Work that only a keeper of this manager does, recorded for so long that one should have been started.
fn work(world: &World, manager: usize) -> Option<String> {
    let now = world.stamp(manager);
    let long = |since: Stamp, allowed: u64| now.since(since).as_millis() > u128::from(allowed);
    // The keeper of any manager sees to the instances.
    let keepers = world.partners(manager).map(|(number, _)| world.truth.last_keepers.get(&number));
    let nobody_keeps = keepers.flatten().all(|keeper| is_missed(world, keeper));
    for journal in world.ledger(manager).journals.values() {
        for instance in journal.state().instances.values().filter(|_| nobody_keeps) {
            let busy = match instance.phase {
                Phase::Launching | Phase::Checking | Phase::Cleaning => true,
                Phase::Draining { .. } => instance.holders.is_empty(),
                Phase::Suspended { .. } => !instance.phase.is_stopped(),
                Phase::Ready | Phase::OutOfService { .. } => false,
            };
            if busy && long(instance.since, ALLOWANCE_MS) {
                return Some(format!("{} is {}", instance.id, instance.phase.word()));
            }
        }
        // Only its own manager judges an attempt. A call probes its instance first and starts a keeper afterwards: its
        // runner may die in between.
        let mut granted =
            journal.state().granted.iter().filter(|(_, g)| g.reservation.manager() == now.manager);
        if let Some((name, _)) = granted.find(|(_, g)| long(g.reservation.requested_at, 2 * ALLOWANCE_MS)) {
            return Some(format!("nobody watches over {name}"));
        }
    }
    None
}
