//! The embedded SSH server.

use std::io;
use std::path::Path;
use std::sync::Arc;

use fs_err as fs;
use russh::keys::{PrivateKey, PublicKey};
use russh::server::Config;
use tokio::net::TcpStream;
use tokio::process::Command;

use super::guest::Guest;
use super::peer::{self, Machine, Peer};

pub(super) fn config(guest: &Guest) -> io::Result<Config> {
    let path = guest.dir.file("host_key");
    let key = PrivateKey::from_openssh(fs::read_to_string(&path)?)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    Ok(peer::config("SSH-2.0-greenroom_local", key))
}

/// The only key that may log in.
pub(super) fn authorized(guest: &Guest) -> io::Result<PublicKey> {
    let path = guest.dir.file("authorized_keys");
    PublicKey::from_openssh(fs::read_to_string(&path)?.trim())
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

/// Serves one connection in the background.
pub(super) fn talk(guest: &Arc<Guest>, config: &Arc<Config>, key: &PublicKey, socket: TcpStream) {
    let peer = Peer::new(Arc::clone(guest), key.clone());
    let config = Arc::clone(config);
    tokio::spawn(async move {
        drop(socket.set_nodelay(true));
        // How a connection ends does not matter; `session` waits for the programs that ran on it.
        if let Ok(session) = russh::server::run_stream(config, socket, peer).await {
            drop(session.await);
        }
    });
}

impl Machine for Guest {
    fn user(&self) -> &str {
        &self.user
    }

    fn shell(&self) -> Command {
        self.command("/bin/sh")
    }

    fn spool(&self) -> Option<&Path> {
        Some(&self.dir.path)
    }

    fn logged_in(&self) {}

    fn started(&self, pid: Option<u32>) {
        Self::started(self, pid);
    }
}
