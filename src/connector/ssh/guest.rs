//! Output and end of a stage, as the guest sends them.
//!
//! The start is limited: the channel, the server's reply and the guest's first message share one limit. That message is
//! the line with the session, which the command prints before it reads the script; or any output, since some servers do
//! not keep the two streams apart; or an exit status.
//!
//! Afterwards a script may be silent: only the keep-alive, the stop and the job's timeout end it. That the server
//! accepted the command or the script's bytes does not show that the guest works.

use std::io;
use std::time::Duration;

use russh::{ChannelMsg, ChannelReadHalf};
use tokio::time::{Instant, timeout_at};

use super::proof::ExitLines;
use super::remote;
use super::session::Session;
use super::sift::Sift;
use super::stop_handle::StopHandle;
use crate::port::connector::{ConnectError, Output, StageEnd, Stream};

/// Why reading a stage's output ended.
pub(super) enum Over {
    Ended(StageEnd),
    /// The session or its connection broke.
    Lost(String),
    /// The guest ended the session before its first word.
    NotBegun(String),
    /// The guest sent no message in time.
    NotStarted,
    /// Forwarding the output failed.
    Output(io::Error),
}

/// From a guest's first output to the line with its session: earlier output comes from a profile, and the line follows
/// soon.
const AFTER_NOISE: Duration = Duration::from_secs(1);
/// Bytes that a guest may print before its script.
const NOISE: usize = 16 << 10;

const NO_COMMANDS: &str = "the instance does not run commands for this user";
const NO_STATUS: &str = "the instance ended the stage without an exit status";

/// The guest, or a user in it, ended the session before the shell started, so the script is not the cause.
fn too_early(end: &StageEnd) -> String {
    format!("the session ended with {end} before the script began")
}

/// The guest's output before its script was sent, in order.
#[derive(Debug, Default)]
pub(super) struct Noise {
    pub(super) output: Vec<(Stream, Vec<u8>)>,
    size: usize,
}

impl Noise {
    fn keep(&mut self, stream: Stream, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.size += bytes.len();
            self.output.push((stream, bytes.to_vec()));
        }
    }

    fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// True if this is more than a profile prints; the rest is not waited for.
    pub(super) fn is_full(&self) -> bool {
        self.size >= NOISE
    }
}

/// The guest's side of a stage.
pub(super) struct Guest {
    from: ChannelReadHalf,
    pub(super) sift: Sift<StopHandle>,
    /// The status that a shell in a container prints when it exits.
    exit: Option<ExitLines>,
    /// Deadline of the guest's first message; `None` once it has arrived.
    start_by: Option<Instant>,
    closed: bool,
}

impl Guest {
    /// Reads a channel on which a command was requested. `start_by`: deadline of its first message.
    pub(super) fn new(from: ChannelReadHalf, mark: &str, start_by: Instant) -> Self {
        Self { from, sift: Sift::new(mark), exit: None, start_by: Some(start_by), closed: false }
    }

    /// Ends the stage when these lines have come, before the command ends.
    pub(super) fn ends_with(&mut self, mark: &str) {
        self.exit = Some(ExitLines::new(mark));
    }

