//! `run`: one stage on the attempt's instance.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs::File;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use greenroom_core::attempt::{Closed, End};
use greenroom_core::container::name::{EngineContainer, JobContainer};
use greenroom_core::execution::Execution;
use greenroom_core::ids::{AttemptName, InstanceId};
use greenroom_core::instance::{DrainReason, Phase};
use greenroom_core::report::{Note, Report};
use greenroom_core::unbegun::CheckKind;
use greenroom_ports::attempts::Assignment;
use greenroom_ports::connector::{ConnectError, Mark, Output, Reader, Stage, StageEnd, Trace};
use greenroom_ports::host_error::HostError;
use greenroom_ports::store::StoreError;
use greenroom_ports::wakeups::MailboxName;

use super::{Engine, EngineError};

/// The reason of a loss that no report explains.
const NO_RESPONSE: &str = "no longer responds";

/// Interval at which a running stage looks for the provider's notices in the report of the last pass.
const NOTICE_INTERVAL: Duration = Duration::from_secs(5);

/// Notices that a stage tells. A cloud has few, but a time in one may change.
const MAX_NOTICES: usize = 10;

/// The role of a [`Stage`] in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageKind {
    /// The script is the job's or unknown, rather than the runner's own: it runs in the job's container, if it has one.
    pub in_container: bool,
    /// The stage's name, if it prepares the instance for the job's own script and fetches its sources.
    pub prepares: Option<&'static str>,
    /// A stage in the container follows those of the runner: the container may start now.
    pub before_container: bool,
    /// No stage of the job follows.
    pub last: bool,
}

/// The reason why a stage could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error(
        "no prepared attempt `{0}` in this state directory: `prepare` has not run, or used another state \
         directory"
    )]
    NotPrepared(AttemptName),
    #[error("the job's container does not exist: `prepare` has not created it")]
    NoContainer,
    #[error("{0}")]
    Closed(Closed),
    /// The instance was lost or cannot be reached; `verdict` is the cause, as far as it is known.
    #[error("instance {instance} {verdict}")]
    Lost {
        instance: InstanceId,
        verdict: String,
        #[source]
        cause: ConnectError,
    },
    /// The provider reports how the instance ended, which explains the lost connection.
    #[error("instance {instance} {how}")]
    Ended {
        instance: InstanceId,
        how: String,
        /// True if the job ended it by using up its memory or disk.
        by_job: bool,
    },
    /// The instance answers, and did not begin the stage. `next`: what follows from that.
    #[error("instance {instance} did not begin the stage: {why}; {next}")]
    NotBegun { instance: InstanceId, why: String, next: String },
    #[error(transparent)]
    Trouble(#[from] EngineError),
}

/// The reason why an instance was lost.
enum LossReason {
    /// The instance ended, as the provider reports it.
    Ended { how: String, by_job: bool },
    /// The instance was lost, as far as Greenroom observed.
    Lost(&'static str),
    /// The instance was drained.
    Left(DrainReason),
}

impl StageError {
    /// True if the job is at fault. All other causes are not the script's.
    pub fn is_by_job(&self) -> bool {
        matches!(self, Self::Ended { by_job: true, .. })
    }
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
    /// Runs a script on the attempt's instance, or in its container there. The lease is held from here to the end of the
    /// call. `tell` receives a sentence if the provider announces the end of the instance.
    pub async fn stage(
        &self,
        attempt: &AttemptName,
        (script, kind): (File, StageKind),
        output: &mut dyn Output,
        tell: &dyn Fn(&str),
    ) -> Result<StageEnd, StageError> {
        let entered = self.host.attempts.enter_attempt(attempt).await?;
        let Some((_lease, record)) = entered else {
            return Err(StageError::NotPrepared(attempt.clone()));
        };
        let Some(assignment) = record.assignment else {
            return Err(StageError::NotPrepared(attempt.clone()));
        };
        let Some(place) = place(record.execution, assignment.container.as_ref(), kind) else {
            return Err(StageError::NoContainer);
        };
        // Before a byte is sent: from here on, the grant costs a use.
        self.host.attempts.mark_used(attempt).await?;
        match self.own_files(attempt, &assignment, record.builds_dir.as_deref(), kind).await {
            Ok(None) => {}
            Ok(Some(stopped)) => return Ok(stopped),
            // Its script looks at what the job made, so it says nothing about the instance's stages.
            Err(ConnectError::NotBegun { at, why }) => {
                let met = (CheckKind::Engine, why.as_str());
                return Err(match self.stage_not_begun(attempt, &assignment, met).await {
                    Some(error) => error,
                    None => {
                        self.failed(
                            attempt,
                            &assignment,
                            ConnectError::Lost { at, problem: why, sent: false },
                        )
                        .await
                    }
                });
            }
            Err(cause) => return Err(self.failed(attempt, &assignment, cause).await),
        }
        let stage = Stage {
            reader: place.reader,
            open_umask: place.open_umask,
            separate_stderr: record.execution.shell().separate_stderr,
            ahead: place.ahead,
            script,
            start_within: assignment.timeouts.start_within,
            stop_grace: assignment.timeouts.stop_grace,
            container_start: assignment.timeouts.container_start,
            trace: self.trace(attempt, &assignment, record.builds_dir).await?,
            last: kind.last,
        };
        let stop = Box::pin(async {
            self.host.wakeups.stopped(attempt).await;
        });
        let id = &assignment.instance;
        let at = &assignment.endpoint;
        let began = self.now();
        let run = self.connector.run(id, at, stage, &mut *output, stop);
        let ended = match select(pin!(run), pin!(self.announced(id, tell))).await {
            Either::Left((ended, _)) => ended,
            Either::Right((never, _)) => match never {},
        };
        if matches!(ended, Ok(StageEnd::Stopped) | Err(_))
            && let Ok(Some(closed)) = self.host.attempts.closed(attempt).await
            && closed.end() != End::CleanedUp
        {
            // The mark took the instance away. `cleanup` comes when the runner has given up the stage.
            return Err(StageError::Closed(closed));
        }
        match ended {
            Ok(end) => {
                if let Some(container) =
                    assignment.container.as_ref().filter(|c| !c.shown_services.is_empty())
                    && kind.in_container
                {
                    // Its own errors are those of the job log's reader.
                    let _written = output.end_line().await;
                    self.show_services(&assignment, container, output).await;
                }
                if let Some(name) = kind.prepares {
                    self.judge_early(attempt, (name, &end), self.now().since(began), tell).await;
                }
                if assignment.unbegun && matches!(end, StageEnd::Exited(_) | StageEnd::Signalled(_)) {
                    self.stage_begun(id).await;
                }
                Ok(end)
            }
            Err(cause @ ConnectError::NoContainer { .. }) => {
                match self.container_not_begun(attempt, &assignment, &cause).await {
                    Ok(end) => Ok(end),
                    Err(Some(error)) => Err(error),
                    Err(None) => Err(self.failed(attempt, &assignment, cause).await),
                }
            }
            Err(cause) => Err(self.failed(attempt, &assignment, cause).await),
        }
    }

