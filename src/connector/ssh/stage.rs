//! Runs one stage over a session.
//!
//! The script is sent while output is read, so neither side can block the other. Output goes through in order, one
//! message at a time: while the reader of our output sleeps, the guest waits.
//!
//! A start has an end: channel, answer and the guest's first word share one limit. That word is the line that names
//! the session, which our command says before it reads the script; or any output, since servers exist that do not keep
//! the two streams apart; or an exit status. Afterwards silence is a script's right and only the keep-alive, the stop
//! and the job's own timeout end it. That the server took the command, or the script's bytes, says nothing of a guest.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::time::{Instant, timeout_at};

use super::SshSettings;
use super::remote::{self, Marked, Sift};
use super::session::Session;
use super::stop;
use crate::core::time::Pretty;
use crate::port::connector::{ConnectError, Output, Stage, StageEnd, Stop, Stream};

/// How much of the script is read at a time.
const CHUNK: usize = 64 << 10;

/// A command and all that is needed to run and to stop it.
pub(super) struct Work {
    marked: Marked,
    /// What it reads; nothing at all for a command.
    input: Option<File>,
    grace: Duration,
    start_within: Duration,
    linger: Duration,
}

impl Work {
    pub(super) fn script(stage: Stage, settings: &SshSettings) -> Result<Self, ConnectError> {
        let marked = Marked::interpreter(&stage.shell)?;
        let Stage { script, start_within, stop_grace: grace, .. } = stage;
        Ok(Self { marked, input: Some(script), grace, start_within, linger: settings.linger })
    }

    pub(super) fn command(
        command: &str,
        grace: Duration,
        settings: &SshSettings,
    ) -> Result<Self, ConnectError> {
        let marked = Marked::command(command)?;
        let start_within = settings.connect_timeout;
        Ok(Self { marked, input: None, grace, start_within, linger: settings.linger })
    }
}

/// Why reading a stage's output came to an end.
enum Over {
    Ended(StageEnd),
    /// The session or its connection broke.
    Lost(String),
    /// Not a word of the guest in time.
    NotStarted,
    /// Our own output failed.
    Output(io::Error),
}

/// Runs it to its end, or until `stop` resolves.
pub(super) async fn run(
    session: &Session<'_>,
    work: Work,
    output: &mut dyn Output,
    stop: &mut Stop<'_>,
) -> Result<StageEnd, ConnectError> {
    let start_by = Instant::now() + work.start_within;
    let opening = timeout_at(start_by, session.channel());
    let channel = tokio::select! {
        biased;
        () = &mut *stop => return Ok(StageEnd::Stopped),
        channel = opening => channel.map_err(|_| session.timed_out(work.start_within))??,
    };
    channel.exec(true, work.marked.command.as_str()).await.map_err(|_| session.lost(false))?;
    let (from, to) = channel.split();
    let mut guest =
        Guest { from, sift: Sift::new(&work.marked.mark), start_by: Some(start_by), closed: false };
    let sent = Cell::new(false);
    match drive(session, &mut guest, &to, &work, (output, stop, &sent)).await {
        Outcome::Over(Over::Ended(end)) => {
            // What a background process still holds open is closed with it.
            let _sent = to.close().await;
            Ok(end)
        }
        Outcome::Over(Over::Lost(problem)) => Err(session.lost_because(problem, sent.get())),
        Outcome::Over(Over::NotStarted) => {
            // It has no session to stop. Should its shell come round later, its first word meets a closed pipe and
            // ends it: the script is not read.
            let within = Pretty(work.start_within);
            Err(session
                .lost_because(format!("the instance did not start the stage within {within}"), sent.get()))
        }
        Outcome::Over(Over::Output(error)) => {
            stop::stop(session, &mut guest, &to, work.grace).await?;
            Err(ConnectError::Local { what: format!("cannot pass on the output of the stage: {error}") })
        }
        Outcome::Script(error) => {
            stop::stop(session, &mut guest, &to, work.grace).await?;
            Err(ConnectError::Local { what: format!("cannot read the script: {error}") })
        }
        Outcome::Stop => {
            stop::stop(session, &mut guest, &to, work.grace).await.map_err(|error| match error {
                ConnectError::Lost { at, problem, .. } => {
                    ConnectError::Lost { at, problem, sent: sent.get() }
                }
                other => other,
            })
        }
    }
}

