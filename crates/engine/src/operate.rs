//! Operators' commands: drain, resume, and the plan as a dry run.

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::{DrainReason, Instance, Phase};
use greenroom_core::plan::request;
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Note, Report};
use greenroom_core::time::Stamp;

use super::{Engine, EngineError};

/// The target of an operator's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Pool,
    Instance(InstanceId),
}

/// A command that cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    #[error("pool `{pool}` has no instance `{instance}`")]
    NoSuchInstance { pool: String, instance: InstanceId },
    #[error("instance `{instance}` is {phase}: nothing to resume")]
    NothingToResume { instance: InstanceId, phase: &'static str },
    #[error("instance `{instance}` still runs a job: repeat the command after the job")]
    StillHeld { instance: InstanceId },
    #[error(
        "instance `{instance}` is not a static host: it stays with its trust domain until it is terminated"
    )]
    NotStatic { instance: InstanceId },
    #[error("host `{instance}` is not bound to a trust domain: nothing to unbind")]
    NotBound { instance: InstanceId },
    #[error(
        "the keeper's last pass found no instance of pool `{pool}` in another location than the provider's"
    )]
    NothingElsewhere { pool: String },
    #[error(
        "the provider of pool `{pool}` answered the keeper's last pass: `greenroom pool drain {pool} --wait` terminates its \
         instances"
    )]
    ProviderAnswers { pool: String },
    #[error(transparent)]
    Trouble(#[from] EngineError),
}

impl Engine {
    /// No new jobs; instances are terminated when their present jobs have ended. A dry run returns what would be
    /// committed.
    pub async fn drain(&self, target: &Target, dry: bool) -> Result<Vec<Event>, OperateError> {
        self.apply(target, dry, drain_events).await
    }

    /// Resumes a drained pool, or returns an instance to service.
    pub async fn resume(&self, target: &Target, dry: bool) -> Result<Vec<Event>, OperateError> {
        if let Target::Instance(id) = target {
            let state = self.store.load().await.map_err(EngineError::from)?;
            if let Some(instance) = state.instance(id)
                && !matches!(instance.phase, Phase::OutOfService { .. })
            {
                let phase = instance.phase.word();
                return Err(OperateError::NothingToResume { instance: id.clone(), phase });
            }
            if state.instance(id).is_some_and(|i| !i.holders.is_empty()) {
                return Err(OperateError::StillHeld { instance: id.clone() });
            }
        }
        let report = self.host.reports.read_report(&self.pool).await.map_err(EngineError::from)?;
        let failing = |note: &Note| matches!(note, Note::CallsFailing { .. } | Note::ListFailed { .. });
        let calls_fail = report.is_some_and(|report| report.notes.iter().any(failing));
        self.apply(target, dry, |state, target, now| resume_events(state, target, calls_fail, now)).await
    }

    /// Ends the back-off after failed and refused launches: their cause is removed. A drained pool stays drained.
    pub async fn retry_launches(&self) -> Result<Vec<Event>, OperateError> {
        self.apply(&Target::Pool, false, |state, _, now| retry_events(state, now)).await
    }

    /// Releases a static host from its trust domain, and returns it to service. The operator answers for the host: what
    /// its jobs have left on it, apart from what cleaning removes, meets the jobs of the next domain.
    pub async fn unbind(&self, id: &InstanceId, dry: bool) -> Result<Vec<Event>, OperateError> {
        let state = self.store.load().await.map_err(EngineError::from)?;
        if let Some(known) = state.instance(id) {
            let instance = id.clone();
            if !known.is_static() {
                return Err(OperateError::NotStatic { instance });
            }
            if !known.holders.is_empty() {
                return Err(OperateError::StillHeld { instance });
            }
            if known.domain.is_none() {
                return Err(OperateError::NotBound { instance });
            }
        }
        self.apply(&Target::Instance(id.clone()), dry, |state, _, now| unbind_events(state, id, now)).await
    }

