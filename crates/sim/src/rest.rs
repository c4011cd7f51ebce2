//! The checks that must hold when the simulation has come to rest.
//!
//! Promise 3: whatever was killed, after the grace period and the next pass nothing is leaked and nothing is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::instance::Phase;
use greenroom_core::policy::Policy;
use greenroom_testkit::memory_host::AttemptDir;

use super::orders;
use super::process::Kind;
use super::truth::JobResult;
use super::world::{Manager, World};

/// The time from the end of the last job until nothing may be left: the longest time an attempt may stay open without a
/// call, the retention of its directory, the age at which an orphan is reaped, and the passes of three `reap`s.
pub const GRACE_MS: u64 = (10 + 10 + 5 + 15 + 10) * 60_000;

/// True if every job has a result.
pub fn jobs_ended(world: &World) -> bool {
    world.truth.results.len() == world.scenario.jobs.len()
}

/// The first problem at rest.
pub fn problem(world: &World) -> Option<String> {
    let pools = || policies(world).iter().find_map(|(pool, policy)| pool_at_rest(world, pool, policy));
    lost_jobs(world)
        .or_else(|| blame(world))
        .or_else(|| orphans(world))
        .or_else(pools)
        .or_else(|| stale_keys(world))
}

fn lost_jobs(world: &World) -> Option<String> {
    let missing = world.scenario.jobs.iter().find(|j| !world.truth.results.contains_key(&j.facts.key.id))?;
    Some(format!("promise 3: job {} never ended", missing.facts.key))
}

/// Promise 6: a failure is attributed to the script exactly when a script failed or used up its instance alone, and to the
/// system only when a fault occurred.
fn blame(world: &World) -> Option<String> {
    for job in &world.scenario.jobs {
        let id = job.facts.key.id;
        let script_fails =
            job.stages.iter().any(|(_, exit)| *exit != 0) || world.truth.early.jobs.contains(&id);
        let excuse = world.truth.excuses.get(&id);
        match world.truth.results.get(&id) {
            Some(JobResult::Failed)
                if !script_fails && !orders::is_impossible(&job.facts) && !has_used_up(world, id) =>
            {
                return Some(format!("promise 6: job {id} is blamed for what its script did not do"));
            }
            Some(JobResult::Passed) if script_fails => {
                return Some(format!("promise 6: job {id} passed although its script failed"));
            }
            Some(JobResult::Passed) if orders::is_impossible(&job.facts) => {
                return Some(format!("promise 6: job {id} passed although its image does not exist"));
            }
            Some(JobResult::SystemFailure) if excuse.is_none() => {
                return Some(format!("promise 3: job {id} failed although nothing went wrong around it"));
            }
            _ => {}
        }
    }
    None
}

/// True if the job used up an instance: no other one was ever there.
fn has_used_up(world: &World, job: u64) -> bool {
    let is_its = |attempt: &AttemptName| {
        world.truth.attempts.get(attempt).is_some_and(|(_, facts)| facts.key.id == job)
    };
    let is_used_up = |id: &InstanceId| {
        let past = world.cloud.past.get(id).map(|(machine, _)| machine);
        world.cloud.machines.get(id).or(past).is_some_and(|machine| machine.used_up)
    };
    let mut guests =
        world.truth.guests.iter().filter(|(id, _)| is_used_up(id)).map(|(_, guests)| &guests.ever);
    guests.any(|ever| !ever.is_empty() && ever.iter().all(is_its))
}

fn orphans(world: &World) -> Option<String> {
    for (number, manager) in world.partners(0) {
        let directory = manager.directory.borrow();
        if let Some((name, _)) = directory.attempts.iter().find(|(_, dir)| is_overdue(world, number, dir)) {
            return Some(format!("promise 3: attempt {name} was never removed"));
        }
    }
    let busy: Vec<String> = living(world).into_iter().filter(|name| !name.contains("service")).collect();
    let waits = |manager: &Manager| manager.directory.borrow().reports.values().any(|r| r.next.is_some());
    let due = world.partners(0).any(|(_, manager)| waits(manager));
    // A keeper waits for its pulls in advance, each of which ends at its deadline.
    if !busy.is_empty() && !due && !world.scenario.service && !world.truth.images.any_pull() {
        return Some(format!("promise 3: still alive at rest: {}", busy.join(", ")));
    }
    None
}

/// Keys of instances that neither a record nor the provider has.
fn stale_keys(world: &World) -> Option<String> {
    let ledger = &world.ledgers[0];
    let recorded: BTreeSet<&InstanceId> =
        ledger.journals.values().flat_map(|j| j.state().instances.keys()).collect();
    // No record is left of an instance that was removed from the journal by hand and has ended by itself.
    let orphaned = |id: &InstanceId| world.cloud.past.get(id).is_some_and(|(m, _)| m.orphaned);
    let known = |id: &InstanceId| recorded.contains(id) || world.cloud.machines.contains_key(id);
    let key = ledger.keys.keys().find(|id| !known(id) && !orphaned(id))?;
    Some(format!("promise 3: the keys of {key} were never removed"))
}

