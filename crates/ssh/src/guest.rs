//! Output and end of a stage, as the guest sends them.
//!
//! The start is limited: the channel, the server's reply, the line with the stop handle and the shell's answer to its
//! first line share one limit. No part of a script is sent before. Output before the line with the handle comes from
//! the profile of the account's login shell. It is not the stage's, and shows in an error what held the start.
//!
//! Afterwards a script may be silent: only the keep-alive, the stop and the job's timeout end it. That the server
//! accepted the command or the script's bytes does not show that the guest works.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::text::{clean_line, clean_text};
use greenroom_core::time::Pretty;
use greenroom_ports::connector::{ConnectError, Output, StageEnd, Stream};
use greenroom_ports::dialect::StopHandle;
use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::login_profile::{Login, LoginEnvironment, LoginProgress};
use super::marker_scan::MarkerScan;
use super::remote::{self, Acknowledged, Marked};
use super::script_ack::{AwaitedShell, ExitLines, ShellMarks};
use super::session::Session;
use super::stop::QUIET;

/// Why reading a stage's output ended.
pub(super) enum OutputEnd {
    Ended(StageEnd),
    /// The script has ended, and a background process keeps its output open.
    Held(StageEnd),
    /// The session or its connection broke.
    Lost(String),
    /// Forwarding the output failed.
    Output(io::Error),
}

/// Bytes that are kept of what a guest prints before its script is sent.
const PREAMBLE: usize = 16 << 10;
/// A guest that has printed more than this, and has not begun, does not begin.
const ENDLESS: usize = 1 << 20;
/// Bytes of the preamble that an error quotes.
const QUOTED: usize = 80;

const NO_COMMANDS: &str = "the instance does not run commands for this user";
const NO_STATUS: &str = "the instance ended the stage without an exit status";

/// The guest's output before its script was sent, in order.
#[derive(Debug, Default)]
pub(super) struct Preamble {
    pub(super) output: Vec<(Stream, Vec<u8>)>,
    size: usize,
}

impl Preamble {
    fn keep(&mut self, stream: Stream, bytes: &[u8]) {
        let room = PREAMBLE.saturating_sub(self.size);
        self.size = self.size.saturating_add(bytes.len());
        let kept = &bytes[..bytes.len().min(room)];
        if !kept.is_empty() {
            self.output.push((stream, kept.to_vec()));
        }
    }

    fn is_empty(&self) -> bool {
        self.size == 0
    }

    fn bytes(&self) -> Vec<u8> {
        self.output.iter().flat_map(|(_, bytes)| bytes).copied().collect()
    }

    /// Takes the environment of a login shell out, which is in one of the streams. Returns how far the login has come, and
    /// the environment if it is complete.
    fn without_environment(&mut self, login: &Login) -> (LoginProgress, Option<LoginEnvironment>) {
        for of in [Stream::Stderr, Stream::Stdout] {
            let (its, others): (Vec<_>, Vec<_>) =
                self.output.iter().cloned().partition(|(stream, _)| *stream == of);
            let all = its.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>();
            let reached = login.reached(&all);
            if reached != LoginProgress::Nothing {
                self.output = others;
                self.output.push((of, login.shown(&all)));
                self.size = self.output.iter().map(|(_, bytes)| bytes.len()).sum();
                return (reached, login.environment(&all));
            }
        }
        (LoginProgress::Nothing, None)
    }

    /// True if this is more than a profile prints; the rest is not waited for.
    fn is_full(&self) -> bool {
        self.size >= PREAMBLE
    }

    /// Its last line, cleaned and shortened.
    fn last_line(&self) -> String {
        let text = clean_text(&self.bytes());
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        clean_line(line.as_bytes(), QUOTED)
    }
}

/// Why a start ended without a shell.
enum Unstarted {
    Late,
    Ended(StageEnd),
    Endless,
    /// Another shell has answered the first line.
    Other,
}

