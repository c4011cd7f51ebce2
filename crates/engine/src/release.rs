//! An attempt gives its slot to the next job: in `cleanup`, or in a `prepare` that failed.

use greenroom_core::attempt::End;
use greenroom_core::ids::AttemptName;
use greenroom_core::instance::Release;
use greenroom_core::job_end::JobEnd;
use greenroom_core::plan::request;
use greenroom_core::pool::PoolState;
use greenroom_ports::attempts::Closing;
use greenroom_ports::host_error::HostError;

use super::{Engine, EngineError};

impl Engine {
    /// Releases what a closed attempt held. Idempotent. Never waits for a provider.
    ///
    /// `end`: how the job ended, for the record. The mark `closed` is already set: if this fails, the next pass does the same. Returns why a keeper could not be
    /// started, if one was needed; the slot is free all the same.
    pub async fn release(
        &self,
        attempt: &AttemptName,
        closing: &Closing,
        end: Option<&JobEnd>,
    ) -> Result<Option<HostError>, EngineError> {
        let leaving = Release { how: End::CleanedUp, used: closing.used, closing: closing.calls_remain };
        let decide = |s: &PoolState| request::end(s, attempt, (leaving, end), self.now());
        let committed = self.commit(decide).await?;
        if committed.events.is_empty() {
            return Ok(None);
        }
        Ok(self.summon().await.err())
    }

    /// After this, the attempt has no grant. Its job keeps its place in the queue for a retry.
    ///
    /// `used`: whether the instance may bear traces of the job. `end`: how the job ended thereby, for the record.
    pub(crate) async fn give_back(
        &self,
        attempt: &AttemptName,
        used: bool,
        end: Option<JobEnd>,
    ) -> Result<(), EngineError> {
        let leaving = Release { how: End::GivenBack, used, closing: false };
        let decide = |s: &PoolState| request::end(s, attempt, (leaving, end.as_ref()), self.now());
        if !self.commit(decide).await?.events.is_empty() {
            self.host.attempts.assign(attempt, None).await.ok();
            self.summon().await?;
        }
        Ok(())
    }
}
