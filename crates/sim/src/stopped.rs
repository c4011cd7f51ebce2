//! The tier *stopped*: some seeds' pool keeps suspended instances, and its jobs come in bursts.
//!
//! Everything is drawn from a stream of its own, so that the course of the other seeds does not depend on this file.

use std::sync::Arc;
use std::time::Duration;

use greenroom_core::event::Change;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::Suspends;
use greenroom_core::pool::PoolState;
use greenroom_core::report::Report;
use greenroom_core::time::Stamp;

use super::fault::{Fault, Windows};
use super::rng::Rng;
use super::scenario::{JobPlan, PoolPlan};
use super::world::World;

/// Faults of suspensions, and their rate per thousand.
const FAULTS: [(Fault, u64); 5] = [
    (Fault::SuspendFails, 200),
    (Fault::SuspendLost, 200),
    (Fault::SuspendStuck, 150),
    (Fault::ResumeFails, 200),
    (Fault::ResumeHangs, 200),
];
/// A pass that began this long after the operator's drain knew of it.
const KNOWN: Duration = Duration::from_secs(45);

/// Gives the pool a tier in some seeds, mostly without idle instances beside it.
pub(super) fn draw(seed: u64, pool: &mut PoolPlan, jobs: &mut [JobPlan]) {
    let mut rng = Rng::new(seed, "stopped");
    if !rng.chance(300) {
        return;
    }
    pool.capabilities.suspends = Suspends::Yes;
    let alone = rng.chance(700);
    let policy = Arc::make_mut(&mut pool.policy);
    policy.idle_stopped = u32::try_from(rng.within(1..4)).unwrap_or(1);
    policy.timing.suspend_timeout = Duration::from_mins(2);
    policy.timing.resume_timeout = Duration::from_secs(90);
    if alone {
        policy.idle.idle_count = 0;
        policy.idle.scale_factor = 0.0;
    }
    // Nothing comes for a while, then several jobs at once.
    let mut first = 0;
    while first < jobs.len() {
        let size = usize::try_from(rng.within(2..8)).unwrap_or(2);
        let burst = first..jobs.len().min(first + size);
        let comes = jobs[burst.end - 1].comes;
        for job in &mut jobs[burst.clone()] {
            job.comes = comes;
        }
        first = burst.end;
    }
}

/// Adds the seed's faults of suspensions to the windows, until everything calms down.
pub(super) fn faults(seed: u64, mut windows: Windows, calm: u64) -> Windows {
    let mut rng = Rng::new(seed, "stopped faults");
    for (fault, per_mille) in FAULTS {
        if rng.chance(350) {
            windows = windows.with(fault, calm, per_mille);
        }
    }
    windows
}

/// Promise 4, when a suspension is sent to the provider.
pub(super) fn suspend_requested(world: &mut World, id: &InstanceId) {
    let dead = world.cloud.machines.get(id).is_none_or(|m| m.down || m.going);
    let holder = world.truth.jobs_on(id).next().map(|live| live.job);
    if let Some(job) = holder.filter(|_| !dead) {
        world.broken(format!("promise 4: {id} is suspended while job {job} holds it"));
    }
}

/// Promise 1, when events were recorded: a resumed instance serves no job before it has been reached.
pub(super) fn committed(world: &mut World, change: &Change) {
    match change {
        Change::ResumeIntended { instance } => {
            world.truth.resuming.insert(instance.clone(), false);
        }
        Change::BecameReady { instance } if world.truth.resuming.remove(instance) == Some(false) => {
            world.broken(format!("promise 1: {instance} was resumed and is ready without a probe"));
        }
        Change::Forgotten { instance } => {
            world.truth.resuming.remove(instance);
        }
        _ => {}
    }
}

/// An instance accepted a login.
pub(super) fn reached(world: &mut World, id: &InstanceId) {
    if let Some(reached) = world.truth.resuming.get_mut(id) {
        *reached = true;
    }
}

/// Promise 3, when a pass has reported: a drain forgets no stopped instance.
pub(super) fn reported(world: &mut World, state: &PoolState, pool: &PoolName, report: &Report) {
    let Some(drained) = state.drained else { return };
    let knew = |since: Stamp| report.at.seen_from(since).reached(since.plus(KNOWN));
    let left = state.instances.values().find(|i| i.phase.is_stopped() && knew(drained) && knew(i.since));
    if let Some(left) = left {
        let id = left.id.clone();
        world.broken(format!("promise 3: {pool} is drained, and {id} is still stopped"));
    }
}
