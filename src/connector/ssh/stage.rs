//! Runs one stage over a session.
//!
//! The script is sent while output is read, so neither side can block the other. Output goes through in order, one
//! message at a time: while the reader of our output sleeps, the guest waits.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use russh::ChannelWriteHalf;
use russh::client::Msg;
use tokio::time::{Instant, timeout_at};

use super::SshSettings;
use super::guest::{Guest, Over};
use super::remote::Marked;
use super::session::Session;
use super::stop;
use crate::core::time::Pretty;
use crate::port::connector::{ConnectError, Output, Stage, StageEnd, Stop};

/// How much of the script is read at a time.
const CHUNK: usize = 64 << 10;

/// A command and all that is needed to run and to stop it.
pub(super) struct Work {
    marked: Marked,
    /// What it reads.
    input: Input,
    grace: Duration,
    start_within: Duration,
    linger: Duration,
}

impl Work {
    pub(super) fn script(stage: Stage, settings: &SshSettings) -> Result<Self, ConnectError> {
        let marked = Marked::interpreter(&stage.shell, stage.trace.as_ref())?;
        let Stage { script, start_within, stop_grace: grace, .. } = stage;
        Ok(Self { marked, input: Input::File(script), grace, start_within, linger: settings.linger })
    }

    pub(super) fn command(
        command: &str,
        input: &str,
        grace: Duration,
        settings: &SshSettings,
    ) -> Result<Self, ConnectError> {
        let marked = Marked::command(command)?;
        let start_within = settings.connect_timeout;
        let input = Input::Text(input.as_bytes().into());
        Ok(Self { marked, input, grace, start_within, linger: settings.linger })
    }
}

/// A script, or what a command is given to read.
enum Input {
    File(File),
    Text(Box<[u8]>),
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
    let mut guest = Guest::new(from, &work.marked.mark, start_by);
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
    let receiving = guest.receive(session, output, work.linger);
    let sending = async {
        match &work.input {
            Input::File(file) => send(to, file, sent).await,
            Input::Text(text) => send(to, &text[..], sent).await,
        }
    };
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
async fn send(to: &ChannelWriteHalf<Msg>, mut input: impl Read, sent: &Cell<bool>) -> io::Result<()> {
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
