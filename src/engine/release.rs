//! `cleanup`: the attempt ends, and its slot goes to the next job.

use super::{Engine, EngineError};
use crate::core::attempt::End;
use crate::core::ids::AttemptName;
use crate::core::instance::Release;
use crate::core::plan::request;
use crate::core::pool::PoolState;
use crate::port::attempts::Closing;
use crate::port::host_error::HostError;

impl Engine {
    /// Releases what a closed attempt held. Idempotent. Never waits for a provider.
    ///
    /// The mark `closed` is already set: if this fails, the next pass does the same. Returns why a keeper could not be
    /// started, if one was needed; the slot is free all the same.
    pub async fn release(
        &self,
        attempt: &AttemptName,
        closing: &Closing,
    ) -> Result<Option<HostError>, EngineError> {
        let leaving = Release { how: End::CleanedUp, used: closing.used, closing: closing.calls_remain };
        let decide = |s: &PoolState| request::release(s, attempt, leaving, self.now());
        let committed = self.commit(decide).await?;
        if committed.events.is_empty() {
            return Ok(None);
        }
        Ok(self.summon().await.err())
    }
}
