//! Runs one stage over a session.
//!
//! The script is sent while output is read, so neither side can block the other. Output is forwarded in order, one
//! message at a time: while its reader is stalled, the guest waits.
//!
//! A container's shell first gets one line, and the rest of the script when it has read that line; see `proof`.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::execution::StageShell;
use greenroom_ports::connector::{ConnectError, Mark, Output, Reader, RemoteCommand, Stage, StageEnd, Stop};
use greenroom_ports::dialect::GuestDialect;
use russh::ChannelWriteHalf;
use russh::client::Msg;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::guest::{Guest, OutputEnd, Preamble};
use super::login_profile::LoginEnvironment;
use super::remote::Marked;
use super::script_ack::{ShellMarks, never_read};
use super::session::Session;
use super::{SshSettings, stop};

/// Bytes of the script that are read at a time.
const CHUNK: usize = 64 << 10;

/// From TERM to KILL for an empty script that does not end.
const PROBE_GRACE: Duration = Duration::from_secs(1);

/// Why this process, rather than the instance, fails a stage.
#[derive(Debug, thiserror::Error)]
pub(super) enum LocalError {
    #[error("cannot copy the script: {0}")]
    Copy(#[source] io::Error),
    #[error("cannot read the script: {0}")]
    Script(#[source] io::Error),
    #[error("cannot forward the stage's output: {0}")]
    Output(#[source] io::Error),
    #[error("the request for a stage lacks pipes: none")]
    NoPipes,
    #[error("cannot use the stage's pipes: {0}")]
    Pipes(#[source] io::Error),
    #[error("the call has exited: {0}")]
    CallGone(#[source] io::Error),
    #[error("cannot get random numbers from the kernel: {0}")]
    Random(#[source] io::Error),
}

impl From<LocalError> for ConnectError {
    fn from(error: LocalError) -> Self {
        Self::Local { what: error.to_string() }
    }
}

/// A command, with everything needed to run and stop it.
pub(super) struct StageWork {
    marked: Marked,
    start_within: Duration,
    run: Run,
}

/// Input and limits of a requested command.
pub(super) struct Run {
    /// Its standard input.
    pub(super) input: Input,
    /// From TERM to KILL when it is stopped; the stop may still change it.
    pub(super) grace: Rc<Cell<Duration>>,
    pub(super) linger: Duration,
    /// How long a shell in a container may take to read its first line.
    pub(super) first_line: Duration,
    /// The marks of the lines that a shell in a container prints.
    pub(super) marks: Option<ShellMarks>,
}

impl StageWork {
    pub(super) fn script(
        stage: Stage,
        dialect: &'static dyn GuestDialect,
        marks: Option<ShellMarks>,
        settings: &SshSettings,
    ) -> Result<Self, ConnectError> {
        let before = dialect.before(&stage.reader, stage.trace.as_ref(), stage.container_start);
        let marked = Marked::reader(dialect, &stage.reader, &before, None)?;
        let Stage { script, start_within, stop_grace, .. } = stage;
        let mut work = Self::new(marked, Input::File(script), stop_grace, start_within, settings);
        work.run.marks = marks;
        Ok(work)
    }

    /// An empty script for a shell, after what comes before a job's.
    pub(super) fn probe(
        (shell, mark): (StageShell, Option<&Mark>),
        dialect: &'static dyn GuestDialect,
        within: Duration,
        settings: &SshSettings,
    ) -> Result<Self, ConnectError> {
        let marked = Marked::reader(dialect, &Reader::Shell(shell), &dialect.before_probe(mark), None)?;
        Ok(Self::new(marked, Input::Text([].into()), PROBE_GRACE, within, settings))
    }

    pub(super) fn command(
        command: RemoteCommand<'_>,
        dialect: &dyn GuestDialect,
        grace: Duration,
        settings: &SshSettings,
    ) -> Result<Self, ConnectError> {
        let marked = Marked::command(dialect, command.text)?;
        let input = Input::Text(command.input.as_bytes().into());
        Ok(Self::new(marked, input, grace, settings.start_within(&command), settings))
    }

    fn new(
        marked: Marked,
        input: Input,
        grace: Duration,
        start_within: Duration,
        settings: &SshSettings,
    ) -> Self {
        let grace = Rc::new(Cell::new(grace));
        let SshSettings { linger, first_line, .. } = *settings;
        Self { marked, start_within, run: Run { input, grace, linger, first_line, marks: None } }
    }
}

/// A script, or the standard input of a command.
pub(super) enum Input {
    File(File),
    Text(Box<[u8]>),
}

/// A channel on which a command was requested.
pub(super) struct Begun {
    pub(super) guest: Guest,
    pub(super) to: ChannelWriteHalf<Msg>,
    /// The environment of its login shell, if that has read a profile.
    pub(super) environment: Option<LoginEnvironment>,
}

/// Requests a command. `within` limits the channel and the command's start together.
async fn begin(session: &Session<'_>, marked: &Marked, within: Duration) -> Result<Begun, ConnectError> {
    let start_by = Instant::now() + within;
    let opened = timeout_at(start_by, session.channel()).await;
    let channel = opened.map_err(|_| session.timed_out(within))??;
    channel.exec(true, marked.command.as_str()).await.map_err(|_| session.lost(false))?;
    let (from, to) = channel.split();
    Ok(Begun { guest: Guest::new(from, &marked.mark, start_by), to, environment: None })
}

/// Runs a command to its end, or until `stop` resolves.
pub(super) async fn run(
    session: &Session<'_>,
    work: StageWork,
    output: &mut dyn Output,
    stop: &mut Stop<'_>,
) -> Result<StageEnd, ConnectError> {
    let mut preamble = Preamble::default();
    let started = tokio::select! {
        biased;
        // What is still starting ends with the connection.
        () = &mut *stop => return Ok(StageEnd::Stopped),
        started = start(session, &work.marked, work.start_within, &mut preamble) => started,
    };
    let written = forward(output, preamble).await;
    let mut begun = started?;
    if let Err(error) = written {
        let _sent = begun.to.close().await;
        return Err(error);
    }
    carry_on(session, &mut begun, &work.run, output, stop).await
}

/// Requests a command, and waits until it may get its input. What it prints until then comes into `preamble`.
pub(super) async fn start(
    session: &Session<'_>,
    marked: &Marked,
    within: Duration,
    preamble: &mut Preamble,
) -> Result<Begun, ConnectError> {
    let mut begun = begin(session, marked, within).await?;
    match begun.guest.start(session, &begun.to, marked, within, preamble).await {
        Ok(environment) => Ok(Begun { environment, ..begun }),
        Err(error) => {
            let _sent = begun.to.close().await;
            Err(error)
        }
    }
}

/// Forwards the guest's earlier output, which belongs to the stage, or shows why there is none. It fits into an empty
/// pipe.
pub(super) async fn forward(output: &mut dyn Output, preamble: Preamble) -> Result<(), ConnectError> {
    for (stream, bytes) in preamble.output {
        output.write(stream, &bytes).await.map_err(LocalError::Output)?;
    }
    Ok(())
}

/// Sends the input to a requested command and forwards its output, to its end or until `stop` resolves.
pub(super) async fn carry_on(
    session: &Session<'_>,
    begun: &mut Begun,
    run: &Run,
    output: &mut dyn Output,
    stop: &mut Stop<'_>,
) -> Result<StageEnd, ConnectError> {
    let sent = Cell::new(false);
    let outcome = drive(session, begun, run, output, stop, &sent).await;
    let Begun { guest, to, .. } = begun;
    let cause = match outcome {
        DriveEnd::Over(OutputEnd::Ended(end)) => {
            // This also closes the output that a background process still holds open.
            let _sent = to.close().await;
            return Ok(end);
        }
        DriveEnd::Over(OutputEnd::Held(end)) => {
            stop::name_background(session, guest, output).await;
            let _sent = to.close().await;
            return Ok(end);
        }
        DriveEnd::Over(OutputEnd::Lost(problem)) => return Err(session.lost_because(problem, sent.get())),
        DriveEnd::Over(OutputEnd::Output(error)) => Some(LocalError::Output(error)),
        DriveEnd::Unsent(Unsent::Script(error)) => Some(LocalError::Script(error)),
        DriveEnd::Unsent(Unsent::NotRead) => {
            let _stopped = stop::stop(session, guest, to, run.grace.get()).await;
            return Ok(StageEnd::Impossible(never_read(run.first_line)));
        }
        DriveEnd::Stop => None,
    };
    let stopped = stop::stop(session, guest, to, run.grace.get()).await;
    match cause {
        Some(error) => stopped.and(Err(error.into())),
        None => stopped.map_err(|error| match error {
            ConnectError::Lost { at, problem, .. } => ConnectError::Lost { at, problem, sent: sent.get() },
            other => other,
        }),
    }
}

enum DriveEnd {
    Over(OutputEnd),
    Unsent(Unsent),
    Stop,
}

/// Why the rest of the script was not sent.
enum Unsent {
    /// The script could not be read to its end.
    Script(io::Error),
    /// No shell has read its first line in time.
    NotRead,
}

/// Sends the input while it forwards the output. `sent` is set with the first byte of the input.
async fn drive(
    session: &Session<'_>,
    Begun { guest, to, .. }: &mut Begun,
    run: &Run,
    output: &mut dyn Output,
    stop: &mut Stop<'_>,
    sent: &Cell<bool>,
) -> DriveEnd {
    let within = run.first_line;
    let ready = run.marks.as_ref().map(|marks| guest.expect_shell(marks, within));
    let ready = ready.as_deref().map(|ready| (ready, within));
    let receiving = guest.receive(session, output, run.linger);
    let sending = async {
        match &run.input {
            Input::File(file) => send(to, file, sent, ready).await,
            Input::Text(text) => send(to, &text[..], sent, None).await,
        }
    };
    tokio::pin!(receiving, sending);
    let mut sending_over = false;
    loop {
        tokio::select! {
            biased;
            () = &mut *stop => return DriveEnd::Stop,
            over = &mut receiving => return DriveEnd::Over(over),
            result = &mut sending, if !sending_over => match result {
                Ok(()) => sending_over = true,
                Err(unsent) => return DriveEnd::Unsent(unsent),
            },
        }
    }
}

/// Sends the script, then the end of input. A guest that does not read all of it is not an error. What follows the first
/// line waits for `ready`, but not longer than its limit.
async fn send(
    to: &ChannelWriteHalf<Msg>,
    mut input: impl Read,
    sent: &Cell<bool>,
    mut ready: Option<(&Notify, Duration)>,
) -> Result<(), Unsent> {
    // The first byte is sent alone, so that `sent` becomes true exactly with it.
    let mut size = 1;
    loop {
        let mut chunk = Vec::with_capacity(size);
        input.by_ref().take(size as u64).read_to_end(&mut chunk).map_err(Unsent::Script)?;
        if chunk.is_empty() {
            let _gone = to.eof().await;
            return Ok(());
        }
        let line = ready.and_then(|_| chunk.iter().position(|byte| *byte == b'\n'));
        let after_line = line.map(|end| chunk.split_off(end + 1));
        if to.data_bytes(chunk).await.is_err() {
            return Ok(());
        }
        sent.set(true);
        size = CHUNK;
        if let Some(rest) = after_line
            && let Some((ready, within)) = ready.take()
        {
            timeout(within, ready.notified()).await.map_err(|_| Unsent::NotRead)?;
            if !rest.is_empty() && to.data_bytes(rest).await.is_err() {
                return Ok(());
            }
        }
    }
}
