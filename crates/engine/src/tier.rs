//! Suspends and resumes instances of the tier *stopped*.

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::{DrainReason, Instance, Phase, Suspension};
use greenroom_core::plan::request;
use greenroom_ports::provider::ProviderError;
use greenroom_ports::setup::PoolSetup;

use super::effect::EffectResult;
use super::{Engine, EngineError};

impl Engine {
    /// Requests the suspension. A list shows when it is over.
    pub(super) async fn suspend(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        // RACE: the plan is older than the state. What a job has by now is not suspended.
        if !self.is_in(id, Suspension::Suspending).await? {
            return Ok(EffectResult::Fine);
        }
        // A connection that is open would be one to a machine that no longer answers.
        self.connector.disconnect(id).await;
        match setup.provider.suspend(id).await {
            Ok(()) => Ok(EffectResult::Again),
            Err(error) => {
                let why = |message| DrainReason::NotSuspended { message };
                self.moved(id, Suspension::Suspending, error, why).await
            }
        }
    }

    /// Requests that it is resumed, and probes it like an instance that boots.
    pub(super) async fn resume_stopped(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        if !self.is_in(id, Suspension::Resuming).await? {
            return Ok(EffectResult::Fine);
        }
        if let Err(error) = setup.provider.resume(id).await {
            let why = |message| DrainReason::NotResumed { message };
            return self.moved(id, Suspension::Resuming, error, why).await;
        }
        // CRASH: the next pass finds it running and probes it, or resumes it once more.
        match self.probe(id, setup).await? {
            EffectResult::Failed(_) => Ok(EffectResult::Again),
            EffectResult::Unreached(_, obstacle, _) if obstacle.is_usual() => Ok(EffectResult::Again),
            other => Ok(other),
        }
    }

    async fn is_in(&self, id: &InstanceId, step: Suspension) -> Result<bool, EngineError> {
        let state = self.store.load().await?;
        Ok(state.instance(id).is_some_and(|known| known.phase == Phase::Suspended { step }))
    }

    /// A call failed. An instance that the provider refuses to change is replaced at once; anything else is tried again.
    async fn moved(
        &self,
        id: &InstanceId,
        step: Suspension,
        error: ProviderError,
        why: impl Fn(String) -> DrainReason,
    ) -> Result<EffectResult, EngineError> {
        match error.class() {
            ErrorClass::Throttled { .. } | ErrorClass::Transient | ErrorClass::Unknown => {
                return Ok(EffectResult::Failed(error.failure));
            }
            ErrorClass::NotFound
            | ErrorClass::NoCapacity { .. }
            | ErrorClass::Quota
            | ErrorClass::Denied
            | ErrorClass::Invalid
            | ErrorClass::Order { .. } => {}
        }
        let message = error.failure.to_string();
        self.commit(|state| {
            let is_due = |known: &Instance| known.phase == Phase::Suspended { step };
            if !state.instance(id).is_some_and(is_due) {
                return Vec::new();
            }
            request::withdraw(state, id, why(message.clone()), self.now())
        })
        .await?;
        Ok(EffectResult::Fine)
    }
}
