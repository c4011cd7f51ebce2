//! The process of one connection.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use greenroom_ssh::server::admission::LOGIN_WITHIN;
use greenroom_ssh::server::peer::{self, Machine, Peer};
use russh::keys::{PrivateKey, PublicKey};
use serde::{Deserialize, Serialize};

use super::account::Account;
use super::note;

/// The data that the first process passes to the process of a connection, through a socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Passed {
    /// The private key of the host, in OpenSSH's format.
    pub(crate) host_key: String,
    pub(crate) authorized_key: String,
    /// The name that logs in.
    pub(crate) user: String,
    pub(crate) account: Account,
    pub(crate) shell: String,
}

/// The process of a connection, as the first process knows it.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    begun: Instant,
    /// The socket on which the process writes a byte when its peer has logged in.
    login: UnixStream,
}

impl Started {
    /// True unless its peer has logged in, or its time is over.
    pub(crate) fn is_without_login(&self) -> bool {
        let silent = self.login.set_nonblocking(true).is_ok()
            && (&self.login).read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        silent && self.begun.elapsed() < LOGIN_WITHIN
    }
}

/// Starts the process of a connection, with the environment of its sessions.
pub(crate) fn start<'a>(
    socket: TcpStream,
    passed: &[u8],
    environment: impl Iterator<Item = &'a (impl AsRef<OsStr> + 'a, impl AsRef<OsStr> + 'a)>,
) -> io::Result<Started> {
    let (theirs, login) = UnixStream::pair()?;
    // A socket holds more than this.
    (&login).write_all(passed)?;
    login.shutdown(Shutdown::Write)?;
    let environment = environment.map(|(name, value)| (name.as_ref(), value.as_ref()));
    let mut command = Command::new("/proc/self/exe");
    command.arg0("greenroom-server").arg("connection").env_clear().envs(environment);
    let child = command.stdin(OwnedFd::from(socket)).stdout(OwnedFd::from(theirs)).spawn()?;
    // The first process waits for all of its children.
    Ok(Started { pid: child.id(), begun: Instant::now(), login })
}

/// Serves the socket on standard input until the connection ends. Its programs live on, as under any SSH server.
pub(crate) fn serve() -> io::Result<()> {
    let first = UnixStream::from(rustix::stdio::stdout().try_clone_to_owned()?);
    let passed: Passed = serde_json::from_reader(&first)?;
    let key = |error: russh::keys::ssh_key::Error| io::Error::other(format!("a key: {error}"));
    let host_key = PrivateKey::from_openssh(&passed.host_key).map_err(key)?;
    let authorized_key = PublicKey::from_openssh(&passed.authorized_key).map_err(key)?;
    let socket = TcpStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        rustix::stdio::dup2_stdin(null.as_fd())?;
        rustix::stdio::dup2_stdout(null.as_fd())?;
    }
    passed.account.become_it()?;
    // Programs of the same user may not read the host key in its memory.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    if std::env::set_current_dir(&passed.account.home).is_err() {
        std::env::set_current_dir("/")?;
    }
    let machine = Pod {
        user: passed.user,
        shell: passed.shell,
        peer: socket
            .peer_addr()
            .map(|peer| format!("{} port {}", peer.ip(), peer.port()))
            .unwrap_or_default(),
        is_in: AtomicBool::new(false),
        first,
    };
    let config = Arc::new(peer::config("SSH-2.0-greenroom_server", host_key));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(talk(Arc::new(machine), config, authorized_key, socket))
}

async fn talk(
    machine: Arc<Pod>,
    config: Arc<russh::server::Config>,
    key: PublicKey,
    socket: TcpStream,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    let socket = tokio::net::TcpStream::from_std(socket)?;
    let peer = Peer::new(Arc::clone(&machine), key);
    let talking = async {
        // How a connection ends does not matter.
        if let Ok(session) = russh::server::run_stream(config, socket, peer).await {
            drop(session.await);
        }
    };
    tokio::pin!(talking);
    if tokio::time::timeout(LOGIN_WITHIN, &mut talking).await.is_err()
        && machine.is_in.load(Ordering::Relaxed)
    {
        talking.await;
    }
    Ok(())
}

/// The pod, as a connection sees it.
struct Pod {
    user: String,
    shell: String,
    /// The address of the peer, for the log.
    peer: String,
    is_in: AtomicBool,
    /// The first process, which closes connections without a login if there are too many.
    first: UnixStream,
}

impl Machine for Pod {
    fn user(&self) -> &str {
        &self.user
    }

    fn shell(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("/proc/self/exe");
        command.arg("session").arg(&self.shell);
        command
    }

    fn spool(&self) -> Option<&Path> {
        None
    }

    fn logged_in(&self) {
        self.is_in.store(true, Ordering::Relaxed);
        // If the first process has ended, the pod is about to.
        let _ended = (&self.first).write_all(b"i");
        note(&format!("Accepted publickey for {} from {}", self.user, self.peer));
    }

    fn started(&self, _pid: Option<u32>) {}

    fn note(text: &str) {
        note(text);
    }
}