/// Handles output that may have the line with the handle. What comes before it is not the stage's: a profile's, and the
/// environment of a login shell. Only if the stage's shell is silent until it gets its first line: a server may swap
/// what the two streams have.
fn take_handle_line(
    scan: &mut MarkerScan<StopHandle>,
    stream: Stream,
    bytes: &[u8],
    Marked { first_line, login, .. }: &Marked,
    preamble: &mut Preamble,
    environment: &mut Option<LoginEnvironment>,
) {
    let passed = scan.feed(bytes);
    if !scan.has_begun() {
        return preamble.keep(stream, &passed);
    }
    let (before, after) = passed.split_at(scan.before());
    preamble.keep(stream, before);
    if let Some(login) = login {
        *environment = preamble.without_environment(login).1;
    }
    if first_line.is_some() {
        *preamble = Preamble::default();
    }
    // What only looks like a handle is no output, either.
    if scan.marker().is_some() {
        preamble.keep(stream, after);
    }
}

/// The step that a start has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartStep {
    /// The account's shell has not yet run the command.
    Login,
    /// The login profile is being read.
    Profile,
    /// The stage's shell has not yet answered its first line.
    FirstLine,
}

impl StartStep {
    /// Why the guest did not begin the stage, after `what`, by what it printed meanwhile.
    fn blame(self, what: &str, preamble: &Preamble) -> String {
        let printed = preamble.last_line();
        match self {
            Self::Login if preamble.is_empty() => what.to_owned(),
            Self::Profile => format!(
                "{what}: `/etc/profile` or a profile of the account, such as `~/.profile`, waits, exits or starts \
                 another shell"
            ),
            Self::Login => format!(
                "{what}; the login shell printed `{printed}` instead: a login profile that reads standard input, waits, \
                 exits or starts another shell"
            ),
            Self::FirstLine => {
                let printed =
                    if preamble.is_empty() { String::new() } else { format!(", and printed `{printed}`") };
                format!(
                    "{what}: its shell did not answer its first line{printed}; a file that it reads first, such as that \
                     of `BASH_ENV`, may read standard input, wait, exit or start another program"
                )
            }
        }
    }

    /// The sentence of a session that ended before the shell read the script, which is not the cause.
    fn too_early(self, end: &StageEnd, preamble: &Preamble) -> String {
        let what = format!("the session ended with {end} before the script began");
        match self {
            Self::FirstLine if preamble.is_empty() => what,
            Self::FirstLine => format!("{what}: {}", preamble.last_line()),
            Self::Login | Self::Profile => self.blame(&what, preamble),
        }
    }
}

/// The guest's side of a stage.
pub(super) struct Guest {
    from: ChannelReadHalf,
    /// Finds the stop handle in standard error.
    scan: MarkerScan<StopHandle>,
    /// Finds the stop handle in standard output, where some servers send both streams.
    merged: MarkerScan<StopHandle>,
    /// The status that a shell in a container prints when it exits.
    exit: Option<ExitLines>,
    /// The shell in a container, until it has read its first line.
    shell: Option<AwaitedShell>,
    start_by: Instant,
    closed: bool,
}

impl Guest {
    /// Reads a channel on which a command was requested. `start_by`: deadline of its start.
    pub(super) fn new(from: ChannelReadHalf, mark: &str, start_by: Instant) -> Self {
        let scan = MarkerScan::new(mark);
        let merged = MarkerScan::new(mark);
        Self { from, scan, merged, exit: None, shell: None, start_by, closed: false }
    }

    /// The handle that stops the stage, if the guest gave it.
    pub(super) fn handle(&self) -> Option<&StopHandle> {
        self.scan.marker().or(self.merged.marker())
    }

    /// Expects a shell in a container. When it has exited, the stage ends, before the command does. Returns what is notified
    /// when the shell has read its first line.
    pub(super) fn expect_shell(&mut self, marks: &ShellMarks, within: Duration) -> Rc<Notify> {
        let ready = Rc::new(Notify::new());
        self.exit = Some(ExitLines::new(&marks.exit));
        self.shell = Some(AwaitedShell::new(marks, within, Rc::clone(&ready)));
        ready
    }

