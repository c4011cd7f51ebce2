//! One authenticated connection to an instance.

use std::rc::Rc;
use std::time::Duration;

use greenroom_ports::connector::{ConnectError, StageEnd, Step};
use greenroom_ports::dialect::GuestDialect;
use russh::client::{Handle, Msg};
use russh::{Channel, ChannelMsg, Disconnect, Error};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::client::{CLOSED, Client, Notes};
use super::dial::Wire;
use super::hop::{Hop, ReachedHost, Route, login_error};
use super::progress::Progress;
use super::remote;

/// Limit of a disconnect.
const DISCONNECT_WITHIN: Duration = Duration::from_millis(500);
/// Limit for a server to show that the connection is not at fault.
const PING_WITHIN: Duration = Duration::from_secs(2);
/// Bytes that are kept of the output of [`Session::brief`].
const BRIEF_OUTPUT: usize = 2048;
const NO_SESSION: &str = "the instance refuses to open a session";

/// True if the instance refused a session on an open connection. Servers count an ended session for a moment longer
/// (`MaxSessions`).
pub(super) fn is_refusal(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Lost { problem, .. } if problem == NO_SESSION)
}

/// A connection whose host key was the recorded one and whose login succeeded.
pub(super) struct Session<'a> {
    way: Rc<Route<'a>>,
    handle: Handle<Client>,
    notes: Notes,
    at: String,
    /// A signal for the refusal of a session by the instance.
    refused: Notify,
    /// The jump host's session, which carries this one.
    _carrier: Option<Handle<Client>>,
    // Last, so that russh's task has its channels closed before its socket.
    _wire: Wire,
}

impl<'a> Session<'a> {
    /// Connects, verifies and logs in, all within `within`.
    pub(super) async fn open(way: Rc<Route<'a>>, within: Duration) -> Result<Self, ConnectError> {
        let progress = Progress::default();
        match timeout(within, Box::pin(Self::open_unlimited(way, &progress))).await {
            Ok(result) => result,
            Err(_) => Err(progress.timed_out(within)),
        }
    }

    /// A second connection to the same instance.
    pub(super) async fn another(&self, within: Duration) -> Result<Self, ConnectError> {
        Self::open(Rc::clone(&self.way), within).await
    }

    async fn open_unlimited(way: Rc<Route<'a>>, progress: &Progress) -> Result<Self, ConnectError> {
        let reached = way.reach(progress).await?;
        let ReachedHost { handle, notes, at, carrier, wire } = reached;
        let mut session =
            Self { way, handle, notes, at, refused: Notify::new(), _carrier: carrier, _wire: wire };
        let Hop { user, credential, .. } = &session.way.host;
        match credential.log_in(&mut session.handle, user).await {
            Ok(()) => Ok(session),
            Err(problem) => Err(login_error(problem, &session.at, user, &session.notes)),
        }
    }

    /// The instance's address, for messages.
    pub(super) fn at(&self) -> &str {
        &self.at
    }

    /// The dialect of the instance.
    pub(super) fn dialect(&self) -> &'static dyn GuestDialect {
        self.way.dialect
    }

    /// The error of a lost connection. `sent`: whether any part of the script was sent.
    pub(super) fn lost(&self, sent: bool) -> ConnectError {
        self.lost_because(self.ended(), sent)
    }

    /// Returns why the connection ended, for messages.
    pub(super) fn ended(&self) -> String {
        match self.notes.ended() {
            // Only the process of the forward saw which one.
            ended if ended == CLOSED && self.way.forward.is_some() => {
                "the API server, its way to the pod or the pod closed the connection".to_owned()
            }
            ended => ended,
        }
    }

    pub(super) fn lost_because(&self, problem: String, sent: bool) -> ConnectError {
        ConnectError::Lost { at: self.at.clone(), problem, sent }
    }

    /// The error of a guest that ended a stage before its first word.
    pub(super) fn not_begun(&self, why: String) -> ConnectError {
        ConnectError::NotBegun { at: self.at.clone(), why }
    }

    /// The error of a guest that did not begin in time. A server that does not answer a ping either says nothing about
    /// the guest: the connection is lost.
    pub(super) async fn not_started(&self, why: String, sent: bool) -> ConnectError {
        match timeout(PING_WITHIN, self.ping()).await {
            Ok(Ok(())) => self.not_begun(why),
            Ok(Err(_)) | Err(_) => self.lost_because(why, sent),
        }
    }

    pub(super) fn timed_out(&self, waited: Duration) -> ConnectError {
        ConnectError::timed_out_in(Step::Shell, &self.at, waited)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Opens a channel for one command. Waits for as long as the instance takes.
    pub(super) async fn channel(&self) -> Result<Channel<Msg>, ConnectError> {
        self.handle.channel_open_session().await.map_err(|error| match error {
            Error::ChannelOpenFailure(_) => {
                self.refused.notify_waiters();
                self.lost_because(NO_SESSION.to_owned(), false)
            }
            _ => self.lost(false),
        })
    }

    /// Resolves when the instance refuses a session: it allows only a few (`MaxSessions`).
    pub(super) async fn refuses(&self) {
        self.refused.notified().await;
    }

    /// Runs a short internal command and returns the beginning of its output. Waits for as long as it takes.
    pub(super) async fn brief(&self, command: &str) -> Result<(StageEnd, Vec<u8>), ConnectError> {
        let mut channel = self.channel().await?;
        channel.exec(true, command).await.map_err(|_| self.lost(false))?;
        let _sent = channel.eof().await;
        let mut end = None;
        let mut output = Vec::new();
        while let Some(message) = channel.wait().await {
            match message {
                ChannelMsg::Data { data } | ChannelMsg::ExtendedData { data, ext: 1 } => {
                    let room = BRIEF_OUTPUT.saturating_sub(output.len());
                    output.extend_from_slice(&data[..data.len().min(room)]);
                }
                ChannelMsg::ExitStatus { exit_status } => end = end.or(Some(StageEnd::Exited(exit_status))),
                ChannelMsg::ExitSignal { signal_name, .. } => {
                    end = end.or(Some(remote::signalled(&signal_name)));
                }
                ChannelMsg::Failure => {
                    return Err(self
                        .lost_because("the instance does not run commands for this user".to_owned(), false));
                }
                ChannelMsg::Close => break,
                _ => {}
            }
        }
        match end {
            Some(end) => Ok((end, output)),
            None if self.is_closed() => Err(self.lost(false)),
            None => {
                Err(self
                    .lost_because("the instance ended a command without an exit status".to_owned(), false))
            }
        }
    }

    /// Pings the SSH server. A reply does not show that the guest can start a process.
    pub(super) async fn ping(&self) -> Result<(), ConnectError> {
        // A ping on a lost connection succeeds too; only afterwards is the loss known.
        let answered = self.handle.send_ping().await;
        if answered.is_err() || self.is_closed() { Err(self.lost(false)) } else { Ok(()) }
    }

    /// Resolves when the connection has ended.
    pub(super) async fn closed(&self) {
        while !self.is_closed() && !self.notes.has_ended() {
            self.notes.ended_or_interval().await;
        }
    }

    /// Disconnects and ends the connection.
    pub(super) async fn close(self) {
        let disconnecting = async {
            if self.handle.disconnect(Disconnect::ByApplication, "", "").await.is_ok() {
                let _ended = self.handle.await;
            }
        };
        let _in_time = timeout(DISCONNECT_WITHIN, disconnecting).await;
    }
}
