//! Serves the requests of a link's calls in its [`Hub`]: checks, figures and stages.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::time::Pretty;
use greenroom_ports::connector::{ConnectError, StageEnd, Step, Stop};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::super::output::ProcessOutput;
use super::super::passed;
use super::super::script_ack::{ExitMark, ShellMarks};
use super::super::session::{Session, is_refusal};
use super::super::stage::{Input, LocalError, Run, carry_on, forward};
use super::hub::Hub;
use super::protocol::{
    Control, Envelope, Figures, Interpreter, LinkReply, LinkRequest, LinkStream, PROTOCOL,
};
use super::shells::{GuestProgram, Next, NoShell, REFUSED_AGAIN, REFUSED_FOR, StandbyShell};

/// A check ends this much after the connection's own limit.
const OVERLAP: Duration = Duration::from_millis(200);
/// Limit for a call's request, which calls send immediately.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);

impl Hub<'_> {
    /// Serves one call, from its request to its end.
    pub(super) async fn converse(&self, stream: UnixStream) {
        let mut line = LinkStream::new(stream);
        let received = timeout(REQUEST_WITHIN, line.receive::<Value>()).await;
        let Ok(Ok(Some(request))) = received else { return };
        // The only part of a request that every version understands.
        let protocol =
            request.get("protocol").and_then(Value::as_u64).and_then(|number| number.try_into().ok());
        let Some::<u32>(protocol) = protocol else { return };
        let request = match serde_json::from_value::<Envelope>(request) {
            Ok(request) if protocol == PROTOCOL => request,
            _ => return self.turn_away(&line).await,
        };
        // A call that has exited gets no reply.
        let _sent = match request.ask {
            LinkRequest::End => {
                // No other link follows this one.
                let _recorded = self.slot_lock.record(None);
                self.close();
                let sent = line.send(&LinkReply::Closing, &[]).await;
                self.over().await;
                sent
            }
            LinkRequest::Metadata => line.send(&LinkReply::Metadata(self.metadata.report()), &[]).await,
            LinkRequest::Show => line.send(&LinkReply::Shown(figures(self).await), &[]).await,
            LinkRequest::Check { at, .. }
            | LinkRequest::Stage { at, .. }
            | LinkRequest::Command { at, .. }
                if self.is_closing() || at != self.spec.at =>
            {
                return self.turn_away(&line).await;
            }
            LinkRequest::Check { .. } | LinkRequest::Stage { .. } | LinkRequest::Command { .. }
                if self.is_busy() =>
            {
                line.send(&LinkReply::Busy, &[]).await
            }
            LinkRequest::Check { at, within, next } => {
                self.watch_runner(&mut line, request.wake, 0);
                self.answer_check(&line, &at, next, within).await
            }
            LinkRequest::Stage {
                interpreter,
                start_within,
                stop_grace,
                followed,
                ahead,
                ready_mark,
                exit_mark,
                exit_joined: joined,
                ..
            } => {
                self.watch_runner(&mut line, request.wake, DESCRIPTORS);
                let next = Next { followed, ahead: ahead.map(GuestProgram::Interpreter) };
                let marks = ready_mark.zip(exit_mark);
                let marks = marks.map(|(ready, mark)| ShellMarks { ready, exit: ExitMark { mark, joined } });
                let program = GuestProgram::Interpreter(interpreter);
                let request = StageRequest { program, next, marks, start_within, stop_grace };
                self.run_stage(line, request).await
            }
            LinkRequest::Command { text, start_within, stop_grace, .. } => {
                let program = GuestProgram::Command(text);
                let next = Next::default();
                let request = StageRequest { program, next, marks: None, start_within, stop_grace };
                self.run_stage(line, request).await
            }
        };
    }

    /// Refuses a call that needs another link, and makes room for that link as soon as possible.
    async fn turn_away(&self, line: &LinkStream) {
        let reply = if self.is_busy() { LinkReply::Busy } else { LinkReply::Closing };
        self.close();
        let _sent = line.send(&reply, &[]).await;
    }

    async fn answer_check(
        &self,
        line: &LinkStream,
        at: &Endpoint,
        next: Option<Interpreter>,
        within: Duration,
    ) -> std::io::Result<()> {
        line.send(&LinkReply::Accepted, &[]).await?;
        // The connection's own limit, which began at the same time, tells more.
        let answer = timeout(within + OVERLAP, self.check(at, next)).await.unwrap_or_else(|_| {
            // The next call gets a new connection.
            self.close();
            Err(self.late(within))
        });
        let reply = answer.map_or_else(LinkReply::Failed, |()| LinkReply::Answers);
        line.send(&reply, &[]).await
    }

    /// A standby shell shows that the guest can start processes; a ping shows that it responds now.
    async fn check(&self, at: &Endpoint, next: Option<Interpreter>) -> Result<(), ConnectError> {
        let session = self.session().await?;
        if let Some(next) = next {
            self.shells.start_early(GuestProgram::Interpreter(next));
        }
        let patience = Instant::now() + REFUSED_FOR;
        while !self.shells.settled().await {
            match session.brief(session.dialect().check()).await {
                // A shell that has started meanwhile may have the only session.
                Err(error) if is_refusal(&error) && Instant::now() < patience => sleep(REFUSED_AGAIN).await,
                answer => return passed(session, &at.user, answer?),
            }
        }
        self.ping(session).await
    }
}

