//! Jobs that fail before their own scripts begin: what a stage records about its instance.

use std::time::Duration;

use greenroom_core::early;
use greenroom_core::ids::AttemptName;
use greenroom_core::plan;
use greenroom_core::pool::PoolState;
use greenroom_core::time::Pretty;
use greenroom_ports::connector::StageEnd;

use super::Engine;

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
        if after > early::WITHIN {
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
        let decide = |state: &PoolState| plan::early::failed(state, attempt, reason, self.now());
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
