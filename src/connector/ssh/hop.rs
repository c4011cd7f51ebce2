//! Connects to a host, directly, through a jump host or by a port-forward.
//!
//! Each host on the way is verified by its own recorded key before anything else is sent to it. The jump host only
//! forwards bytes: they belong to a second SSH session, which it cannot read.

use std::cell::RefCell;

use russh::client::{self, Handle};
use russh::keys::PublicKey;
use russh::{AlgorithmKind, ChannelOpenFailure, Error};
use tokio::io::{AsyncRead, AsyncWrite};

use super::SshSettings;
use super::accepted::Accepted;
use super::algorithms;
use super::dial::{self, Wire};
use super::forward;
use super::handler::{Client, Notes, explain};
use super::login::{Credential, LoginError};
use crate::core::endpoint::{Forward, place};
use crate::core::text::clean_line;
use crate::core::time::Pretty;
use crate::port::connector::ConnectError;

/// The way to an instance, with its credentials.
pub(super) struct Way<'a> {
    pub(super) host: Hop<'a>,
    /// The jump host, which is reached first.
    pub(super) jump: Option<Hop<'a>>,
    /// The port-forward that leads to the host.
    pub(super) forward: Option<&'a Forward>,
    pub(super) settings: &'a SshSettings,
}

/// One host on the way.
pub(super) struct Hop<'a> {
    pub(super) address: &'a str,
    pub(super) port: u16,
    pub(super) user: &'a str,
    /// As an endpoint has it.
    pub(super) host_key: &'a str,
    pub(super) credential: Credential,
}

/// A verified host that waits for a login.
pub(super) struct Reached {
    pub(super) handle: Handle<Client>,
    pub(super) notes: Notes,
    /// The host's address, for messages.
    pub(super) at: String,
    /// The jump host's session, which carries this one.
    pub(super) carrier: Option<Handle<Client>>,
    pub(super) wire: Wire,
}

/// The transport of a session: a TCP connection, a channel of another session, or a socket to a port-forward.
trait Pipe: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Pipe for T {}

/// An open transport to a host, before the host has sent anything.
struct Path {
    pipe: Box<dyn Pipe>,
    at: String,
    carrier: Option<Handle<Client>>,
    wire: Wire,
}