    /// Waits until the guest may get its input: for the line with the handle, then for the answer to the first line,
    /// which is sent meanwhile. Only output of the program itself is left in `preamble`. Returns the environment of a login
    /// shell. `within`: the limit of the start, for the message.
    pub(super) async fn start(
        &mut self,
        session: &Session<'_>,
        to: &ChannelWriteHalf<Msg>,
        marked: &Marked,
        within: Duration,
        preamble: &mut Preamble,
    ) -> Result<Option<LoginEnvironment>, ConnectError> {
        let mut answer: Option<MarkerScan<Acknowledged>> = None;
        let mut environment = None;
        let cause = loop {
            let Ok(message) = timeout_at(self.start_by, self.from.wait()).await else {
                break Unstarted::Late;
            };
            match message {
                Some(ChannelMsg::Data { data }) => match &mut answer {
                    Some(answer) => preamble.keep(Stream::Stdout, &answer.feed(&data)),
                    None => {
                        take_handle_line(
                            &mut self.merged,
                            Stream::Stdout,
                            &data,
                            marked,
                            preamble,
                            &mut environment,
                        );
                    }
                },
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => match &answer {
                    Some(_) => preamble.keep(Stream::Stderr, &data),
                    None => take_handle_line(
                        &mut self.scan,
                        Stream::Stderr,
                        &data,
                        marked,
                        preamble,
                        &mut environment,
                    ),
                },
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    break Unstarted::Ended(StageEnd::Exited(exit_status));
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    break Unstarted::Ended(remote::signalled(&signal_name));
                }
                Some(ChannelMsg::Failure) => return Err(session.not_begun(NO_COMMANDS.to_owned())),
                Some(ChannelMsg::Close) | None => {
                    self.closed = true;
                    if session.is_closed() {
                        return Err(session.lost(false));
                    }
                    return Err(session.not_begun(NO_STATUS.to_owned()));
                }
                Some(_) => {}
            }
            if answer.is_none() && self.handle_line_came() {
                let Some(line) = &marked.first_line else { return Ok(environment) };
                answer = Some(MarkerScan::new(&line.mark));
                // A guest that does not read it does not answer.
                let _sent = to.data_bytes(line.text.expose().clone().into_bytes()).await;
            }
            if let (Some(answer), Some(line)) = (&answer, &marked.first_line)
                && answer.has_begun()
            {
                match answer.marker() {
                    Some(word) if line.is_answered_by(word) => return Ok(environment),
                    _ => break Unstarted::Other,
                }
            }
            if preamble.size > ENDLESS {
                break Unstarted::Endless;
            }
        };
        let step = match (&answer, &marked.login) {
            (Some(_), _) => StartStep::FirstLine,
            (None, Some(login)) => match preamble.without_environment(login).0 {
                LoginProgress::Profile => StartStep::Profile,
                LoginProgress::Nothing | LoginProgress::End => StartStep::Login,
            },
            (None, None) => StartStep::Login,
        };
        Err(match cause {
            Unstarted::Late => {
                let what = format!("the instance did not start the stage within {}", Pretty(within));
                session.not_started(step.blame(&what, preamble), false).await
            }
            Unstarted::Other => session.not_begun(step.blame("another shell reads the script", preamble)),
            Unstarted::Ended(end) => session.not_begun(step.too_early(&end, preamble)),
            Unstarted::Endless => session.not_begun(
                step.blame("the instance printed a megabyte and did not start the stage", preamble),
            ),
        })
    }

    fn handle_line_came(&self) -> bool {
        self.scan.has_begun() || self.merged.has_begun()
    }

    /// Keeps the output of a standby shell; returns when the shell is unusable. A shell that prints too much is not
    /// read until its stage arrives, which stalls only its own connection.
    pub(super) async fn until_unusable(&mut self, preamble: &mut Preamble) {
        while !self.closed {
            if preamble.is_full() {
                std::future::pending::<()>().await;
            }
            match self.from.wait().await {
                Some(ChannelMsg::Data { data }) => preamble.keep(Stream::Stdout, &data),
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => preamble.keep(Stream::Stderr, &data),
                Some(ChannelMsg::WindowAdjusted { .. } | ChannelMsg::Success) => {}
                Some(_) | None => self.closed = true,
            }
        }
    }

    /// Waits for the next message and discards it; false if there are no more.
    pub(super) async fn discard_one(&mut self) -> bool {
        if self.closed {
            return false;
        }
        match self.from.wait().await {
            Some(ChannelMsg::Close) | None => self.closed = true,
            Some(_) => {}
        }
        !self.closed
    }

    /// Forwards output until the stage is over. `linger`: how long data may follow the exit status, in all.
    pub(super) async fn receive(
        &mut self,
        session: &Session<'_>,
        output: &mut dyn Output,
        linger: Duration,
    ) -> OutputEnd {
        let mut ended_output = false;
        let mut end: Option<StageEnd> = None;
        let mut over_at: Option<Instant> = None;
        loop {
            let message = match &end {
                Some(end) => {
                    let over_at = *over_at.get_or_insert_with(|| Instant::now() + linger);
                    let until = over_at.min(Instant::now() + QUIET.min(linger));
                    // A process that talks without a pause leaves no time for the timer.
                    let waited = if Instant::now() < over_at {
                        timeout_at(until, self.from.wait()).await.ok()
                    } else {
                        None
                    };
                    let Some(message) = waited else {
                        let end = end.clone();
                        return match self.finish(output, end).await {
                            OutputEnd::Ended(end) => OutputEnd::Held(end),
                            other => other,
                        };
                    };
                    message
                }
                None => match self.next(output).await {
                    Ok(message) => message,
                    Err(error) => return OutputEnd::Output(error),
                },
            };
            let mut written = Ok(());
            match message {
                Some(ChannelMsg::Data { data }) => {
                    written = self.write(output, Stream::Stdout, &data).await;
                }
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => {
                    written = self.write(output, Stream::Stderr, &data).await;
                }
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    end.get_or_insert(StageEnd::Exited(exit_status));
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    end.get_or_insert_with(|| remote::signalled(&signal_name));
                }
                Some(ChannelMsg::Eof) => ended_output = true,
                Some(ChannelMsg::Close) => (self.closed, ended_output) = (true, true),
                None => self.closed = true,
                Some(_) => {}
            }
            if let Err(error) = written {
                return OutputEnd::Output(error);
            }
            if let Some(status) = self.exit.as_ref().and_then(ExitLines::status) {
                return self.finish(output, StageEnd::Exited(status)).await;
            }
            match end.take() {
                // Data may follow the status: only the end of both streams ends the stage.
                Some(end) if ended_output => return self.finish(output, end).await,
                None if self.closed && !session.is_closed() => return OutputEnd::Lost(NO_STATUS.to_owned()),
                _ if self.closed => return OutputEnd::Lost(session.ended()),
                unfinished => end = unfinished,
            }
        }
    }

    /// Waits for the next message. Meanwhile, the output may get a line that names what is waited for.
    async fn next(&mut self, output: &mut dyn Output) -> io::Result<Option<ChannelMsg>> {
        if let Some(shell) = &mut self.shell
            && let Some(name_at) = shell.name_at()
        {
            match timeout_at(name_at, self.from.wait()).await {
                Ok(message) => return Ok(message),
                Err(_) => shell.name(output).await?,
            }
        }
        Ok(self.from.wait().await)
    }

    /// Forwards what is output, without a shell's last line.
    async fn write(&mut self, output: &mut dyn Output, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let passed = match &mut self.exit {
            Some(exit) => exit.feed(stream, bytes),
            None => bytes.into(),
        };
        if passed.is_empty() {
            return Ok(());
        }
        if let Some(shell) = &mut self.shell {
            shell.see(stream, &passed);
        }
        output.write(stream, &passed).await
    }

    async fn finish(&mut self, output: &mut dyn Output, end: StageEnd) -> OutputEnd {
        for (stream, rest) in self.exit.iter_mut().flat_map(ExitLines::rest) {
            if !rest.is_empty()
                && let Err(error) = output.write(stream, &rest).await
            {
                return OutputEnd::Output(error);
            }
        }
        OutputEnd::Ended(end)
    }
}
