//! One connection to an SSH server: one key, one user, commands.
//!
//! Its loop never waits for a program. It refuses terminals, forwarding and file transfer. The server of pods
//! (`server/main.rs`) has this file, too.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use russh::keys::{PrivateKey, PublicKey};
use russh::server::{Auth, Config, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelWriteHalf, MethodKind, MethodSet, Pty, Sig, SshId};
use tokio::process::Command;

use super::program::{Back, RunningProgram};

/// Programs and waiting channels of one connection.
const MOST_CHANNELS: usize = 100;

/// The machine that a connection logs in to.
pub trait Machine: Send + Sync + 'static {
    /// The only login name.
    fn user(&self) -> &str;
    /// The shell, in a session of its own.
    fn shell(&self) -> Command;
    /// A folder for long input; without one, it stays in memory.
    fn spool(&self) -> Option<&Path>;
    /// The peer has logged in.
    fn logged_in(&self);
    /// A shell has been started.
    fn started(&self, pid: Option<u32>);
    /// Writes a line of the server's log.
    fn note(text: &str);
}

/// A server's configuration.
pub fn config(id: &'static str, host_key: PrivateKey) -> Config {
    Config {
        server_id: SshId::Standard(id.into()),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        auth_rejection_time: Duration::from_secs(1),
        // Every client first tries to log in without credentials.
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![host_key],
        // A kept connection may be silent for hours.
        inactivity_timeout: None,
        nodelay: true,
        ..Config::default()
    }
}

/// One connection.
pub struct Peer<M> {
    machine: Arc<M>,
    key: PublicKey,
    /// Channels that do not run a program yet.
    opened: HashMap<ChannelId, ChannelWriteHalf<Msg>>,
    running: HashMap<ChannelId, RunningProgram>,
}

impl<M> std::fmt::Debug for Peer<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

impl<M: Machine> Peer<M> {
    pub fn new(machine: Arc<M>, key: PublicKey) -> Self {
        Self { machine, key, opened: HashMap::new(), running: HashMap::new() }
    }

    fn authorize(&self, user: &str, key: &PublicKey) -> Auth {
        if user == self.machine.user() && key.key_data() == self.key.key_data() {
            return Auth::Accept;
        }
        Auth::reject()
    }

    fn start(
        &mut self,
        channel: ChannelId,
        command: Option<&[u8]>,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let Some(writer) = self.opened.remove(&channel) else { return session.channel_failure(channel) };
        let back = Back { channel, writer, handle: session.handle() };
        match RunningProgram::start(&*self.machine, command, back) {
            Ok(running) => {
                self.running.insert(channel, running);
                session.channel_success(channel)
            }
            Err(error) => {
                M::note(&format!("cannot start a program: {error}"));
                session.channel_failure(channel)
            }
        }
    }
}

impl<M: Machine> Handler for Peer<M> {
    type Error = russh::Error;

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        Ok(self.authorize(user, offer.public_key))
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        Ok(self.authorize(user, key.public_key))
    }

    async fn auth_succeeded(&mut self, _session: &mut Session) -> Result<(), Self::Error> {
        self.machine.logged_in();
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: russh::server::ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        // Of a channel that this side closed first, russh does not tell when the peer closes it, too.
        self.running.retain(|_, running| !running.has_ended());
        if self.opened.len() + self.running.len() >= MOST_CHANNELS {
            // Dropping the handle refuses the channel.
            return Ok(());
        }
        let id = channel.id();
        // The reading half is dropped on purpose: the methods below get the input, and never wait. Through the
        // channel's own queue, a program that does not read would stop the whole connection.
        let (_, writer) = channel.split();
        self.opened.insert(id, writer);
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.start(channel, Some(command), session)
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        self.start(channel, None, session)
    }

    async fn data(
        &mut self,
        channel: ChannelId,
        bytes: &[u8],
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        if let Some(running) = self.running.get(&channel) {
            running.input(bytes);
        }
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        if let Some(running) = self.running.get(&channel) {
            running.end_of_input();
        }
        Ok(())
    }

    async fn channel_close(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.opened.remove(&channel);
        self.running.remove(&channel);
        Ok(())
    }

    async fn signal(
        &mut self,
        channel: ChannelId,
        signal: Sig,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        if let Some(running) = self.running.get(&channel) {
            running.signal(&signal);
        }
        Ok(())
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        _name: &str,
        _value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        _name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _single: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }
}