    /// Drops the records of instances without jobs in another location than the one that the last pass listed. The
    /// operator answers for those instances from then on.
    pub async fn forget_elsewhere(&self, dry: bool) -> Result<Vec<Event>, OperateError> {
        let report = self.host.reports.read_report(&self.pool).await.map_err(EngineError::from)?;
        let here = report.as_ref().and_then(Report::elsewhere);
        let here = here.ok_or_else(|| OperateError::NothingElsewhere { pool: self.pool.to_string() })?;
        let dropped = |instance| Change::Forgotten { instance };
        self.drop_records(dry, &|instance| instance.is_outside(here), &dropped).await
    }

    /// Drops the records of all launched instances without jobs, if the provider did not answer the last pass. The operator
    /// answers for those instances from then on.
    pub async fn forget_unreachable(&self, dry: bool) -> Result<Vec<Event>, OperateError> {
        let report = self.host.reports.read_report(&self.pool).await.map_err(EngineError::from)?;
        let failure = report.as_ref().and_then(Report::list_failure);
        let failure = failure.ok_or_else(|| OperateError::ProviderAnswers { pool: self.pool.to_string() })?;
        let state = self.store.load().await.map_err(EngineError::from)?;
        let has_job = |i: &&Arc<Instance>| i.holders.values().any(|holder| holder.closing.is_none());
        if let Some(held) = state.instances.values().find(has_job) {
            return Err(OperateError::StillHeld { instance: held.id.clone() });
        }
        let problem = failure.to_string();
        let dropped = |instance| Change::RecordDropped { instance, problem: problem.clone() };
        self.drop_records(dry, &|instance| !instance.is_static(), &dropped).await
    }

    /// Drains the instances without jobs that `which` names, and drops their records. A dry run returns what would be
    /// committed.
    async fn drop_records(
        &self,
        dry: bool,
        which: &dyn Fn(&Instance) -> bool,
        dropped: &dyn Fn(InstanceId) -> Change,
    ) -> Result<Vec<Event>, OperateError> {
        let withdraw = |state: &PoolState, _: &Target, now| withdraw_events(state, which, now);
        if dry {
            let state = self.store.load().await.map_err(EngineError::from)?;
            let now = self.now();
            let gone = unused(&state, which).map(|i| dropped(i.id.clone()).at(now));
            return Ok(withdraw(&state, &Target::Pool, now).into_iter().chain(gone).collect());
        }
        // CRASH: keys go while the records still show what is left to do, and only those of instances that get no job.
        let mut events = self.apply(&Target::Pool, dry, withdraw).await?;
        let state = self.store.load().await.map_err(EngineError::from)?;
        let gone: BTreeSet<&InstanceId> = ending(&state, which).map(|i| &i.id).collect();
        for instance in &gone {
            self.connector.discard_keys(instance).await;
        }
        let forget = |state: &PoolState, _: &Target, now| {
            let going = ending(state, which).filter(|i| gone.contains(&i.id));
            going.map(|i| dropped(i.id.clone()).at(now)).collect()
        };
        events.extend(self.apply(&Target::Pool, dry, forget).await?);
        Ok(events)
    }

    async fn apply(
        &self,
        target: &Target,
        dry: bool,
        decide: impl Fn(&PoolState, &Target, Stamp) -> Vec<Event>,
    ) -> Result<Vec<Event>, OperateError> {
        let state = self.store.load().await.map_err(EngineError::from)?;
        if let Target::Instance(id) = target
            && state.instance(id).is_none()
        {
            let pool = self.pool.to_string();
            let instance = id.clone();
            return Err(OperateError::NoSuchInstance { pool, instance });
        }
        if dry {
            return Ok(decide(&state, target, self.now()));
        }
        let committed =
            self.commit(|state| decide(state, target, self.now())).await.map_err(EngineError::from)?;
        self.summon().await.map_err(EngineError::from)?;
        // CRASH: nobody repeats a command that has succeeded, so a power cut must not undo it.
        self.store.sync().await.map_err(EngineError::from)?;
        Ok(committed.events)
    }
}

fn drain_events(state: &PoolState, target: &Target, now: Stamp) -> Vec<Event> {
    let withdraw = |id: &InstanceId| request::withdraw(state, id, DrainReason::ByOperator, now);
    match target {
        Target::Instance(id) => withdraw(id),
        Target::Pool => {
            let mut events = Vec::new();
            if state.drained.is_none() {
                events.push(Change::PoolDrained.at(now));
            }
            // A static host of a drained pool stays in its phase; it only gets no jobs.
            let going = state.instances.values().filter(|i| !i.is_static());
            events.extend(going.flat_map(|i| withdraw(&i.id)));
            events
        }
    }
}

