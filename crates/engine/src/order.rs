//! Orders of jobs, as the keeper finds them: in a file of the attempt before the launch, and refused by the provider.

use greenroom_core::ids::InstanceId;
use greenroom_core::instance::{DrainReason, Instance};
use greenroom_core::order::{LaunchOrder, RefusedOrder};
use greenroom_core::plan::request;

use super::{Engine, EngineError};

/// The kind of instance that a launch makes.
pub(super) enum Makes {
    /// An instance of the pool's own kind.
    Shared,
    Order(LaunchOrder),
    /// The job's files are gone: nothing is launched.
    Nothing,
}

impl Engine {
    /// The kind of instance that the launch of this one makes.
    pub(super) async fn makes(&self, instance: &Instance) -> Result<Makes, EngineError> {
        let Some(ordered) = &instance.ordered else { return Ok(Makes::Shared) };
        if let Some(order) = self.host.attempts.order(&ordered.attempt).await? {
            return Ok(Makes::Order(order));
        }
        let reason = "what the job ordered is no longer in the state directory".to_owned();
        self.refuse(&instance.id, &RefusedOrder { reason, by_job: false }).await?;
        Ok(Makes::Nothing)
    }

    /// Refuses a job's order that turns out not to be possible: the job learns why, and its instance is drained. The next
    /// pass terminates what exists of it.
    pub(super) async fn refuse(&self, id: &InstanceId, refused: &RefusedOrder) -> Result<(), EngineError> {
        self.commit(|state| {
            let Some(ordered) = state.instance(id).and_then(|i| i.ordered.as_ref()) else {
                return Vec::new();
            };
            let now = self.now();
            let mut events = request::refuse_order(state, &ordered.attempt, refused, now);
            events.extend(request::withdraw(state, id, DrainReason::Abandoned, now));
            events
        })
        .await?;
        Ok(())
    }
}
