//! Connects to a host: directly, through a jump host or by a port-forward.
//!
//! Each host on the way is verified by its own recorded key before anything else is sent to it. The jump host only
//! forwards bytes: they belong to a second SSH session, which it cannot read.
//!
//! A port-forward of a cluster's API server reaches a pod, as OpenSSH's `ProxyCommand` would. Only `greenroom-backends` has the
//! libraries that this needs. So a process of that program makes the forward, and the SSH session runs over a pair of sockets to
//! it. The process ends with the session, and with this process.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use greenroom_core::endpoint::{Forward, place};
use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use greenroom_ports::connector::ConnectError;
use greenroom_ports::dialect::GuestDialect;
use greenroom_ports::forward::{COMMAND, LONGEST, OPEN, Refusal, Request};
use greenroom_system::process::allowed_variables;
use russh::client::{self, Handle};
use russh::keys::PublicKey;
use russh::{AlgorithmKind, ChannelOpenFailure, Error};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::SshSettings;
use super::accepted::Accepted;
use super::client::{CLOSED, Client, Notes, client_config, explain};
use super::dial::{self, Wire, plain};
use super::login::{Credential, LoginError};
use super::progress::{Greeted, Greeting, Progress};

/// The usual reasons of a server that does not greet.
const TURNED_AWAY: &str = "it penalizes this address (`PerSourcePenalties`), has too many logins in progress \
                           (`MaxStartups`), or is starting";

/// The way to an instance, with its credentials.
pub(super) struct Route<'a> {
    pub(super) host: Hop<'a>,
    /// The jump host, which is reached first.
    pub(super) jump: Option<Hop<'a>>,
    /// The port-forward that leads to the host.
    pub(super) forward: Option<&'a Forward>,
    /// The dialect of the host.
    pub(super) dialect: &'static dyn GuestDialect,
    pub(super) settings: &'a SshSettings,
}

/// One host on the way.
pub(super) struct Hop<'a> {
    pub(super) address: &'a str,
    pub(super) port: u16,
    pub(super) user: &'a str,
    /// The host key, as an endpoint records it.
    pub(super) host_key: &'a str,
    pub(super) credential: Credential,
}

/// A verified host that waits for a login.
pub(super) struct ReachedHost {
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
struct Transport {
    pipe: Box<dyn Pipe>,
    at: String,
    carrier: Option<Handle<Client>>,
    wire: Wire,
}

impl Route<'_> {
    /// Connects to the host and verifies every key on the way.
    pub(super) async fn reach(&self, progress: &Progress) -> Result<ReachedHost, ConnectError> {
        let Transport { pipe, at, carrier, wire } = self.path(progress).await?;
        let (handle, notes) = self.shake_hands(&self.host, &at, pipe, progress).await?;
        Ok(ReachedHost { handle, notes, at, carrier, wire })
    }

    /// Connects to the host and returns the key that it presents, without verifying it. Sends nothing else.
    pub(super) async fn presented_key(&self, progress: &Progress) -> Result<PublicKey, ConnectError> {
        // The carrier and the wire are dropped on return.
        let Transport { pipe, at, carrier: _carrier, wire: _wire } = self.path(progress).await?;
        let greeting = Greeting::default();
        progress.connected(&greeting);
        let pipe = Greeted::new(pipe, greeting.clone());
        let notes = Notes::default();
        let handler = Client::new(None, notes.clone(), Pretty(self.settings.silence()).to_string());
        let config = client_config(self.settings, None);
        match client::connect_stream(config, pipe, handler).await {
            Ok(_) => {
                Err(ConnectError::Unreachable { at, problem: "the server presents no host key".to_owned() })
            }
            Err(error) => {
                notes.other_key().ok_or_else(|| not_greeted(at, &greeting, &error, self.forward.is_some()))
            }
        }
    }

    async fn path(&self, progress: &Progress) -> Result<Transport, ConnectError> {
        let patience = self.settings.silence();
        if let Some(to) = self.forward {
            let at = to.place(self.host.port);
            progress.contacts(&at);
            let program = self.settings.forwarder.as_deref();
            let (stream, wire) = open_forward(program, to, self.host.port, &at).await?;
            return Ok(Transport { pipe: Box::new(stream), at, carrier: None, wire });
        }
        let Some(jump) = &self.jump else {
            let at = place(self.host.address, self.host.port);
            progress.contacts(&at);
            let (stream, wire) = dial::dial(&self.host, &at, patience, progress).await?;
            return Ok(Transport { pipe: Box::new(stream), at, carrier: None, wire });
        };
        let first = format!("jump host {}", place(jump.address, jump.port));
        progress.contacts(&first);
        let (stream, wire) = dial::dial(jump, &first, patience, progress).await?;
        let (mut carrier, notes) = self.shake_hands(jump, &first, stream, progress).await?;
        let logged_in = jump.credential.log_in(&mut carrier, jump.user).await;
        logged_in.map_err(|problem| login_error(problem, &first, jump.user, &notes))?;
        let at = format!("{} (through {first})", place(self.host.address, self.host.port));
        progress.contacts(&at);
        let port = u32::from(self.host.port);
        // Only the jump host's log shows the origin.
        let opened = carrier.channel_open_direct_tcpip(self.host.address, port, "127.0.0.1", 0).await;
        let channel = opened.map_err(|error| forwarding_error(&error, &at, &first, &notes))?;
        Ok(Transport { pipe: Box::new(channel.into_stream()), at, carrier: Some(carrier), wire })
    }

