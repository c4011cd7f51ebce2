//! Instances that answer and begin no stages or no containers: what a job's call records, and how the keeper checks them.

use super::effect::EffectResult;
use super::stage::{StageError, StageKind};
use super::{Engine, EngineError};
use crate::core::container::soundness::Soundness;
use crate::core::endpoint::Endpoint;
use crate::core::failure::{ErrorClass, Failure};
use crate::core::ids::{AttemptName, InstanceId};
use crate::core::instance::{DrainReason, Phase};
use crate::core::plan::{request, stages};
use crate::core::pool::PoolState;
use crate::core::unbegun::CheckKind;
use crate::port::attempts::Assignment;
use crate::port::connector::{ConnectError, Mark};
use crate::port::setup::PoolSetup;

impl Engine {
    /// Records that a stage did not begin; the error says what follows. `None`: the instance is going anyway, which
    /// explains more.
    pub(super) async fn stage_not_begun(
        &self,
        attempt: &AttemptName,
        assignment: &Assignment,
        kind: StageKind,
        why: &str,
    ) -> Option<StageError> {
        let (instance, why) = (assignment.instance.clone(), why.to_owned());
        // Other stages begin where no container starts, so they would acquit it. A new instance costs one boot.
        let in_container = kind.in_container && assignment.container.is_some();
        let decide = |state: &PoolState| {
            if in_container {
                let broken = DrainReason::Broken { message: why.clone() };
                request::withdraw(state, &instance, broken, self.now())
            } else {
                stages::not_begun(state, attempt, (CheckKind::Stages, &why), self.now())
            }
        };
        let next = match self.commit(decide).await {
            Ok(committed) => {
                if let Err(problem) = self.after_unbegun(attempt, assignment).await {
                    tracing::warn!(pool = %self.pool, "{instance} began no stage of {attempt}: {problem}");
                }
                next(&committed.state, &instance)?.to_owned()
            }
            Err(problem) => format!("this could not be recorded: {problem}"),
        };
        Some(StageError::NotBegun { instance, why, next })
    }

    /// A later stage of the attempt that begins has to be recorded, and the keeper may have something to do.
    async fn after_unbegun(&self, attempt: &AttemptName, assignment: &Assignment) -> Result<(), EngineError> {
        if !assignment.unbegun {
            let noted = Assignment { unbegun: true, ..assignment.clone() };
            self.host.attempts.assign(attempt, Some(&noted)).await?;
        }
        Ok(self.summon().await?)
    }

    /// A stage has begun on an instance that had not begun one before. The job goes on even if that cannot be recorded:
    /// then its next stage records it.
    pub(super) async fn stage_begun(&self, id: &InstanceId) {
        if let Err(problem) =
            self.commit(|state| stages::begun(state, id, CheckKind::Stages, self.now())).await
        {
            tracing::warn!(pool = %self.pool, "{id} begins stages again, which could not be recorded: {problem}");
        }
    }

    /// Checks what jobs met there, by the keeper's own means. A connection that fails says nothing about it.
    pub(super) async fn check(
        &self,
        id: &InstanceId,
        kind: CheckKind,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        let endpoint = match self.look_up(id, setup).await? {
            Ok(endpoint) => endpoint,
            Err(failure) => return Ok(EffectResult::Failed(failure)),
        };
        let checked = match kind {
            CheckKind::Stages => self.stage_begins(id, &endpoint, setup).await?,
            CheckKind::Engine | CheckKind::Network => self.container_starts(id, &endpoint, kind, setup).await,
        };
        let problem = match checked {
            Ok(None) => {
                self.commit(|state| stages::begun(state, id, kind, self.now())).await?;
                return Ok(EffectResult::Fine);
            }
            Ok(Some(why)) => {
                self.commit(|state| stages::check_failed(state, id, (kind, &why), self.now())).await?;
                return Ok(EffectResult::Fine);
            }
            Err(problem) => problem,
        };
        let message = problem.to_string();
        if !matches!(problem, ConnectError::HostFault { .. } | ConnectError::Local { .. }) {
            self.commit(|state| request::doubt(state, id, &message, self.now())).await?;
        }
        Ok(EffectResult::Failed(Failure { class: ErrorClass::Transient, message }))
    }

    /// Begins a stage of the keeper's own; why it did not begin.
    async fn stage_begins(
        &self,
        id: &InstanceId,
        endpoint: &Endpoint,
        setup: &PoolSetup,
    ) -> Result<Result<Option<String>, ConnectError>, EngineError> {
        let mark = if setup.has_static_hosts() {
            Some(Mark::new(&self.host.leadership.identity().await?.owner, &self.pool, id))
        } else {
            None
        };
        let within = setup.policy.timing.connect_timeout;
        Ok(match self.connector.begins_stage(id, endpoint, mark.as_ref(), within).await {
            Ok(()) => Ok(None),
            Err(ConnectError::NotBegun { why, .. }) => Ok(Some(why)),
            Err(problem) => Err(problem),
        })
    }

    /// Starts a container of the keeper's own; why it did not start. A pool without containers has nothing to check.
    async fn container_starts(
        &self,
        id: &InstanceId,
        endpoint: &Endpoint,
        kind: CheckKind,
        setup: &PoolSetup,
    ) -> Result<Option<String>, ConnectError> {
        let Some(pulls) = &setup.pulls else { return Ok(None) };
        let engine = (pulls.engine(), setup.has_static_hosts());
        let within = setup.policy.timing.connect_timeout;
        match self.engine_sound(id, endpoint, engine, (kind, within)).await? {
            Soundness::Sound => Ok(None),
            Soundness::Unsound(why) => Ok(Some(why)),
        }
    }
}

/// What happens to an instance that has not begun a stage; `None`: it is gone, or going for another reason.
fn next(state: &PoolState, id: &InstanceId) -> Option<&'static str> {
    let known = state.instance(id)?;
    match &known.phase {
        Phase::Draining { reason: DrainReason::BeginsNoStage { .. } } => {
            Some("it gets no more jobs and is terminated, because jobs of two trust domains met this")
        }
        Phase::Draining { reason: DrainReason::Broken { .. } | DrainReason::FailedCheck { .. } } => {
            Some("it gets no more jobs and is terminated")
        }
        Phase::Draining { .. } => None,
        Phase::OutOfService { .. } => Some("it is out of service and gets no more jobs"),
        _ if known.is_used_up() && !known.is_static() => Some("it gets no more jobs in any case"),
        _ => match known.awaits_check() {
            Some(CheckKind::Stages) => Some("it gets no more jobs until the keeper has begun a stage there"),
            Some(CheckKind::Engine | CheckKind::Network) => {
                Some("it gets no more jobs until the keeper has started a container there")
            }
            None => Some("if the next job meets this too, the instance is checked or taken out of use"),
        },
    }
}