    /// The error of a stage, with what is known of its cause.
    async fn failed(
        &self,
        attempt: &AttemptName,
        assignment: &Assignment,
        cause: ConnectError,
    ) -> StageError {
        let id = &assignment.instance;
        if let ConnectError::NotBegun { why, .. } = &cause
            && self.last_report().await.and_then(|report| reported(&report, id)).is_none()
            && let Some(error) = self.stage_not_begun(attempt, assignment, (CheckKind::Stages, why)).await
        {
            return error;
        }
        let instance = id.clone();
        // The job log shows what was lost, even if its reason cannot be found.
        let reason = self.loss_reason(id, attempt, &cause).await.unwrap_or_else(|problem| {
            tracing::warn!(pool = %self.pool, "cannot find why {id} was lost: {problem}");
            LossReason::Lost(NO_RESPONSE)
        });
        match reason {
            LossReason::Ended { how, by_job } => StageError::Ended { instance, how, by_job },
            LossReason::Lost(verdict) => StageError::Lost { instance, verdict: verdict.to_owned(), cause },
            LossReason::Left(why) => {
                StageError::Lost { instance, verdict: format!("is being terminated: {why}"), cause }
            }
        }
    }

    /// Tells, once each, what the provider has announced about the instance. Ends with the stage.
    async fn announced(&self, id: &InstanceId, tell: &dyn Fn(&str)) -> Infallible {
        let mut told = BTreeSet::new();
        loop {
            self.host.wakeups.pause(NOTICE_INTERVAL).await;
            let report = self.last_report().await;
            for note in report.into_iter().flat_map(|report| report.notes) {
                if let Note::Announced { instance, notice } = note
                    && instance == *id
                    && told.len() < MAX_NOTICES
                    && !told.contains(&notice)
                {
                    tell(&format!("instance {id} {notice}; the job goes on until then"));
                    told.insert(notice);
                }
            }
        }
    }

    /// The trace by which cleaning finds everything that the job left on a static host.
    pub(super) async fn trace(
        &self,
        attempt: &AttemptName,
        assignment: &Assignment,
        builds_dir: Option<String>,
    ) -> Result<Option<Trace>, HostError> {
        let Some(builds_dir) = builds_dir.filter(|_| assignment.is_static) else { return Ok(None) };
        let owner = self.host.leadership.identity().await?.owner;
        let mark = Mark::new(&owner, &self.pool, &assignment.instance);
        Ok(Some(Trace { mark, attempt: attempt.clone(), builds_dir }))
    }