    async fn shake_hands(
        &self,
        hop: &Hop<'_>,
        at: &str,
        pipe: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        progress: &Progress,
    ) -> Result<(Handle<Client>, Notes), ConnectError> {
        let accepted = Accepted::read(hop.host_key, at)?;
        let notes = Notes::default();
        let silence = Pretty(self.settings.silence()).to_string();
        let handler = Client::new(Some(accepted.clone()), notes.clone(), silence);
        let config = client_config(self.settings, Some(&accepted));
        let greeting = Greeting::default();
        progress.connected(&greeting);
        match client::connect_stream(config, Greeted::new(pipe, greeting.clone()), handler).await {
            Ok(handle) => {
                progress.verified();
                Ok((handle, notes))
            }
            Err(error) => Err(self.handshake_failed(at.to_owned(), &accepted, &notes, &error, &greeting)),
        }
    }

    /// The error of a handshake. A host key that is not accepted explains it, whatever the library says.
    fn handshake_failed(
        &self,
        at: String,
        accepted: &Accepted,
        notes: &Notes,
        error: &Error,
        greeting: &Greeting,
    ) -> ConnectError {
        let expected = accepted.expected();
        if let Some(found) = notes.presented() {
            return ConnectError::HostKey { at, expected, found };
        }
        match error {
            Error::NoCommonAlgo { kind: AlgorithmKind::Key, theirs, .. } => {
                let found = format!("none {} (the host has {})", accepted.kind(), theirs.join(", "));
                ConnectError::HostKey { at, expected, found: clean_line(found.as_bytes(), 200) }
            }
            error => not_greeted(at, greeting, error, self.forward.is_some()),
        }
    }
}

/// A failed login, as an error of the port.
pub(super) fn login_error(problem: LoginError, at: &str, user: &str, notes: &Notes) -> ConnectError {
    let at = at.to_owned();
    match problem {
        LoginError::Refused(refusal) => {
            ConnectError::Refused { at, user: user.to_owned(), problem: refusal.to_string() }
        }
        LoginError::Gone => ConnectError::Lost { at, problem: notes.ended(), sent: false },
        LoginError::Credential(error) => error.into(),
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

/// A connection that failed before the host key was verified. `forwarded`: only the process of the port-forward knows who
/// closed it.
fn not_greeted(at: String, greeting: &Greeting, error: &Error, forwarded: bool) -> ConnectError {
    let problem = explain(error);
    if greeting.has_come() {
        return match error {
            Error::IO(_) => {
                ConnectError::Unreachable { at, problem: format!("{problem} during the key exchange") }
            }
            _ => ConnectError::Unreachable { at, problem },
        };
    }
    let cut = matches!(error, Error::IO(_)) || problem == CLOSED;
    match greeting.instead() {
        Some(line) if line.starts_with("HTTP/") => {
            ConnectError::Unreachable { at, problem: format!("the port serves HTTP (`{line}`)") }
        }
        Some(line) if cut && !forwarded => {
            ConnectError::TurnedAway { at, problem: format!("{TURNED_AWAY} (`{line}`)") }
        }
        None if cut && !forwarded => ConnectError::TurnedAway { at, problem: TURNED_AWAY.to_owned() },
        _ => ConnectError::Unreachable { at, problem },
    }
}

/// Maximum length of a reported reason, in characters.
const MAX_REASON: usize = 300;

/// The environment variables that the process inherits: those of the resolver, of a service account, and those that a
/// kubeconfig's own program for credentials needs.
pub(super) const ENVIRONMENT: [&str; 8] = [
    "HOME",
    "HOSTALIASES",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "LOCALDOMAIN",
    "PATH",
    "RES_OPTIONS",
    "TZ",
];

/// Opens a forward to a port of a pod. `at` names it in errors.
async fn open_forward(
    program: Option<&Path>,
    to: &Forward,
    port: u16,
    at: &str,
) -> Result<(UnixStream, Wire), ConnectError> {
    let fault = |problem: String| ConnectError::HostFault { at: at.to_owned(), problem };
    let program = program.ok_or_else(|| fault("no program for port-forwards is set".to_owned()))?;
    let (mut stream, wire) = start_forward(program)
        .map_err(|error| fault(format!("`{}` cannot be started: {}", program.display(), plain(&error))))?;
    let request = serde_json::to_string(&Request { to: to.clone(), port });
    let request = request.map_err(|error| fault(error.to_string()))? + "\n";
    // A process that has died does not answer either.
    let _sent = stream.write_all(request.as_bytes()).await;
    let mut first = [0];
    let read = stream.read(&mut first).await;
    if matches!(read, Ok(1)) && first == [OPEN] {
        return Ok((stream, wire));
    }
    let mut answer = if matches!(read, Ok(1)) { first.to_vec() } else { Vec::new() };
    let _whole = stream.take(LONGEST).read_to_end(&mut answer).await;
    let clean = |reason: &str| clean_line(reason.as_bytes(), MAX_REASON);
    Err(match serde_json::from_slice(&answer) {
        Ok(Refusal::Pod(reason)) => ConnectError::Unreachable { at: at.to_owned(), problem: clean(&reason) },
        Ok(Refusal::Way(reason)) => fault(clean(&reason)),
        Err(_) => fault("the process of the port-forward ended without an answer".to_owned()),
    })
}

fn start_forward(program: &Path) -> io::Result<(UnixStream, Wire)> {
    let (own, other) = std::os::unix::net::UnixStream::pair()?;
    own.set_nonblocking(true)?;
    let wire = OwnedFd::from(own.try_clone()?);
    let child: Child = Command::new(program)
        .arg(COMMAND)
        .env_clear()
        .envs(allowed_variables(ENVIRONMENT))
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(other.try_clone()?)))
        .stdout(Stdio::from(OwnedFd::from(other)))
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok((UnixStream::from_std(own)?, Wire::new(wire, Some(child))))
}
