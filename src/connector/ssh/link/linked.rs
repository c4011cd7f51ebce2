//! The connector that uses links.
//!
//! If no link is available (no process can be started, the state directory is full), a call makes a connection of its
//! own.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::trace::prelude;
use super::super::{Ssh, dial, stop};
use super::call::{LinkSettings, Links, Target, kill};
use super::line::Line;
use super::message::{Ask, Control, Interpreter, Reply};
use super::pump::pump;
use crate::core::endpoint::Endpoint;
use crate::core::ids::InstanceId;
use crate::port::connector::{ConnectError, Connector, Mark, Output, RemoteCommand, Stage, StageEnd, Stop};
use crate::port::provider::InstanceKeys;

/// A link acknowledges a stop immediately; on a busy machine, within the grace plus this time.
const STOP_ACKNOWLEDGED: Duration = Duration::from_millis(800);
/// Time for the link's own part, beyond the limit of a check on the instance.
const MARGIN: Duration = Duration::from_secs(1);
/// Tries with links that die before they have sent any part of a script.
const MOST_TRIES: u32 = 3;

/// Reaches instances through the links of their job slots.
#[derive(Debug)]
pub struct Linked {
    ssh: Ssh,
    links: Links,
}

impl Linked {
    pub fn new(ssh: Ssh, settings: LinkSettings) -> Self {
        Self { ssh, links: Links::new(settings) }
    }

    fn target<'a>(&'a self, id: &'a InstanceId, at: &'a Endpoint, within: Duration) -> Target<'a> {
        Target { id, at, ssh: &self.ssh.settings, within }
    }
}

/// The call's ends of a stage's pipes.
struct Pipes {
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

/// Result of a conversation about a stage.
enum Talk {
    Over(Result<StageEnd, ConnectError>),
    /// The connection was lost while the stage was being stopped: it may still run.
    Lost(ConnectError),
    /// The link died before any part of the script was sent: another link may run the stage.
    Again,
}

#[async_trait(?Send)]
impl Connector for Linked {
    async fn keys(&self, id: &InstanceId) -> Result<InstanceKeys, ConnectError> {
        self.ssh.keys(id).await
    }

    async fn discard_keys(&self, id: &InstanceId) {
        self.links.end(id).await;
        self.ssh.discard_keys(id).await;
    }

    /// Sends the check to the link, which is started if there is none and then connects.
    async fn check(&self, id: &InstanceId, at: &Endpoint, within: Duration) -> Result<(), ConnectError> {
        let begun = Instant::now();
        if !self.links.has_one(id) {
            // A booting instance is probed repeatedly: no process is started for each probe.
            dial::probe_port(at, within).await?;
        }
        let late = || ConnectError::timed_out(at.place(), within);
        for _ in 0..MOST_TRIES {
            let left = within.saturating_sub(begun.elapsed());
            let ask = Ask::Check { at: at.clone(), within: left };
            let Ok(mut line) = self.links.call(self.target(id, at, left), ask, &[]).await else { break };
            match timeout(left + MARGIN, line.receive::<Reply>()).await {
                Ok(Ok(Some(Reply::Answers))) => return Ok(()),
                // The link's limit was the remaining time; the error names the whole limit.
                Ok(Ok(Some(Reply::Failed(ConnectError::TimedOut { .. })))) => return Err(late()),
                Ok(Ok(Some(Reply::Failed(error)))) => return Err(error),
                // The link died.
                Ok(_) => {}
                Err(_) => {
                    kill(&line);
                    return Err(late());
                }
            }
        }
        self.ssh.check(id, at, within.saturating_sub(begun.elapsed())).await
    }

    async fn run(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        stage: Stage,
        output: &mut dyn Output,
        mut stop: Stop<'_>,
    ) -> Result<StageEnd, ConnectError> {
        let target = self.target(id, at, stage.start_within);
        for _ in 0..MOST_TRIES {
            let calling = self.call_stage(target, &stage);
            tokio::pin!(calling);
            let called = tokio::select! {
                biased;
                called = &mut calling => called,
                () = &mut stop => {
                    // The link may already have the stage and then has to stop it.
                    stop = Box::pin(std::future::ready(()));
                    let Ok(called) = timeout(stage.stop_grace + STOP_ACKNOWLEDGED, calling).await else {
                        return Ok(StageEnd::Stopped);
                    };
                    called
                }
            };
            let Ok((line, mut pipes)) = called else { break };
            match converse(line, &mut pipes, &stage, at, output, &mut stop).await {
                Talk::Over(end) => return end,
                Talk::Lost(error) => {
                    // The next link, on a connection of its own, stops the remaining processes before it replies.
                    let stopped = self.check(id, at, stop::MARGIN).await;
                    return stopped.map(|()| StageEnd::Stopped).map_err(|_| error);
                }
                Talk::Again => {}
            }
        }
        self.ssh.run(id, at, stage, output, stop).await
    }

