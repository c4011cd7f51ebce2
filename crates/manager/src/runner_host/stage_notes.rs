//! The file `failure` of an attempt: the stage that decides how its job ends, if one did not succeed.
//!
//! It is only shown. One that cannot be read counts as missing.

use greenroom_core::ids::AttemptName;
use greenroom_core::job_end::StageFailure;
use greenroom_ports::host_error::HostError;

use super::error::cannot;
use super::files::{self, Durable};
use super::host::LocalHost;

const FAILURE: &str = "failure";

impl LocalHost {
    /// Notes why a stage did not succeed, unless a noted failure decides already. An attempt that does not exist stays so.
    pub fn note_stage_failure(&self, attempt: &AttemptName, failure: &StageFailure) -> Result<(), HostError> {
        let dir = self.state.attempt(attempt)?;
        if !dir.is_dir() || self.stage_failure(attempt).is_some_and(|known| known.outweighs(failure)) {
            return Ok(());
        }
        let path = dir.join(FAILURE);
        let text = serde_json::to_vec(failure).map_err(|e| cannot("write", &path, e))?;
        files::replace(&dir, FAILURE, &text, Durable::No).map_err(|e| cannot("write", &path, e))
    }

    /// A stage has succeeded: a noted failure of the same stage is over.
    pub fn note_stage_success(&self, attempt: &AttemptName, stage: &str) -> Result<(), HostError> {
        if self.stage_failure(attempt).is_some_and(|known| known.ends_with_success_of(stage)) {
            let path = self.state.attempt(attempt)?.join(FAILURE);
            std::fs::remove_file(&path).map_err(|e| cannot("remove", &path, e))?;
        }
        Ok(())
    }

    /// The noted failure of an attempt.
    pub fn stage_failure(&self, attempt: &AttemptName) -> Option<StageFailure> {
        let path = self.state.attempt(attempt).ok()?.join(FAILURE);
        serde_json::from_slice(&files::read(&path).ok()??).ok()
    }
}
