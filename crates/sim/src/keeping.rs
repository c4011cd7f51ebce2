//! Checks keepers: only one acts, and none leaves work behind.
//!
//! Promise 3 depends on it: the keeper completes what a killed process left undone.

use greenroom_core::ids::PoolName;
use greenroom_core::instance::Phase;
use greenroom_core::time::Stamp;

use super::check::ALLOWANCE_MS;
use super::process::{Exit, Kind};
use super::steps::Pid;
use super::world::World;

/// The shortest time between two failed waits of a keeper.
const BACK_OFF_MS: u64 = 1_000;

/// A process is about to call a provider. A keeper does so under its lock only.
pub(super) fn acts(world: &mut World, pid: Pid, call: &str) {
    let Some(process) = world.processes.get(&pid).filter(|p| p.kind == Kind::Keep) else { return };
    if !world.managers[process.machine].directory.borrow().keeper_lives() {
        let name = process.name.clone();
        world.broken(format!("promise 3: {name} makes {call} without being the keeper"));
    }
}

/// A process of machine 0 becomes the keeper.
pub(super) fn locked(world: &mut World, pid: Pid) {
    world.truth.keeper_left = None;
    world.truth.keeper = Some(pid);
    world.truth.relied.clear();
    // It knows of no failed call.
    world.truth.pauses.clear();
}

/// A process has found a living keeper, and relies on it to see what was committed before.
pub(super) fn relied_on(world: &mut World) {
    world.truth.relied = world.config.keys().cloned().collect();
}

/// A process has read a pool's state.
pub(super) fn state_read(world: &mut World, pid: Pid, pool: &PoolName) {
    if world.truth.keeper == Some(pid) {
        world.truth.relied.remove(pool);
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
    let Some(process) = world.processes.get(&pid).filter(|p| p.machine == 0) else { return };
    let keeps = process.kind == Kind::Keep && !world.managers[0].directory.borrow().keeper_lives();
    if exit == Exit::Killed {
        world.truth.keeper_left = None; // it may have been about to start the next one
    } else if keeps && exit == Exit::Code(0) {
        world.truth.keeper_left = Some(world.now);
        if world.truth.keeper == Some(pid)
            && let Some(pool) = world.truth.relied.first()
        {
            let missed = format!("promise 3: the keeper leaves, and somebody in {pool} relies on it");
            world.broken(missed);
        }
    }
}

/// While there is work, a keeper is running, except for the time it takes to notice that it exited.
pub(super) fn after_step(world: &mut World) {
    let excused = world.truth.excused;
    let Some(left) = world.truth.keeper_left else { return };
    if world.now <= left.max(excused) + ALLOWANCE_MS {
        return;
    }
    if let Some(work) = work(world) {
        world.truth.keeper_left = None;
        world.broken(format!("promise 3: the keeper left {} ms ago, and {work}", world.now - left));
    }
}

/// Work that only a keeper does, recorded on machine 0 for so long that a keeper should have been started.
fn work(world: &World) -> Option<String> {
    let now = world.stamp(0);
    let long = |since: Stamp, allowed: u64| now.since(since).as_millis() > u128::from(allowed);
    for journal in world.managers[0].journals.values() {
        for instance in journal.state().instances.values() {
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
        // A call probes its instance first and starts a keeper afterwards: its runner may die in between.
        let mut granted = journal.state().granted.iter();
        if let Some((name, _)) = granted.find(|(_, g)| long(g.reservation.requested_at, 2 * ALLOWANCE_MS)) {
            return Some(format!("nobody watches over {name}"));
        }
    }
    None
}
