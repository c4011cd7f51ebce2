//! `run`: one stage on the instance the attempt was given.

use std::fs::File;

use super::{Engine, EngineError};
use crate::core::attempt::{Closed, End};
use crate::core::ids::{AttemptName, InstanceId};
use crate::core::instance::{DrainReason, Phase};
use crate::core::report::{Note, Report};
use crate::port::connector::{ConnectError, Mark, Output, Stage, StageEnd, Trace};
use crate::port::host::{Assignment, HostError, MailboxName};
use crate::port::store::StoreError;

/// Why a stage could not be run to its end. None of these is the script's fault.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error(
        "no prepared attempt `{0}` in this state directory: `prepare` has not run, or used another state \
         directory"
    )]
    NotPrepared(AttemptName),
    #[error("{0}")]
    Closed(Closed),
    /// The instance was lost or cannot be reached; `verdict` is what the keeper knows of it.
    #[error("instance {instance} {verdict}")]
    Lost {
        instance: InstanceId,
        verdict: String,
        #[source]
        cause: ConnectError,
    },
    /// The provider says how the instance ended: that is why its connection was lost.
    #[error("instance {instance} {how}")]
    Ended { instance: InstanceId, how: String },
    #[error(transparent)]
    Trouble(#[from] EngineError),
}

/// What became of a lost instance.
enum LossReason {
    /// In the provider's words.
    Ended(String),
    /// As far as we know.
    Lost(&'static str),
    /// It left service.
    Left(DrainReason),
}

impl From<StoreError> for StageError {
    fn from(error: StoreError) -> Self {
        Self::Trouble(error.into())
    }
}

impl From<HostError> for StageError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Closed { closed, .. } => Self::Closed(closed),
            HostError::Io { .. } => Self::Trouble(error.into()),
        }
    }
}

impl Engine {
    /// Runs a script on the attempt's instance. The lease is held from here to the end of the call.
    pub async fn stage(
        &self,
        attempt: &AttemptName,
        script: File,
        output: &mut dyn Output,
    ) -> Result<StageEnd, StageError> {
        let entered = self.host.enter_attempt(attempt).await?;
        let Some((_lease, record)) = entered else {
            return Err(StageError::NotPrepared(attempt.clone()));
        };
        let Some(assignment) = record.assignment else {
            return Err(StageError::NotPrepared(attempt.clone()));
        };
        // Before a byte is sent: from here on the grant costs a use.
        self.host.mark_used(attempt).await?;
        let stage = Stage {
            shell: record.shell,
            script,
            start_within: assignment.timeouts.start_within,
            stop_grace: assignment.timeouts.stop_grace,
            trace: self.trace(attempt, &assignment, record.builds_dir).await?,
        };
        let stop = Box::pin(async {
            self.host.stopped(attempt).await;
        });
        let (id, at) = (&assignment.instance, &assignment.endpoint);
        let ended = self.connector.run(id, at, stage, output, stop).await;
        if matches!(ended, Ok(StageEnd::Stopped) | Err(_))
            && let Some(closed) = self.host.closed(attempt).await?
            && closed.end() != End::CleanedUp
        {
            // It took the instance away. A `cleanup` comes when the runner has given the stage up.
            return Err(StageError::Closed(closed));
        }
        match ended {
            Ok(end) => Ok(end),
            Err(cause) => {
                let instance = id.clone();
                Err(match self.verdict(id, attempt, &cause).await? {
                    LossReason::Ended(how) => StageError::Ended { instance, how },
                    LossReason::Lost(verdict) => {
                        StageError::Lost { instance, verdict: verdict.to_owned(), cause }
                    }
                    LossReason::Left(why) => {
                        StageError::Lost { instance, verdict: format!("is being terminated: {why}"), cause }
                    }
                })
            }
        }
    }

    /// On a fixed host: what lets the clean after the job find all that it left.
    async fn trace(
        &self,
        attempt: &AttemptName,
        assignment: &Assignment,
        builds_dir: Option<String>,
    ) -> Result<Option<Trace>, StageError> {
        let Some(builds_dir) = builds_dir.filter(|_| assignment.is_static) else { return Ok(None) };
        let owner = self.host.identity().await?.owner;
        let mark = Mark::new(&owner, &self.pool, &assignment.instance);
        Ok(Some(Trace { mark, attempt: attempt.clone(), builds_dir }))
    }

    /// What the keeper says of a lost instance, if it says so in time; else what we saw.
    async fn verdict(
        &self,
        id: &InstanceId,
        attempt: &AttemptName,
        cause: &ConnectError,
    ) -> Result<LossReason, StageError> {
        if matches!(cause, ConnectError::Local { .. }) {
            return Ok(LossReason::Lost("could not be used"));
        }
        // The policy only shortens or lengthens the wait: without state the defaults serve.
        let policy = self.store.load().await.ok().and_then(|state| state.policy);
        let timing = policy.map(|p| p.timing.clone()).unwrap_or_default();
        let until = self.now().plus(timing.loss_reason_timeout);
        loop {
            // Again at each look: a keeper that has just listed takes that list for the truth, and asks anew only in
            // a pass after `list_interval`.
            self.summon().await?;
            let state = self.store.load().await?;
            match state.instance(id).map(|i| &i.phase) {
                None => return Ok(LossReason::Lost("no longer exists at the provider")),
                Some(Phase::Draining { reason: why }) => return Ok(LossReason::Left(why.clone())),
                Some(_) => {}
            }
            let report = self.host.read_report(&self.pool).await?;
            if let Some(verdict) = report.and_then(|report| told(&report, id)) {
                return Ok(verdict);
            }
            let now = self.now();
            if now.reached(until) {
                return Ok(LossReason::Lost("no longer responds"));
            }
            let look = timing.waiter_poll_interval.min(now.until(until));
            self.host.wait(MailboxName::Attempt(attempt), look).await?;
        }
    }
}

/// What a pass found of an instance in use, if it looks gone.
fn told(report: &Report, id: &InstanceId) -> Option<LossReason> {
    report.notes.iter().find_map(|note| match note {
        Note::Suspect { instance, cause: Some(cause) } if instance == id => {
            Some(LossReason::Ended(cause.clone()))
        }
        Note::Suspect { instance, cause: None } if instance == id => {
            Some(LossReason::Lost("was stopped or removed at the provider"))
        }
        _ => None,
    })
}
