//! The embedded SSH server: one key, one user, commands.
//!
//! Its loop never waits for a program. It refuses terminals, forwarding and file transfer.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fs_err as fs;
use russh::keys::{PrivateKey, PublicKey};
use russh::server::{Auth, Config, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelWriteHalf, MethodKind, MethodSet, Pty, Sig, SshId};
use tokio::net::TcpStream;

use super::guest::Guest;
use super::note;
use super::session::{Back, Running};

pub(super) fn config(guest: &Guest) -> io::Result<Config> {
    let path = guest.dir.file("host_key");
    let key = PrivateKey::from_openssh(fs::read_to_string(&path)?)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    Ok(Config {
        server_id: SshId::Standard("SSH-2.0-greenroom_local".into()),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        auth_rejection_time: Duration::from_secs(1),
        // Every client first tries to log in without credentials.
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![key],
        // A kept connection may be silent for hours; on loopback its end is always reported.
        inactivity_timeout: None,
        nodelay: true,
        ..Config::default()
    })
}

/// The only key that may log in.
pub(super) fn authorized(guest: &Guest) -> io::Result<PublicKey> {
    let path = guest.dir.file("authorized_keys");
    PublicKey::from_openssh(fs::read_to_string(&path)?.trim())
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

/// Serves one connection in the background.
pub(super) fn talk(guest: &Arc<Guest>, config: &Arc<Config>, key: &PublicKey, socket: TcpStream) {
    let peer =
        Peer { guest: Arc::clone(guest), key: key.clone(), opened: HashMap::new(), running: HashMap::new() };
    let config = Arc::clone(config);
    tokio::spawn(async move {
        drop(socket.set_nodelay(true));
        // How a connection ends does not matter; `session` waits for the programs that ran on it.
        if let Ok(session) = russh::server::run_stream(config, socket, peer).await {
            drop(session.await);
        }
    });
}

/// One connection.
struct Peer {
    guest: Arc<Guest>,
    key: PublicKey,
    /// Channels that do not run a program yet.
    opened: HashMap<ChannelId, ChannelWriteHalf<Msg>>,
    running: HashMap<ChannelId, Running>,
}

impl Peer {
    fn authorize(&self, user: &str, key: &PublicKey) -> Auth {
        if user == self.guest.user && key.key_data() == self.key.key_data() {
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
        match Running::start(&self.guest, command, back) {
            Ok(running) => {
                self.running.insert(channel, running);
                session.channel_success(channel)
            }
            Err(error) => {
                note(&format!("cannot start a program: {error}"));
                session.channel_failure(channel)
            }
        }
    }
}

impl Handler for Peer {
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

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: russh::server::ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
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
