//! `prepare`: the containers of a job on its instance.

pub(super) mod check;
pub mod debug;
mod dialect;
pub(super) mod leftovers;
mod options;
mod owners;
pub(super) mod progress;
pub mod script;
#[cfg(test)]
mod tests;

use std::time::Duration;

use futures_util::future::{Either, select};
use greenroom_core::attempt::Closed;
use greenroom_core::container::engine::EnginePlace;
use greenroom_core::container::name::{ContainerName, JobContainer};
use greenroom_core::container::settings::Umask;
use greenroom_core::container::spec::ContainerJob;
use greenroom_core::ids::AttemptName;
use greenroom_core::images::SeenImages;
use greenroom_core::job_end::{JobEnd, JobResult};
use greenroom_core::plan::{checks, warm};
use greenroom_core::time::Pretty;
use greenroom_core::unbegun::CheckKind;
use greenroom_ports::attempts::Assignment;
use greenroom_ports::connector::{ConnectError, RemoteCommand, StageEnd};
use greenroom_ports::host_error::HostError;
use greenroom_ports::wakeups::WakeReason;

pub use self::progress::ContainerProgress;
use self::progress::Watcher;
use self::script::JobNetwork;
use super::acquire::Acquired;
use super::{Engine, EngineError};

/// The time that the script needs beside pulls and services.
const MARGIN: Duration = Duration::from_mins(2);

/// The reason why a job got no container. Its instance has been released.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The job asks for what does not exist or is denied: it fails the same way on each instance.
    #[error("{0}")]
    Impossible(String),
    /// A registry or the pool's settings: it may pass.
    #[error("{0}")]
    Unavailable(String),
    /// No answer from a registry, at all or in time: the registry's fault, the network's or the instance's.
    #[error("{0}")]
    Unreached(String),
    /// The connection to the instance broke.
    #[error("{0}")]
    Lost(String),
    /// The instance may be unable to run containers: the keeper checks that before it gets another job.
    #[error("{message}")]
    Doubtful { kind: CheckKind, message: String },
    #[error("stopped while the job's containers were prepared; the job holds no slot")]
    Stopped,
    #[error("the runner is gone; the job holds no slot")]
    RunnerGone,
    #[error("{0}")]
    Closed(Closed),
    #[error(transparent)]
    Trouble(#[from] EngineError),
}

impl ContainerError {
    /// The end of a job with this error, for the record.
    fn end(&self) -> Option<JobEnd> {
        let result = match self {
            Self::Impossible(_) => JobResult::Failed,
            Self::Stopped => JobResult::Canceled,
            Self::Closed(_) => return None,
            Self::Unavailable(_)
            | Self::Unreached(_)
            | Self::Lost(_)
            | Self::Doubtful { .. }
            | Self::RunnerGone
            | Self::Trouble(_) => JobResult::SystemFailed,
        };
        Some(JobEnd::new(result, &self.to_string()))
    }
}

impl From<HostError> for ContainerError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Closed { closed, .. } => Self::Closed(closed),
            HostError::Io { .. } => Self::Trouble(error.into()),
        }
    }
}

impl Engine {
    /// Pulls the images of a job on its instance, starts its services and creates its container, for which the assignment
    /// is changed. After an error, the attempt has no grant.
    ///
    /// The caller holds the attempt's lease. `dirs`: absolute directories that guest and containers share.
    pub async fn prepare_container(
        &self,
        attempt: &AttemptName,
        acquired: &Acquired,
        job: &ContainerJob,
        dirs: &[&str],
        tell: &mut dyn FnMut(ContainerProgress),
    ) -> Result<JobContainer, ContainerError> {
        let prepared = self.create_containers(attempt, acquired, job, dirs, tell).await;
        if let Err(ContainerError::Unreached(reason)) = &prepared
            && let Some(sentence) = self.note_early(attempt, reason).await
        {
            tell(ContainerProgress::Remark(sentence));
        }
        if let Err(error) = &prepared {
            self.part_with(attempt, error).await;
        }
        prepared
    }