/// Descriptors of a stage: its script, and pipes for its two streams.
const DESCRIPTORS: usize = 3;

/// Time from TERM to KILL for a stage whose call has exited and no longer waits.
const ABANDONED_GRACE: Duration = Duration::from_millis(50);

/// Extra time for the connection and for the shell: each has its own limit, whose error is more precise.
const START_MARGIN: Duration = Duration::from_millis(500);

/// A call's request to run a program.
pub(super) struct StageRequest {
    program: GuestProgram,
    next: Next,
    /// The marks of the lines that a container's shell prints.
    marks: Option<ShellMarks>,
    start_within: Duration,
    stop_grace: Duration,
}

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
    async fn run_stage(&self, mut line: LinkStream, request: StageRequest) -> io::Result<()> {
        self.shells.stage_runs.set(true);
        let turn = Turn(self);
        self.stages.set(self.stages.get() + 1);
        line.send(&LinkReply::Accepted, &[]).await?;
        let result = self.stage(&mut line, request).await;
        if matches!(result, Err(ConnectError::Lost { sent: true, .. })) {
            // The stage may still be running: its record stays, and the next link stops that session.
            self.close();
        }
        drop(turn);
        line.send(&result.map_or_else(LinkReply::Failed, LinkReply::Ended), &[]).await
    }

    async fn stage(&self, line: &mut LinkStream, request: StageRequest) -> Result<StageEnd, ConnectError> {
        let StageRequest { program, next, marks, start_within, stop_grace } = request;
        let mut descriptor = || line.next_descriptor().ok_or(LocalError::NoPipes);
        let script = descriptor()?;
        let stdout = descriptor()?;
        let stderr = descriptor()?;
        let mut output = ProcessOutput::to_pipes(stdout, stderr).map_err(LocalError::Pipes)?;
        let start_by = Instant::now() + start_within;
        let connecting = timeout_at(start_by + START_MARGIN, self.session());
        let session = tokio::select! {
            biased;
            session = connecting => session.map_err(|_| self.late(start_within))??,
            _ = stop_requested(line) => return Ok(StageEnd::Stopped),
        };
        let taken = tokio::select! {
            biased;
            taken = timeout_at(start_by + START_MARGIN, self.shells.take(program, next, start_within)) => taken,
            _ = stop_requested(line) => {
                // A shell that is still starting ends with the connection.
                self.close();
                return Ok(StageEnd::Stopped);
            }
        };
        let waiting = match taken {
            Ok(Some(Ok(waiting))) => waiting,
            Ok(Some(Err(NoShell { error, preamble }))) => {
                forward(&mut output, preamble).await?;
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
        let linger = settings.linger;
        let first_line = settings.first_line;
        let run = Run { input, grace, linger, first_line, marks };
        // The record that is removed below is this stage's own: a dead link's record stays until its stage has been
        // stopped.
        let _recorded = self.slot_lock.record(waiting.handle());
        let end = in_shell(session, line, waiting, &run, &mut output).await;
        if output.open_line().is_some() {
            // A call that has exited writes no further line.
            let _sent = line.send(&LinkReply::LineOpen, &[]).await;
        }
        if !matches!(end, Err(ConnectError::Lost { sent: true, .. })) {
            let _recorded = self.slot_lock.record(None);
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
    line: &mut LinkStream,
    mut waiting: StandbyShell,
    run: &Run,
    output: &mut ProcessOutput,
) -> Result<StageEnd, ConnectError> {
    let preamble = std::mem::take(&mut waiting.preamble);
    let begun = match line.send(&LinkReply::Begun, &[]).await {
        Ok(()) => forward(output, preamble).await,
        Err(gone) => Err(LocalError::CallGone(gone).into()),
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
    carry_on(session, &mut waiting.begun, run, output, &mut stop).await
}

/// Resolves when the call requests a stop, or has exited (`false`).
async fn stop_requested(line: &mut LinkStream) -> bool {
    match line.receive::<Control>().await {
        Ok(Some(Control::Stop)) => {
            // A call without a reply takes this link for dead.
            let _sent = line.send(&LinkReply::Stopping, &[]).await;
            true
        }
        Ok(None) | Err(_) => false,
    }
}

/// A ping that takes longer is left out, because the querying process waits for only one second.
const PING_WITHIN: Duration = Duration::from_millis(500);

pub(super) async fn figures(hub: &Hub<'_>) -> Figures {
    let connected = hub.connected_for();
    if connected.is_some()
        && !hub.is_busy()
        && let Ok(session) = hub.session().await
    {
        // Without a reply, the previous figure stays.
        let _answered = timeout(PING_WITHIN, hub.ping(session)).await;
    }
    let whole = |time: u128| u64::try_from(time).unwrap_or(u64::MAX);
    Figures {
        pid: std::process::id(),
        connected_ms: connected.map(|time| whole(time.as_millis())),
        round_trip_us: hub.round_trip.get().map(|time| whole(time.as_micros())),
        memory: own_memory(),
        stages: hub.stages.get(),
        busy: hub.is_busy(),
        shell_waits: hub.shells.one_waits.get(),
    }
}

/// Anonymous memory of this process, which excludes the program file.
fn own_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}
