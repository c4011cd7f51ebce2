//! Instances that answer and begin no stages or no containers: what a job's call records, and how the keeper checks them.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use greenroom_core::container::engine::Soundness;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::{AttemptName, InstanceId};
use greenroom_core::instance::{DrainReason, Phase};
use greenroom_core::plan::{self, checks, request};
use greenroom_core::pool::PoolState;
use greenroom_core::time::Pretty;
use greenroom_core::unbegun::{self, CheckKind};
use greenroom_ports::attempts::Assignment;
use greenroom_ports::connector::{ConnectError, Mark, StageEnd};
use greenroom_ports::setup::PoolSetup;

use crate::container::check::EngineCheck;
use crate::effect::EffectResult;
use crate::stage::StageError;
use crate::{Engine, EngineError};

impl Engine {
    /// Records that a stage or its container did not begin; the error says what follows. `None`: the instance is going
    /// anyway, which explains more.
    pub(super) async fn stage_not_begun(
        &self,
        attempt: &AttemptName,
        assignment: &Assignment,
        (kind, why): (CheckKind, &str),
    ) -> Option<StageError> {
        let instance = assignment.instance.clone();
        let why = why.to_owned();
        let decide = |state: &PoolState| checks::not_begun(state, attempt, (kind, &why), self.now());
        let next = match self.commit(decide).await {
            Ok(committed) => {
                if let Err(problem) = self.after_unbegun(attempt, assignment, kind).await {
                    tracing::warn!(pool = %self.pool, "{instance} began no stage of {attempt}: {problem}");
                }
                next(&committed.state, &instance)?.to_owned()
            }
            Err(problem) => format!("this could not be recorded: {problem}"),
        };
        Some(StageError::NotBegun { instance, why, next })
    }

    /// A later stage of the attempt that begins has to be recorded, and the keeper may have something to do.
    async fn after_unbegun(
        &self,
        attempt: &AttemptName,
        assignment: &Assignment,
        kind: CheckKind,
    ) -> Result<(), EngineError> {
        if kind.ends_with_a_stage() && !assignment.unbegun {
            let noted = Assignment { unbegun: true, ..assignment.clone() };
            self.host.attempts.assign(attempt, Some(&noted)).await?;
        }
        Ok(self.summon().await?)
    }

    /// No shell in the job's container read the script. The container may have written what the output tells: so the instance
    /// is seen to. What has run there ended by itself, which is the job's own failure, and so is an image that does not
    /// start where others do.
    pub(super) async fn container_not_begun(
        &self,
        attempt: &AttemptName,
        assignment: &Assignment,
        cause: &ConnectError,
    ) -> Result<StageEnd, Option<StageError>> {
        let ConnectError::NoContainer { why, if_ran, by_image, .. } = cause else { return Err(None) };
        let Some(container) = &assignment.container else {
            return Err(self.stage_not_begun(attempt, assignment, (CheckKind::Engine, why)).await);
        };
        let check = EngineCheck {
            engine: container.engine,
            rootless: container.name.is_rootless(),
            kind: CheckKind::Engine,
            start_within: assignment.timeouts.start_within,
            limit: assignment.timeouts.container_start,
        };
        let id = &assignment.instance;
        let at = &assignment.endpoint;
        let seen = self.engine_sound(id, at, check, Some(&container.name));
        let seen = match select(pin!(seen), self.host.wakeups.stopped(attempt)).await {
            Either::Left((seen, _)) => seen,
            Either::Right(_) => return Ok(StageEnd::Stopped),
        };
        let why = match seen {
            Ok(Soundness::Ran) => return Ok(StageEnd::Impossible(if_ran.clone())),
            Ok(Soundness::Sound) if *by_image => return Ok(StageEnd::Impossible(if_ran.clone())),
            Ok(Soundness::Unsound(found)) => found,
            // The keeper looks once more: the engine works, but not for this job.
            Ok(Soundness::Sound) | Err(_) => why.clone(),
        };
        Err(self.stage_not_begun(attempt, assignment, (CheckKind::Engine, &why)).await)
    }

    /// A stage has begun on an instance that had not begun one before. The job goes on even if that cannot be recorded:
    /// then its next stage records it.
    pub(super) async fn stage_begun(&self, id: &InstanceId) {
        if let Err(problem) =
            self.commit(|state| checks::begun(state, id, CheckKind::Stages, self.now())).await
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
                self.commit(|state| checks::begun(state, id, kind, self.now())).await?;
                return Ok(EffectResult::Fine);
            }
            Ok(Some(why)) => {
                // A host that stays out of service is an operator's work.
                let why = if setup.has_static_hosts() { self.with_last_job(id, why).await? } else { why };
                self.commit(|state| checks::check_failed(state, id, (kind, &why), self.now())).await?;
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
        Ok(match self.connector.begins_stage(id, endpoint, (setup.shell, mark.as_ref()), within).await {
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
        let timing = &setup.policy.timing;
        let check = EngineCheck {
            engine: pulls.engine(),
            rootless: setup.has_static_hosts(),
            kind,
            start_within: timing.connect_timeout,
            limit: timing.container_start_timeout,
        };
        match self.engine_sound(id, endpoint, check, None).await? {
            Soundness::Sound | Soundness::Ran => Ok(None),
            Soundness::Unsound(why) => Ok(Some(why)),
        }
    }
}

/// The sentence about the future of an instance that has not begun a stage; `None`: the instance is gone, or going for
/// another reason.
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

// Jobs that fail before their own scripts begin: what a stage records about its instance.

impl Engine {
    /// Records that a stage which prepares the job failed within seconds. If this makes the instance suspect, `tell` receives
    /// a sentence, after the output's last line. The job's result does not depend on it.
    pub(super) async fn judge_early(
        &self,
        attempt: &AttemptName,
        (stage, end): (&str, &StageEnd),
        after: Duration,
        tell: &dyn Fn(&str),
    ) {
        let StageEnd::Exited(status @ 1..) = *end else { return };
        if after > unbegun::EARLY_WITHIN {
            return;
        }
        let reason = format!("`{stage}` failed after {} with exit status {status}", Pretty(after));
        if let Some(sentence) = self.note_early(attempt, &reason).await {
            tell(&sentence);
        }
    }

    /// Records that the attempt's job failed before its own script, for a reason that may be the instance's. A sentence, if
    /// this makes the instance suspect.
    pub(super) async fn note_early(&self, attempt: &AttemptName, reason: &str) -> Option<String> {
        let decide = |state: &PoolState| plan::checks::failed_early(state, attempt, reason, self.now());
        let committed = match self.commit(decide).await {
            Ok(committed) => committed,
            Err(problem) => {
                tracing::warn!(pool = %self.pool, "cannot record the early failure of {attempt}: {problem}");
                return None;
            }
        };
        let held = committed.state.granted.get(attempt).filter(|_| !committed.events.is_empty());
        let instance = held.and_then(|grant| committed.state.instance(&grant.instance));
        let suspect = instance.filter(|i| i.suspicion().is_some())?;
        let id = &suspect.id;
        Some(format!("jobs of two projects failed at their start on instance {id}: other jobs get it last"))
    }
}
