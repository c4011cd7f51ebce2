//! `cleanup`: the attempt ends, its slot goes to the next job.

use super::{Engine, EngineError};
use crate::core::attempt::End;
use crate::core::ids::AttemptName;
use crate::core::instance::Release;
use crate::core::plan::request;
use crate::core::pool::PoolState;
use crate::port::host::{Closing, HostError};

impl Engine {
    /// Gives back what a closed attempt held. Again: nothing happens. Never waits for a provider.
    ///
    /// The mark `closed` stands already: if this fails, the next pass does the same.
    /// Returns what kept a keeper from being started, if it was needed: the slot is free all the same.
    pub async fn release(
        &self,
        attempt: &AttemptName,
        closing: &Closing,
    ) -> Result<Option<HostError>, EngineError> {
        let leaving = Release { how: End::CleanedUp, used: closing.used, closing: closing.lingering };
        let decide = |s: &PoolState| request::release(s, attempt, leaving, self.now());
        let committed = self.commit(decide).await?;
        if committed.events.is_empty() {
            return Ok(None);
        }
        Ok(self.summon().await.err())
    }
}
