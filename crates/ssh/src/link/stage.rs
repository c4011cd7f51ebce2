//! One stage, as a link runs it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::time::Pretty;
use greenroom_ports::connector::{ConnectError, StageEnd, Step, Stop};
use tokio::time::{Instant, timeout_at};

use super::super::proof::Marks;
use super::super::session::Session;
use super::super::stage::{Input, Run, carry_on, forward};
use super::hub::Hub;
use super::line::Line;
use super::message::{Control, Reply};
use super::shells::{Next, NoShell, Program, StandbyShell};
use crate::output::ProcessOutput;

/// Descriptors of a stage: its script, and pipes for its two streams.
pub(super) const DESCRIPTORS: usize = 3;

/// From TERM to KILL for a stage whose call has exited and no longer waits.
const ABANDONED_GRACE: Duration = Duration::from_millis(50);

/// Extra time for the connection and for the shell: each has its own limit, whose error is more precise.
const MARGIN: Duration = Duration::from_millis(500);

/// A call's program, what may wait for another stage, and the marks of the lines that its shell prints.
type Requested = (Program, Next, Option<Marks>);

/// Frees the link when the stage has ended, whatever its result.
struct Turn<'a, 'b>(&'a Hub<'b>);

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        self.0.shells.stage_ended();
        self.0.changed.notify_waiters();
    }
}

impl Hub<'_> {
    /// Runs a program for a call, and reports its end.
    pub(super) async fn run_stage(
        &self,
        mut line: Line,
        program: Requested,
        start_within: Duration,
        stop_grace: Duration,
    ) -> io::Result<()> {
        self.shells.stage_runs.set(true);
        let turn = Turn(self);
        self.stages.set(self.stages.get() + 1);
        line.send(&Reply::Accepted, &[]).await?;
        let result = self.stage(&mut line, program, start_within, stop_grace).await;
        if matches!(result, Err(ConnectError::Lost { sent: true, .. })) {
            // The stage may still be running: its note stays, and the next link stops that session.
            self.close();
        }
        drop(turn);
        line.send(&result.map_or_else(Reply::Failed, Reply::Ended), &[]).await
    }

    async fn stage(
        &self,
        line: &mut Line,
        (program, next, marks): Requested,
        start_within: Duration,
        stop_grace: Duration,
    ) -> Result<StageEnd, ConnectError> {
        let mut descriptor =
            || line.next_descriptor().ok_or_else(|| local("the request for a stage lacks pipes", &"none"));
        let (script, stdout, stderr) = (descriptor()?, descriptor()?, descriptor()?);
        let mut output =
            ProcessOutput::to_pipes(stdout, stderr).map_err(|e| local("cannot use the stage's pipes", &e))?;
        let start_by = Instant::now() + start_within;
        let connecting = timeout_at(start_by + MARGIN, self.session());
        let session = tokio::select! {
            biased;
            session = connecting => session.map_err(|_| self.late(start_within))??,
            _ = stop_requested(line) => return Ok(StageEnd::Stopped),
        };
        let taken = tokio::select! {
            biased;
            taken = timeout_at(start_by + MARGIN, self.shells.take(program, next, start_within)) => taken,
            _ = stop_requested(line) => {
                // A shell that is still starting ends with the connection.
                self.close();
                return Ok(StageEnd::Stopped);
            }
        };
        let waiting = match taken {
            Ok(Some(Ok(waiting))) => waiting,
            Ok(Some(Err(NoShell { error, noise }))) => {
                forward(&mut output, noise).await?;
                return Err(error);
            }
            Ok(None) => return Err(session.lost(false)),
            Err(_) => {
                self.close();
                let why = format!("the instance did not start the stage within {}", Pretty(start_within));
                return Err(session.not_started(why, false).await);
            }
        };
        let grace = Rc::new(Cell::new(stop_grace));
        let input = Input::File(script.into());
        let settings = &self.spec.settings;
        let (linger, first_line) = (settings.linger, settings.first_line);
        let run = Run { input, grace, linger, first_line, marks };
        // The note that is removed below is this stage's own: a dead link's note stays until its stage has been
        // stopped.
        let _noted = self.slot_lock.note(waiting.handle());
        let end = in_shell(session, line, waiting, &run, &mut output).await;
        if output.open_line().is_some() {
            // A call that has exited writes no further line.
            let _sent = line.send(&Reply::LineOpen, &[]).await;
        }
        if !matches!(end, Err(ConnectError::Lost { sent: true, .. })) {
            let _noted = self.slot_lock.note(None);
        }
        end
    }

    /// The error of a connection that was not ready in time.
    pub(super) fn late(&self, within: Duration) -> ConnectError {
        let step = if self.is_connected() { Step::Shell } else { Step::Connect };
        ConnectError::timed_out_in(step, self.spec.at.place(), within)
    }
}

/// Runs a script in a standby shell.
async fn in_shell(
    session: &Session<'_>,
    line: &mut Line,
    mut waiting: StandbyShell,
    run: &Run,
    output: &mut ProcessOutput,
) -> Result<StageEnd, ConnectError> {
    let noise = std::mem::take(&mut waiting.noise);
    let reported = line.send(&Reply::Begun, &[]).await.map_err(|e| local("the call has exited", &e));
    let begun = match reported {
        Ok(()) => forward(output, noise).await,
        gone => gone,
    };
    if let Err(error) = begun {
        waiting.dismiss().await;
        return Err(error);
    }
    let mut stop: Stop<'_> = Box::pin(async {
        if !stop_requested(line).await {
            run.grace.set(run.grace.get().min(ABANDONED_GRACE));
        }
    });
    carry_on(session, &mut waiting.begun, run, output, &mut stop, &Cell::new(false)).await
}

fn local(what: &str, problem: &dyn std::fmt::Display) -> ConnectError {
    ConnectError::Local { what: format!("{what}: {problem}") }
}

/// Resolves when the call requests a stop, or has exited (`false`).
async fn stop_requested(line: &mut Line) -> bool {
    match line.receive::<Control>().await {
        Ok(Some(Control::Stop)) => {
            // A call without a reply takes this link for dead.
            let _sent = line.send(&Reply::Stopping, &[]).await;
            true
        }
        Ok(None) | Err(_) => false,
    }
}
