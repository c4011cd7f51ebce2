//! Instances on which every job fails before its own script begins, although the keeper finds them fit.
//!
//! Promise 4: such an instance serves a job only while no other one could, and is replaced once jobs of two projects in a
//! row have failed there and others pass elsewhere. None is replaced without that.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, InstanceId};
use greenroom_core::instance::{DrainReason, Phase};
use greenroom_core::job_end::JobResult;
use greenroom_core::pool::PoolState;

use super::check;
use super::fate;
use super::fault::Fault;
use super::rng::Rng;
use super::scenario::Moment;
use super::world::World;

/// The failures before the jobs' own scripts that really happened, for comparison with the record.
#[derive(Debug, Default)]
pub struct EarlyTruth {
    /// The attempts whose first stage failed within seconds, or whose images did not come.
    failed: BTreeSet<AttemptName>,
    /// Jobs whose runner's own script failed on such an instance.
    pub jobs: BTreeSet<u64>,
    /// The instance that each attempt was granted.
    places: BTreeMap<AttemptName, InstanceId>,
    rows: BTreeMap<InstanceId, Row>,
}

/// Recorded failures since a job last passed there.
#[derive(Debug, Default)]
struct Row {
    projects: BTreeSet<String>,
    pass_elsewhere: bool,
}

impl Row {
    fn is_suspect(&self) -> bool {
        self.projects.len() > 1
    }
}

/// Some seeds have such instances.
pub(super) fn draw(seed: u64, calm: u64) -> Vec<Moment> {
    let mut rng = Rng::new(seed, "early");
    let times = if rng.chance(400) { rng.within(1..4) } else { 0 };
    let moment =
        |rng: &mut Rng| Moment { at: rng.below(calm * 9 / 10), fault: Fault::FailsEarly, dice: rng.word() };
    (0..times).map(|_| moment(&mut rng)).collect()
}

/// The duration of the attempt's first stage on an instance where it fails; `None`: the instance works.
pub(super) fn strikes(world: &mut World, id: &InstanceId, attempt: &AttemptName) -> Option<u64> {
    if !world.cloud.machines.get(id).is_some_and(|m| m.fails_early) {
        return None;
    }
    world.cover.fault(Fault::FailsEarly);
    let job = world.truth.attempts.get(attempt)?.1.key.id;
    world.truth.early.jobs.insert(job);
    world.truth.excuse(job, "its instance fails early");
    Some(world.streams.latency.within(10..5_000))
}

/// The report of the script for a job's containers on an instance that reaches no registry; `None`: the instance works.
pub(super) fn unreached(world: &mut World, id: &InstanceId) -> Option<&'static str> {
    if !world.cloud.machines.get(id).is_some_and(|m| m.fails_early) {
        return None;
    }
    world.cover.fault(Fault::FailsEarly);
    fate::excuse_jobs(world, id, "its instance reaches no registry");
    let granted = world.ledgers[0].journals.values().flat_map(|j| &j.state().granted);
    let there: Vec<AttemptName> =
        granted.filter(|(_, grant)| grant.instance == *id).map(|(attempt, _)| attempt.clone()).collect();
    world.truth.early.failed.extend(there);
    Some("failed 0 always 3 dial tcp: lookup registry: server misbehaving\n")
}

/// A first stage has failed within seconds, for whatever reason.
pub(super) fn failed(world: &mut World, attempt: &AttemptName) {
    world.truth.early.failed.insert(attempt.clone());
}

/// Records were lost in a power cut: the recorded jobs count now.
pub(super) fn records_lost(world: &mut World) {
    let instances = world.ledgers[0].journals.values().flat_map(|j| j.state().instances.values());
    let recorded = instances.filter_map(|i| Some((i.id.clone(), i.early.clone()?)));
    let rows = recorded.map(|(id, row)| {
        let projects = row.jobs.iter().filter_map(|job| project(world, &job.attempt));
        (id, Row { projects: projects.collect(), pass_elsewhere: row.pass_elsewhere })
    });
    world.truth.early.rows = rows.collect();
}

/// An event was recorded; `state` is the result of its transaction.
pub(super) fn committed(world: &mut World, manager: usize, state: &PoolState, event: &Event) {
    if world.is_copy(manager) {
        return; // a copy serves no jobs
    }
    match &event.change {
        Change::Granted { attempt, instance } => granted(world, state, attempt, instance),
        Change::FailedEarly { attempt, .. } => counted(world, attempt),
        Change::JobEnded { attempt, end } if end.result == JobResult::Passed => passed(world, state, attempt),
        Change::Rechecked { instance } => checked(world, state, instance),
        Change::DrainingBegun { instance, reason: DrainReason::FailsEarly { .. } } => {
            let row = world.truth.early.rows.get(instance);
            if !row.is_some_and(|row| row.is_suspect() && row.pass_elsewhere) {
                world.broken(format!("promise 4: {instance} is replaced, and no two projects failed there"));
            }
        }
        Change::ReturnedToService { instance } | Change::Forgotten { instance } => {
            world.truth.early.rows.remove(instance);
        }
        _ => {}
    }
}

fn project(world: &World, attempt: &AttemptName) -> Option<String> {
    Some(world.truth.attempts.get(attempt)?.1.project.to_string())
}

fn counted(world: &mut World, attempt: &AttemptName) {
    let Some((id, project)) = world.truth.early.places.get(attempt).cloned().zip(project(world, attempt))
    else {
        return;
    };
    if !world.truth.early.failed.contains(attempt) {
        world.broken(format!("promise 4: {attempt} is recorded as failed early, and has not"));
    }
    world.truth.early.rows.entry(id).or_default().projects.insert(project);
}

fn passed(world: &mut World, state: &PoolState, attempt: &AttemptName) {
    let Some(id) = world.truth.early.places.get(attempt).cloned() else { return };
    world.truth.early.rows.remove(&id);
    let others = world.truth.early.rows.iter_mut().filter(|(other, _)| state.instances.contains_key(*other));
    for (_, row) in others {
        row.pass_elsewhere = true;
    }
}

fn checked(world: &mut World, state: &PoolState, id: &InstanceId) {
    let Some(row) = world.truth.early.rows.get(id) else { return };
    let is_proven = row.is_suspect() && row.pass_elsewhere;
    let known = state.instance(id);
    let serves = |phase: &Phase| !matches!(phase, Phase::Draining { .. });
    if is_proven && known.is_some_and(|i| !i.is_static() && serves(&i.phase)) {
        world.broken(format!("promise 4: jobs of two projects failed on {id}, and it is not replaced"));
    }
}

fn granted(world: &mut World, state: &PoolState, attempt: &AttemptName, id: &InstanceId) {
    world.truth.early.places.insert(attempt.clone(), id.clone());
    let is_suspect = |id: &InstanceId| world.truth.early.rows.get(id).is_some_and(Row::is_suspect);
    let Some(grant) = state.granted.get(attempt).filter(|_| is_suspect(id)) else { return };
    let job = &grant.reservation;
    let better = state.instances.values().find(|other| {
        let is_idle = other.holders.is_empty() && !other.must_be_checked() && !is_suspect(&other.id);
        is_idle && check::may_serve(world, 0, state, (job, other))
    });
    if let Some(better) = better {
        let better = &better.id;
        world.broken(format!("promise 4: {attempt} gets {id}, where jobs fail early, and {better} is idle"));
    }
}