    /// The keeper's report about a lost instance, if it comes in time; otherwise the observation of this call.
    async fn loss_reason(
        &self,
        id: &InstanceId,
        attempt: &AttemptName,
        cause: &ConnectError,
    ) -> Result<LossReason, StageError> {
        if matches!(cause, ConnectError::Local { .. } | ConnectError::HostFault { .. }) {
            return Ok(LossReason::Lost("could not be used"));
        }
        // The policy only sets the timeout: without state, the defaults apply.
        let policy = self.store.load().await.ok().and_then(|state| state.policy);
        let timing = policy.map(|p| p.timing.clone()).unwrap_or_default();
        let until = self.now().plus(timing.loss_reason_timeout);
        loop {
            // Repeated at each poll: a keeper that has just listed uses that list, and lists again only in a pass after
            // `list_interval`.
            self.summon().await?;
            let state = self.store.load().await?;
            match state.instance(id).map(|i| &i.phase) {
                None => return Ok(LossReason::Lost("no longer exists at the provider")),
                Some(Phase::Draining { reason: why }) => return Ok(LossReason::Left(why.clone())),
                Some(_) => {}
            }
            if let Some(reason) = self.last_report().await.and_then(|report| reported(&report, id)) {
                return Ok(reason);
            }
            let now = self.now();
            if now.reached(until) {
                return Ok(LossReason::Lost(NO_RESPONSE));
            }
            let within = timing.waiter_poll_interval.min(now.until(until));
            self.host.wakeups.wait(MailboxName::Attempt(attempt), within).await?;
        }
    }
}

/// The place in which a script runs.
#[derive(Debug, PartialEq, Eq)]
struct StagePlace {
    reader: Reader,
    open_umask: bool,
    ahead: Option<EngineContainer>,
}

/// `None`: the container that the job should have is missing.
fn place(execution: Execution, container: Option<&JobContainer>, kind: StageKind) -> Option<StagePlace> {
    let shell = match execution {
        Execution::Machine { shell } => {
            return Some(StagePlace { reader: Reader::Shell(shell), open_umask: false, ahead: None });
        }
        Execution::Container { shell } => shell,
    };
    let container = container?;
    if kind.in_container {
        let reader = Reader::Container(container.at_engine());
        return Some(StagePlace { reader, open_umask: false, ahead: None });
    }
    let ahead = (kind.before_container && container.starts_ahead).then(|| container.at_engine());
    Some(StagePlace { reader: Reader::Shell(shell), open_umask: container.open_umask, ahead })
}

/// The report of a pass about an instance in use that seems to be gone.
fn reported(report: &Report, id: &InstanceId) -> Option<LossReason> {
    report.notes.iter().find_map(|note| match note {
        Note::Suspect { instance, cause: Some(cause), by_job } if instance == id => {
            Some(LossReason::Ended { how: cause.clone(), by_job: *by_job })
        }
        Note::Suspect { instance, cause: None, .. } if instance == id => {
            Some(LossReason::Lost("was stopped or removed at the provider"))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use greenroom_core::container::name::ContainerName;
    use greenroom_core::execution::Shell;

    use super::*;

    const RUNNERS: StageKind =
        StageKind { in_container: false, prepares: None, before_container: true, last: false };
    const AUTHORS: StageKind =
        StageKind { in_container: true, prepares: None, before_container: false, last: false };

    fn container(starts_ahead: bool) -> JobContainer {
        let name = ContainerName::parse("greenroom-a1").unwrap();
        let engine = greenroom_core::container::engine::ContainerEngine::Docker;
        JobContainer { name, engine, open_umask: true, starts_ahead, owner: None, shown_services: Vec::new() }
    }

    #[test]
    fn the_jobs_own_stages_run_in_its_container() {
        let bash = Execution::Container { shell: Shell::Bash.into() };
        let known = container(true);
        let in_it = place(bash, Some(&known), AUTHORS).unwrap();
        assert_eq!(
            in_it,
            StagePlace { reader: Reader::Container(known.at_engine()), open_umask: false, ahead: None }
        );
        let on_guest = place(bash, Some(&known), RUNNERS).unwrap();
        let ahead = Some(known.at_engine());
        assert_eq!(
            on_guest,
            StagePlace { reader: Reader::Shell(Shell::Bash.into()), open_umask: true, ahead }
        );
        assert_eq!(
            place(bash, None, RUNNERS),
            None,
            "no script of such a job runs before its container exists"
        );
    }

    #[test]
    fn a_container_starts_ahead_only_if_a_stage_for_it_follows_and_it_has_no_entrypoint() {
        let bash = Execution::Container { shell: Shell::Bash.into() };
        let after = StageKind { before_container: false, ..RUNNERS };
        for (known, kind) in [(container(false), RUNNERS), (container(true), after)] {
            assert_eq!(place(bash, Some(&known), kind).unwrap().ahead, None);
        }
    }

    #[test]
    fn without_a_container_all_stages_run_on_the_instance() {
        for kind in [RUNNERS, AUTHORS] {
            let on_machine = place(Execution::Machine { shell: Shell::Sh.into() }, None, kind).unwrap();
            assert_eq!(
                on_machine,
                StagePlace { reader: Reader::Shell(Shell::Sh.into()), open_umask: false, ahead: None }
            );
        }
    }
}
