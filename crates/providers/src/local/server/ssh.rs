//! The embedded SSH server.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fs_err as fs;
use greenroom_ssh::server::admission::LOGIN_WITHIN;
use greenroom_ssh::server::peer::{self, Machine, Peer};
use russh::keys::{PrivateKey, PublicKey};
use russh::server::Config;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::AbortHandle;

use super::guest::Guest;
use crate::supervisor;

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

/// A connection that is served in the background.
pub(super) struct Served {
    is_in: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Served {
    pub(super) fn is_without_login(&self) -> bool {
        !self.is_in.load(Ordering::Relaxed) && !self.task.is_finished()
    }

    pub(super) fn close(&self) {
        self.task.abort();
    }
}

/// Serves one connection in the background.
pub(super) fn talk(guest: &Arc<Guest>, config: &Arc<Config>, key: &PublicKey, socket: TcpStream) -> Served {
    let is_in = Arc::new(AtomicBool::new(false));
    let visitor = Visitor { guest: Arc::clone(guest), is_in: Arc::clone(&is_in) };
    let peer = Peer::new(Arc::new(visitor), key.clone());
    let (config, known) = (Arc::clone(config), Arc::clone(&is_in));
    let task = tokio::spawn(async move {
        drop(socket.set_nodelay(true));
        let talking = async {
            // How a connection ends does not matter; `session` waits for the programs that ran on it.
            if let Ok(session) = russh::server::run_stream(config, socket, peer).await {
                drop(session.await);
            }
        };
        tokio::pin!(talking);
        if tokio::time::timeout(LOGIN_WITHIN, &mut talking).await.is_err() && known.load(Ordering::Relaxed) {
            talking.await;
        }
    });
    Served { is_in, task: task.abort_handle() }
}

/// The guest, as one connection sees it.
struct Visitor {
    guest: Arc<Guest>,
    is_in: Arc<AtomicBool>,
}

impl Machine for Visitor {
    fn user(&self) -> &str {
        &self.guest.user
    }

    fn shell(&self) -> Command {
        self.guest.command("/bin/sh")
    }

    fn spool(&self) -> Option<&Path> {
        Some(&self.guest.dir.path)
    }

    fn logged_in(&self) {
        self.is_in.store(true, Ordering::Relaxed);
    }

    fn started(&self, pid: Option<u32>) {
        self.guest.started(pid);
    }

    fn note(text: &str) {
        supervisor::note(text);
    }
}