/// The instances among these that have no jobs.
fn unused<'a>(
    state: &'a PoolState,
    which: &'a dyn Fn(&Instance) -> bool,
) -> impl Iterator<Item = &'a Instance> {
    let instances = state.instances.values().map(Arc::as_ref);
    instances.filter(move |i| which(i) && i.holders.is_empty())
}

/// The instances among these that never get a job again.
fn ending<'a>(
    state: &'a PoolState,
    which: &'a dyn Fn(&Instance) -> bool,
) -> impl Iterator<Item = &'a Instance> {
    unused(state, which).filter(|i| i.is_static() || matches!(i.phase, Phase::Draining { .. }))
}

fn withdraw_events(state: &PoolState, which: &dyn Fn(&Instance) -> bool, now: Stamp) -> Vec<Event> {
    let ends: BTreeSet<&InstanceId> = ending(state, which).map(|i| &i.id).collect();
    let begun = unused(state, which).filter(|i| !ends.contains(&i.id));
    begun
        .map(|i| Change::DrainingBegun { instance: i.id.clone(), reason: DrainReason::ByOperator }.at(now))
        .collect()
}

fn unbind_events(state: &PoolState, id: &InstanceId, now: Stamp) -> Vec<Event> {
    let unbindable = |host: &&Instance| host.is_static() && host.holders.is_empty() && host.domain.is_some();
    let Some(host) = state.instance(id).filter(unbindable) else { return Vec::new() };
    let instance = || id.clone();
    let out_of_service = matches!(host.phase, Phase::OutOfService { .. });
    let returned = out_of_service.then(|| Change::ReturnedToService { instance: instance() });
    [Change::Unbound { instance: instance() }]
        .into_iter()
        .chain(returned)
        .map(|change| change.at(now))
        .collect()
}

fn retry_events(state: &PoolState, now: Stamp) -> Vec<Event> {
    let has_failed = state.launches.failures > 0 || state.availability.has_refusals();
    let has_effect = has_failed && state.drained.is_none();
    has_effect.then(|| Change::PoolResumed.at(now)).into_iter().collect()
}

fn resume_events(state: &PoolState, target: &Target, calls_fail: bool, now: Stamp) -> Vec<Event> {
    match target {
        Target::Instance(id) => {
            let resumable =
                |i: &Instance| matches!(i.phase, Phase::OutOfService { .. }) && i.holders.is_empty();
            let instance = state.instance(id).filter(|i| resumable(i));
            instance.map(|_| Change::ReturnedToService { instance: id.clone() }.at(now)).into_iter().collect()
        }
        Target::Pool => {
            let has_effect = calls_fail
                || state.drained.is_some()
                || state.launches.failures > 0
                || state.availability.has_refusals();
            has_effect.then(|| Change::PoolResumed.at(now)).into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::notation::{NOW, world};

    use super::*;

    #[test]
    fn a_pool_without_a_back_off_is_resumed_only_if_calls_fail() {
        let world = world("");
        assert_eq!(resume_events(&world.state, &Target::Pool, false, NOW), []);
        let resumed = resume_events(&world.state, &Target::Pool, true, NOW);
        assert_eq!(resumed, [Change::PoolResumed.at(NOW)]);
        let mut state = world.state;
        state.apply(&resumed[0]).unwrap();
        assert_eq!(state.resumed, Some(NOW));
    }

    #[test]
    fn launches_are_retried_after_failures_unless_the_operator_drains_the_pool() {
        for failed in ["failures 5 1s |", "offerings 1, out c1 30s |"] {
            let mut world = world(failed);
            assert_eq!(retry_events(&world.state, NOW), [Change::PoolResumed.at(NOW)], "{failed}");
            world.state.drained = Some(NOW);
            assert_eq!(retry_events(&world.state, NOW), [], "{failed}");
        }
        assert_eq!(retry_events(&greenroom_core::notation::world("").state, NOW), []);
    }
}
