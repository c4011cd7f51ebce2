//! What a guest says of its stage.
//!
//! A start has an end: channel, answer and the guest's first word share one limit. That word is the line that names
//! the session, which our command says before it reads the script; or any output, since servers exist that do not keep
//! the two streams apart; or an exit status. Afterwards silence is a script's right and only the keep-alive, the stop
//! and the job's own timeout end it. That the server took the command, or the script's bytes, says nothing of a guest.

use std::io;
use std::time::Duration;

use russh::{ChannelMsg, ChannelReadHalf};
use tokio::time::{Instant, timeout_at};

use super::remote::{self, Sift};
use super::session::Session;
use crate::port::connector::{Output, StageEnd, Stream};

/// Why reading a stage's output came to an end.
pub(super) enum Over {
    Ended(StageEnd),
    /// The session or its connection broke.
    Lost(String),
    /// Not a word of the guest in time.
    NotStarted,
    /// Our own output failed.
    Output(io::Error),
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
    /// Hears a channel on which our command was asked for. `start_by`: until when its first word must have come.
    pub(super) fn new(from: ChannelReadHalf, mark: &str, start_by: Instant) -> Self {
        Self { from, sift: Sift::new(mark), start_by: Some(start_by), closed: false }
    }

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

    /// Passes output on until the stage is over. `linger`: how long data may follow the exit status.
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