    /// On a connection of its own: a link's shell may have started before the fault.
    async fn begins_stage(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        mark: Option<&Mark>,
        within: Duration,
    ) -> Result<(), ConnectError> {
        self.ssh.begins_stage(id, at, mark, within).await
    }

    async fn command(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        command: RemoteCommand<'_>,
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError> {
        self.ssh.command(id, at, command, output).await
    }
}

impl Linked {
    /// Sends a stage to a link, with separate pipes, so that a link never holds this process's streams.
    async fn call_stage(&self, target: Target<'_>, stage: &Stage) -> io::Result<(Line, Pipes)> {
        let (stdout, out) = io::pipe()?;
        let (stderr, err) = io::pipe()?;
        let ask = Ask::Stage {
            at: target.at.clone(),
            interpreter: Interpreter { shell: stage.shell, before: prelude(stage.trace.as_ref()) },
            start_within: stage.start_within,
            stop_grace: stage.stop_grace,
        };
        let script: &File = &stage.script;
        let line = self.links.call(target, ask, &[script.as_fd(), out.as_fd(), err.as_fd()]).await?;
        let pipes = Pipes {
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
        };
        Ok((line, pipes))
    }
}

/// Follows a stage to its end: forwards its output and handles the link's replies.
async fn converse(
    mut line: Line,
    Pipes { stdout, stderr }: &mut Pipes,
    stage: &Stage,
    at: &Endpoint,
    output: &mut dyn Output,
    stop: &mut Stop<'_>,
) -> Talk {
    let lost = ConnectError::Lost {
        at: at.place(),
        problem: "the link, which held the connection, has exited".to_owned(),
        sent: true,
    };
    let pumping = pump(stdout, stderr, output);
    tokio::pin!(pumping);
    let (mut begun, mut drained, mut acknowledged) = (false, false, false);
    let mut output_error: Option<ConnectError> = None;
    let mut end: Option<Result<StageEnd, ConnectError>> = None;
    // When the link counts as unresponsive; set once the stage is to be stopped.
    let mut unresponsive_at: Option<Instant> = None;
    loop {
        match &end {
            // The remaining output of a stopped stage is discarded.
            Some(Ok(StageEnd::Stopped)) => {
                return Talk::Over(output_error.map_or(Ok(StageEnd::Stopped), Err));
            }
            Some(Err(error @ ConnectError::Lost { sent: true, .. }))
                if unresponsive_at.is_some() && !acknowledged =>
            {
                return Talk::Lost(error.clone());
            }
            // A stage that is being stopped has no reader.
            Some(end) if drained || unresponsive_at.is_some() => return Talk::Over(end.clone()),
            _ => {}
        }
        tokio::select! {
            biased;
            () = &mut *stop, if unresponsive_at.is_none() => {
                let _sent = line.send(&Control::Stop, &[]).await;
                unresponsive_at = Some(Instant::now() + stage.stop_grace + STOP_ACKNOWLEDGED);
                // The stage has ended by itself, and its output is still held open or is not read.
                end = end.map(|_| Ok(StageEnd::Stopped));
            }
            reply = line.receive::<Reply>(), if end.is_none() => match reply {
                Ok(Some(Reply::Begun)) => begun = true,
                Ok(Some(Reply::Stopping)) => {
                    acknowledged = true;
                    unresponsive_at = Some(Instant::now() + stage.stop_grace * 2 + stop::LONGEST);
                }
                Ok(Some(Reply::Ended(ended))) => end = Some(Ok(ended)),
                Ok(Some(Reply::Failed(error))) => end = Some(Err(error)),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) if !begun && unresponsive_at.is_none() => return Talk::Again,
                Ok(None) | Err(_) => {
                    acknowledged = false;
                    end = Some(Err(lost.clone()));
                }
            },
            () = sleep_until(unresponsive_at.unwrap_or_else(Instant::now)),
                if unresponsive_at.is_some() && end.is_none() =>
            {
                // The next stage's link stops what this one left running.
                kill(&line);
                end = Some(Ok(StageEnd::Stopped));
            }
            pumped = &mut pumping, if !drained => {
                drained = true;
                if let Err(error) = pumped {
                    let what = format!("cannot forward the stage's output: {error}");
                    output_error = Some(ConnectError::Local { what });
                    let _sent = line.send(&Control::Stop, &[]).await;
                    unresponsive_at = Some(Instant::now() + stage.stop_grace + STOP_ACKNOWLEDGED);
                }
            }
        }
    }
}