    async fn create_containers(
        &self,
        attempt: &AttemptName,
        acquired: &Acquired,
        job: &ContainerJob,
        dirs: &[&str],
        tell: &mut dyn FnMut(ContainerProgress),
    ) -> Result<JobContainer, ContainerError> {
        let assignment = &acquired.assignment;
        // Before a byte is sent: what the script leaves is the job's, so the grant costs a use.
        self.host.attempts.mark_used(attempt).await?;
        let remarks = job.remarks.iter().cloned().chain(options::lost(job));
        remarks.for_each(|remark| tell(ContainerProgress::Remark(remark)));
        // Static hosts stay, so no job may be root there.
        let name =
            if assignment.is_static { ContainerName::rootless(attempt) } else { ContainerName::of(attempt) };
        let script = script::script(&name, job, dirs, JobNetwork::of(job, acquired.capacity));
        let wait = job.wait_for_services.unwrap_or_default();
        let within = job.pull_timeout.saturating_add(wait).saturating_add(MARGIN);
        let start_within = assignment.timeouts.start_within;
        let text = &EnginePlace::of(&name).reader();
        let command = RemoteCommand { text, input: &script, within, start_within, shared: true };
        let now = || self.now();
        let mut watcher = Watcher::new(job, &now, tell);
        let run = self.connector.command(&assignment.instance, &assignment.endpoint, command, &mut watcher);
        let ended = match select(run, self.host.wakeups.stopped(attempt)).await {
            Either::Left((ended, _)) => ended,
            Either::Right((woken, _)) => {
                self.refuse_closed(attempt).await?;
                return Err(match woken {
                    WakeReason::RunnerGone => ContainerError::RunnerGone,
                    _ => ContainerError::Stopped,
                });
            }
        };
        self.note_images(attempt, acquired, &watcher.seen()).await;
        let (facts, owner) = watcher.outcome(&ended_as(ended, assignment, within)?)?;
        let container = JobContainer {
            name,
            engine: job.engine,
            open_umask: match job.umask {
                Umask::Auto => !job.services.is_empty() || !facts.runs_as_root(job.job.user.as_deref()),
                Umask::Open => true,
                Umask::Closed => false,
            },
            starts_ahead: facts.starts_a_shell(job.job.entrypoint.as_deref()),
            owner: owner.filter(|owner| owner.user != 0),
            shown_services: services_shown(job),
        };
        let assigned = Assignment { container: Some(container.clone()), ..assignment.clone() };
        self.host.attempts.assign(attempt, Some(&assigned)).await?;
        // RACE: `cleanup` sets the mark first and then releases; this call assigns first and then checks the mark.
        self.refuse_closed(attempt).await?;
        Ok(container)
    }

    /// Records the images that the next jobs will find on the instance. The job does not depend on it.
    async fn note_images(&self, attempt: &AttemptName, acquired: &Acquired, seen: &SeenImages) {
        if !acquired.shares_images || seen.is_known(&acquired.images) {
            return;
        }
        if let Err(problem) = self.commit(|state| warm::seen_by_job(state, attempt, seen, self.now())).await {
            tracing::warn!(pool = %self.pool, %attempt, "cannot record the images of its instance: {problem}");
        }
    }

    /// Releases the instance of a job that got no container, and has it checked if the fault may be its own.
    async fn part_with(&self, attempt: &AttemptName, error: &ContainerError) {
        if let Err(problem) = self.try_to_part(attempt, error).await {
            // The job log shows the cause. What stays behind ends with the attempt.
            tracing::warn!(pool = %self.pool, %attempt, "cannot release its instance: {problem}");
        }
    }

    async fn try_to_part(&self, attempt: &AttemptName, error: &ContainerError) -> Result<(), EngineError> {
        if let ContainerError::Doubtful { kind, message } = error {
            self.commit(|state| checks::not_begun(state, attempt, (*kind, message), self.now())).await?;
        }
        self.give_back(attempt, true, error.end()).await
    }
}

/// The names of the services whose output the job log shows.
fn services_shown(job: &ContainerJob) -> Vec<String> {
    let shown = job.services.iter().filter(|_| job.debug_services);
    shown.filter_map(|service| service.names.first().cloned()).collect()
}

/// The result of the script's end, unless the connection or the time did.
fn ended_as(
    ended: Result<StageEnd, ConnectError>,
    assignment: &Assignment,
    within: Duration,
) -> Result<StageEnd, ContainerError> {
    let instance = &assignment.instance;
    match ended {
        Ok(StageEnd::Stopped) => Err(ContainerError::Doubtful {
            kind: CheckKind::Engine,
            message: format!(
                "instance {instance} did not prepare the job's containers within {}",
                Pretty(within)
            ),
        }),
        Ok(end) => Ok(end),
        Err(cause) => Err(ContainerError::Lost(format!(
            "instance {instance} was lost while it prepared the job's containers: {cause}"
        ))),
    }
}