impl Way<'_> {
    /// Connects to the host and verifies every key on the way. `present` names the host that is being contacted.
    pub(super) async fn reach(&self, present: &RefCell<String>) -> Result<Reached, ConnectError> {
        let Path { pipe, at, carrier, wire } = self.path(present).await?;
        let (handle, notes) = self.shake_hands(&self.host, &at, pipe).await?;
        Ok(Reached { handle, notes, at, carrier, wire })
    }

    /// Connects to the host and returns the key that it presents, without verifying it. Sends nothing else.
    pub(super) async fn presented_key(&self, present: &RefCell<String>) -> Result<PublicKey, ConnectError> {
        // The carrier and the wire are dropped on return.
        let Path { pipe, at, carrier: _carrier, wire: _wire } = self.path(present).await?;
        let notes = Notes::default();
        let handler = Client::new(None, notes.clone(), Pretty(self.settings.silence()).to_string());
        let config = algorithms::config(self.settings, None);
        match client::connect_stream(config, pipe, handler).await {
            Ok(_) => {
                Err(ConnectError::Unreachable { at, problem: "the server presents no host key".to_owned() })
            }
            Err(error) => {
                notes.other_key().ok_or_else(|| ConnectError::Unreachable { at, problem: explain(&error) })
            }
        }
    }

    async fn path(&self, present: &RefCell<String>) -> Result<Path, ConnectError> {
        let patience = self.settings.silence();
        if let Some(to) = self.forward {
            let at = to.place(self.host.port);
            at.clone_into(&mut present.borrow_mut());
            let program = self.settings.forwarder.as_deref();
            let (stream, wire) = forward::open(program, to, self.host.port, &at).await?;
            return Ok(Path { pipe: Box::new(stream), at, carrier: None, wire });
        }
        let Some(jump) = &self.jump else {
            let at = place(self.host.address, self.host.port);
            at.clone_into(&mut present.borrow_mut());
            let (stream, wire) = dial::dial(&self.host, &at, patience).await?;
            return Ok(Path { pipe: Box::new(stream), at, carrier: None, wire });
        };
        let first = format!("jump host {}", place(jump.address, jump.port));
        first.clone_into(&mut present.borrow_mut());
        let (stream, wire) = dial::dial(jump, &first, patience).await?;
        let (mut carrier, notes) = self.shake_hands(jump, &first, stream).await?;
        let logged_in = jump.credential.log_in(&mut carrier, jump.user).await;
        logged_in.map_err(|problem| login_error(problem, &first, jump.user, &notes))?;
        let at = format!("{} (through {first})", place(self.host.address, self.host.port));
        at.clone_into(&mut present.borrow_mut());
        let port = u32::from(self.host.port);
        // Only the jump host's log shows the origin.
        let opened = carrier.channel_open_direct_tcpip(self.host.address, port, "127.0.0.1", 0).await;
        let channel = opened.map_err(|error| forwarding_error(&error, &at, &first, &notes))?;
        Ok(Path { pipe: Box::new(channel.into_stream()), at, carrier: Some(carrier), wire })
    }

    async fn shake_hands(
        &self,
        hop: &Hop<'_>,
        at: &str,
        pipe: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<(Handle<Client>, Notes), ConnectError> {
        let accepted = Accepted::read(hop.host_key, at)?;
        let notes = Notes::default();
        let silence = Pretty(self.settings.silence()).to_string();
        let handler = Client::new(Some(accepted.clone()), notes.clone(), silence);
        let config = algorithms::config(self.settings, Some(&accepted));
        match client::connect_stream(config, pipe, handler).await {
            Ok(handle) => Ok((handle, notes)),
            Err(error) => Err(handshake_failed(at, &accepted, &notes, &error)),
        }
    }
}

pub(super) fn login_error(problem: LoginError, at: &str, user: &str, notes: &Notes) -> ConnectError {
    let at = at.to_owned();
    match problem {
        LoginError::Refused(problem) => ConnectError::Refused { at, user: user.to_owned(), problem },
        LoginError::Gone => ConnectError::Lost { at, problem: notes.ended(), sent: false },
        LoginError::Local(what) => ConnectError::Local { what },
    }
}

fn forwarding_error(error: &Error, at: &str, jump: &str, notes: &Notes) -> ConnectError {
    match error {
        Error::ChannelOpenFailure(reason) => {
            let reason = match reason {
                ChannelOpenFailure::AdministrativelyProhibited => "administratively prohibited",
                ChannelOpenFailure::ConnectFailed => "it cannot connect to that address",
                ChannelOpenFailure::UnknownChannelType => "it does not support forwarding",
                _ => "it lacks resources",
            };
            ConnectError::Unreachable {
                at: at.to_owned(),
                problem: format!("{jump} does not forward the connection ({reason})"),
            }
        }
        _ => ConnectError::Lost { at: jump.to_owned(), problem: notes.ended(), sent: false },
    }
}

fn handshake_failed(at: &str, accepted: &Accepted, notes: &Notes, error: &Error) -> ConnectError {
    let expected = accepted.expected();
    let at = at.to_owned();
    if let Some(found) = notes.presented() {
        return ConnectError::HostKey { at, expected, found };
    }
    match error {
        Error::NoCommonAlgo { kind: AlgorithmKind::Key, theirs, .. } => {
            let found = format!("none {} (the host has {})", accepted.kind(), theirs.join(", "));
            ConnectError::HostKey { at, expected, found: clean_line(found.as_bytes(), 200) }
        }
        error => ConnectError::Unreachable { at, problem: explain(error) },
    }
}