enum Outcome {
    Over(Over),
    /// The script could not be read to its end.
    Script(io::Error),
    Stop,
}

type Ends<'a, 'b> = (&'a mut dyn Output, &'a mut Stop<'b>, &'a Cell<bool>);

async fn drive(
    session: &Session<'_>,
    guest: &mut Guest,
    to: &ChannelWriteHalf<Msg>,
    work: &Work,
    (output, stop, sent): Ends<'_, '_>,
) -> Outcome {
    let receiving = guest.receive(session, output, work);
    let sending = send(to, work.input.as_ref(), sent);
    tokio::pin!(receiving, sending);
    let mut sending_over = false;
    loop {
        tokio::select! {
            biased;
            () = &mut *stop => return Outcome::Stop,
            over = &mut receiving => return Outcome::Over(over),
            result = &mut sending, if !sending_over => match result {
                Ok(()) => sending_over = true,
                Err(error) => return Outcome::Script(error),
            },
        }
    }
}

/// Sends the script, then the end of input. A guest that does not want it all is no error.
async fn send(to: &ChannelWriteHalf<Msg>, input: Option<&File>, sent: &Cell<bool>) -> io::Result<()> {
    let Some(mut input) = input else {
        let _gone = to.eof().await;
        return Ok(());
    };
    // The first byte travels alone: when it could be sent, `sent` is true, and not a byte earlier or later.
    let mut size = 1;
    loop {
        let mut chunk = Vec::with_capacity(size);
        input.by_ref().take(size as u64).read_to_end(&mut chunk)?;
        if chunk.is_empty() {
            let _gone = to.eof().await;
            return Ok(());
        }
        if to.data_bytes(chunk).await.is_err() {
            return Ok(());
        }
        sent.set(true);
        size = CHUNK;
    }
}

/// The guest's side of a stage.
pub(super) struct Guest {
    from: ChannelReadHalf,
    pub(super) sift: Sift,
    /// Until when the guest must have said its first word; `None` when it has.
    start_by: Option<Instant>,
    closed: bool,
}

impl Guest {
    /// Waits for the next message and throws it away; false when there will be none.
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

    async fn receive(&mut self, session: &Session<'_>, output: &mut dyn Output, work: &Work) -> Over {
        let mut ended_output = false;
        let mut end: Option<StageEnd> = None;
        loop {
            let message = match (&end, self.start_by) {
                (Some(_), _) => tokio::time::timeout(work.linger, self.from.wait()).await,
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
                    written = output.write(Stream::Stdout, &data).await;
                }
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => {
                    let passed = self.sift.feed(&data);
                    if self.sift.session().is_some() || !passed.is_empty() {
                        self.start_by = None;
                    }
                    if !passed.is_empty() {
                        written = output.write(Stream::Stderr, &passed).await;
                    }
                }
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    end.get_or_insert(StageEnd::Exited(exit_status));
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    end.get_or_insert_with(|| remote::signalled(&signal_name));
                }
                Some(ChannelMsg::Failure) if self.start_by.is_some() => {
                    return Over::Lost("the instance runs no commands for this user".to_owned());
                }
                Some(ChannelMsg::Eof) => ended_output = true,
                Some(ChannelMsg::Close) => (self.closed, ended_output) = (true, true),
                None => self.closed = true,
                Some(_) => {}
            }
            if let Err(error) = written {
                return Over::Output(error);
            }
            match end.take() {
                // Data may follow the status: only the end of both streams ends the stage.
                Some(end) if ended_output => return self.finish(output, end).await,
                None if self.closed && !session.is_closed() => {
                    return Over::Lost("the instance ended the stage without an exit status".to_owned());
                }
                _ if self.closed => return Over::Lost(session.ended()),
                unfinished => end = unfinished,
            }
        }
    }

    async fn finish(&mut self, output: &mut dyn Output, end: StageEnd) -> Over {
        let begun = self.sift.has_begun();
        let rest = self.sift.rest();
        if !rest.is_empty()
            && let Err(error) = output.write(Stream::Stderr, &rest).await
        {
            return Over::Output(error);
        }
        if !begun {
            // The guest, or somebody in it, ended the session before the shell was there: no script is to blame.
            let how = remote::ending(&end);
            return Over::Lost(format!("the instance ended the session with {how} before the script began"));
        }
        Over::Ended(end)
    }
}