    /// Waits for the line with the session, before anything is sent to the guest. Keeps the output before that line in
    /// `noise`. `within`: the limit of the start, for the message.
    pub(super) async fn start(
        &mut self,
        session: &Session<'_>,
        within: Duration,
        noise: &mut Noise,
    ) -> Result<(), ConnectError> {
        let not_begun = |why| Err(session.not_begun(why));
        let mut until = self.start_by.unwrap_or_else(Instant::now);
        loop {
            let Ok(message) = timeout_at(until, self.from.wait()).await else {
                // A server that does not keep the streams apart hides the line in its output.
                self.start_by = None;
                if noise.is_empty() {
                    return Err(session.not_started(within, false).await);
                }
                return Ok(());
            };
            let was_quiet = noise.is_empty();
            match message {
                Some(ChannelMsg::Data { data }) => noise.keep(Stream::Stdout, &data),
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => {
                    noise.keep(Stream::Stderr, &self.sift.feed(&data));
                }
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    return not_begun(too_early(&StageEnd::Exited(exit_status)));
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    return not_begun(too_early(&remote::signalled(&signal_name)));
                }
                Some(ChannelMsg::Failure) => return not_begun(NO_COMMANDS.to_owned()),
                Some(ChannelMsg::Close) | None => {
                    self.closed = true;
                    if session.is_closed() {
                        return Err(session.lost(false));
                    }
                    return not_begun(NO_STATUS.to_owned());
                }
                Some(_) => {}
            }
            if self.sift.has_begun() || noise.is_full() {
                self.start_by = None;
                return Ok(());
            }
            if was_quiet && !noise.is_empty() {
                until = until.min(Instant::now() + AFTER_NOISE);
            }
        }
    }

    /// Keeps the output of a standby shell; returns when the shell is unusable. A shell that prints too much is not
    /// read until its stage arrives, which stalls only its own connection.
    pub(super) async fn until_unusable(&mut self, noise: &mut Noise) {
        while !self.closed {
            if noise.is_full() {
                std::future::pending::<()>().await;
            }
            match self.from.wait().await {
                Some(ChannelMsg::Data { data }) => noise.keep(Stream::Stdout, &data),
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => {
                    noise.keep(Stream::Stderr, &self.sift.feed(&data));
                }
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
            Some(ChannelMsg::ExtendedData { data, ext: 1 }) => drop(self.sift.feed(&data)),
            Some(ChannelMsg::Close) | None => self.closed = true,
            Some(_) => {}
        }
        !self.closed
    }

    /// Forwards output until the stage is over. `linger`: how long data may follow the exit status.
    pub(super) async fn receive(
        &mut self,
        session: &Session<'_>,
        output: &mut dyn Output,
        linger: Duration,
    ) -> Over {
        let mut ended_output = false;
        let mut end: Option<StageEnd> = None;
        loop {
            let message = match (&end, self.start_by) {
                (Some(_), _) => tokio::time::timeout(linger, self.from.wait()).await,
                (None, Some(start_by)) => timeout_at(start_by, self.from.wait()).await,
                (None, None) => Ok(self.from.wait().await),
            };
            let Ok(message) = message else {
                let Some(end) = end else { return Over::NotStarted };
                return self.finish(output, end).await;
            };
            let mut written = Ok(());
            match message {
                Some(ChannelMsg::Data { data }) => {
                    self.start_by = None;
                    written = write(&mut self.exit, output, Stream::Stdout, &data).await;
                }
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => {
                    let passed = self.sift.feed(&data);
                    if self.sift.word().is_some() || !passed.is_empty() {
                        self.start_by = None;
                    }
                    written = write(&mut self.exit, output, Stream::Stderr, &passed).await;
                }
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    end.get_or_insert(StageEnd::Exited(exit_status));
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    end.get_or_insert_with(|| remote::signalled(&signal_name));
                }
                Some(ChannelMsg::Failure) if self.start_by.is_some() => {
                    return Over::NotBegun(NO_COMMANDS.to_owned());
                }
                Some(ChannelMsg::Eof) => ended_output = true,
                Some(ChannelMsg::Close) => (self.closed, ended_output) = (true, true),
                None => self.closed = true,
                Some(_) => {}
            }
            if let Err(error) = written {
                return Over::Output(error);
            }
            if let Some(status) = self.exit.as_ref().and_then(ExitLines::status) {
                return self.finish(output, StageEnd::Exited(status)).await;
            }
            match end.take() {
                // Data may follow the status: only the end of both streams ends the stage.
                Some(end) if ended_output => return self.finish(output, end).await,
                None if self.closed && !session.is_closed() => {
                    let why = NO_STATUS.to_owned();
                    return if self.start_by.is_some() { Over::NotBegun(why) } else { Over::Lost(why) };
                }
                _ if self.closed => return Over::Lost(session.ended()),
                unfinished => end = unfinished,
            }
        }
    }

    async fn finish(&mut self, output: &mut dyn Output, end: StageEnd) -> Over {
        let begun = self.sift.has_begun();
        let mut rest = vec![(Stream::Stderr, self.sift.rest())];
        rest.extend(self.exit.iter_mut().flat_map(ExitLines::rest));
        for (stream, rest) in rest {
            if !rest.is_empty()
                && let Err(error) = output.write(stream, &rest).await
            {
                return Over::Output(error);
            }
        }
        if !begun {
            return Over::NotBegun(too_early(&end));
        }
        Over::Ended(end)
    }
}

/// Forwards what is output, without a shell's last line.
async fn write(
    exit: &mut Option<ExitLines>,
    output: &mut dyn Output,
    stream: Stream,
    bytes: &[u8],
) -> io::Result<()> {
    let passed = match exit {
        Some(exit) => exit.feed(stream, bytes),
        None => bytes.into(),
    };
    if passed.is_empty() { Ok(()) } else { output.write(stream, &passed).await }
}