/// An attempt's directory is removed some time after its end. Across boots the wall clock measures that time, and one
/// that was set back a day keeps it for a day more. A directory without a record (only `cleanup` came) belongs to no
/// pool.
fn is_overdue(world: &World, manager: usize, dir: &AttemptDir) -> bool {
    let Some(record) = &dir.record else { return false };
    let kept = world.config[&record.pool].policy.timing.attempt_retention + Duration::from_mins(10);
    let now = world.stamp(manager);
    dir.closed.is_none_or(|closed| now.reached(closed.at.plus(kept)))
}

fn pool_at_rest(world: &World, pool: &PoolName, policy: &Policy) -> Option<String> {
    let state = world.ledgers[0].journals.get(pool)?.state();
    if let Some(waiting) = state.waiting.values().next() {
        return Some(format!("promise 3: {} still waits in {pool}", waiting.attempt));
    }
    if let Some((attempt, grant)) = state.granted.iter().next() {
        return Some(format!("promise 3: {attempt} still holds {}", grant.instance));
    }
    for instance in state.instances.values() {
        let settled = matches!(instance.phase, Phase::Ready | Phase::OutOfService { .. })
            || instance.phase.is_stopped();
        if let Some(why) = &instance.unreachable {
            return Some(format!("promise 3: {} is still unreachable: {}", instance.id, why.reason));
        }
        if instance.awaits_check().is_some() {
            return Some(format!("promise 3: no keeper has checked {}", instance.id));
        }
        if instance.phase == Phase::Ready && instance.awaits_recheck() {
            return Some(format!("promise 3: no keeper has checked {} since its last job", instance.id));
        }
        if let Some(ordered) = &instance.ordered {
            return Some(format!(
                "promise 3: {} is kept for job {}, which has ended",
                instance.id, ordered.job
            ));
        }
        if !settled || !instance.holders.is_empty() {
            return Some(format!("promise 3: {} is still {}", instance.id, instance.phase.word()));
        }
        if instance.launch.is_some() && !world.cloud.machines.contains_key(&instance.id) {
            return Some(format!("promise 3: {} is recorded and does not exist", instance.id));
        }
    }
    for machine in world.cloud.machines.values().filter(|m| m.owned && m.pool == *pool) {
        if !state.instances.contains_key(&machine.id) {
            return Some(format!("promise 3: {} is leaked", machine.id));
        }
    }
    surplus(world, pool, policy)
}

/// No more idle slots than the policy requires, and no fewer.
fn surplus(world: &World, pool: &PoolName, policy: &Policy) -> Option<String> {
    let plan = &world.config[pool];
    if !plan.capabilities.launches {
        return None;
    }
    let state = world.ledgers[0].journals.get(pool)?.state();
    let target = policy.idle.idle_count;
    let fresh = policy.capacity_per_instance.min(policy.max_use_count.unwrap_or(u32::MAX));
    let needed = target.div_ceil(fresh).min(policy.max_instances);
    let (stopped, idle): (Vec<_>, Vec<_>) = state.instances.values().partition(|i| i.phase.is_stopped());
    let count = u32::try_from(idle.len()).unwrap_or(u32::MAX);
    let spare: u32 = idle.iter().map(|i| i.usable()).sum();
    let smallest = idle.iter().map(|i| i.usable()).min().unwrap_or(0);
    let room = policy.max_instances.saturating_sub(count);
    let wanted = policy.idle_stopped.min(room);
    let stopped = u32::try_from(stopped.len()).unwrap_or(u32::MAX);
    if stopped > policy.idle_stopped || (stopped < wanted && policy.max_lifetime.is_none()) {
        return Some(format!("{stopped} instances are stopped in {pool}, {wanted} are wanted"));
    }
    if count > 0 && spare.saturating_sub(smallest) >= target && policy.max_lifetime.is_none() {
        return Some(format!(
            "{count} instances with {spare} idle slots are kept in {pool}, {target} are wanted"
        ));
    }
    (count < needed && spare < target)
        .then(|| format!("only {count} instances idle in {pool}, {needed} are wanted"))
}

/// Greenroom's living processes, for messages.
fn living(world: &World) -> Vec<String> {
    let kinds = [Kind::Prepare, Kind::Run, Kind::Cleanup, Kind::Keep, Kind::Reap];
    let pids = kinds.into_iter().flat_map(|kind| world.living(kind));
    pids.filter_map(|pid| world.processes.get(&pid)).map(|p| p.name.clone()).collect()
}

/// One policy of every pool as it is at the end.
fn policies(world: &World) -> Vec<(PoolName, Arc<Policy>)> {
    world.config.values().map(|p| (p.name.clone(), Arc::clone(&p.policy))).collect()
}
