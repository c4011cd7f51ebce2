//! How events of the tier *stopped* change the state.

use super::{HELD, InapplicableEvent, STATIC, become_};
use crate::failure::Failure;
use crate::ids::InstanceId;
use crate::instance::{Phase, Suspension};
use crate::pool::PoolState;
use crate::time::Stamp;

impl PoolState {
    /// Its address may be another one when it is resumed: it has none until then.
    pub(super) fn suspend(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        if !instance.holders.is_empty() {
            return Err(HELD);
        }
        if instance.is_static() {
            return Err(STATIC);
        }
        become_(instance, Phase::Suspended { step: Suspension::Suspending }, at)?;
        (instance.endpoint, instance.unreachable) = (None, None);
        Ok(())
    }

    pub(super) fn suspended(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        become_(self.change(id)?, Phase::Suspended { step: Suspension::Stopped }, at)
    }

    pub(super) fn resume(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        become_(instance, Phase::Suspended { step: Suspension::Resuming }, at)?;
        instance.resumed = Some(at);
        Ok(())
    }

    /// An instance is drained: it counts if it was suspending or resuming.
    pub(super) fn suspension_failed(&mut self, was: &Phase, failure: Failure, at: Stamp) {
        if !matches!(was, Phase::Suspended { .. }) || was.is_stopped() {
            return;
        }
        self.suspensions.failures = self.suspensions.failures.saturating_add(1);
        self.suspensions.last = Some((at, failure));
    }
}
