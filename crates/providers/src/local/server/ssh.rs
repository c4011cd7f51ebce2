//! The two SSH servers of an instance: the embedded one, and OpenSSH's, which gets each connection.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fs_err as fs;
use greenroom_ssh::server::admission::LOGIN_WITHIN;
use greenroom_ssh::server::peer::{self, Machine, Peer};
use russh::keys::{PrivateKey, PublicKey, ssh_key};
use russh::server::Config;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::AbortHandle;

use super::Guest;
use crate::local::doctor::find_sshd;
use crate::local::processes::COOKIE;
use crate::supervised::supervisor::{self, note};

/// The reason the SSH server of an instance cannot start.
#[derive(Debug, thiserror::Error)]
pub(super) enum SshServerError {
    #[error("{}: {error}", path.display())]
    Key { path: PathBuf, error: ssh_key::Error },
    #[error("`server = \"openssh\"`, but sshd is not installed: run `greenroom doctor`")]
    NoSshd,
    #[error("{} failed: {message}", program.display())]
    SshdFailed { program: PathBuf, message: String },
    #[error("sshd's configuration cannot contain the path {}", .0.display())]
    SpecialPath(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) fn embedded_config(guest: &Guest) -> Result<Config, SshServerError> {
    let path = guest.dir.file("host_key");
    let key = PrivateKey::from_openssh(fs::read_to_string(&path)?)
        .map_err(|error| SshServerError::Key { path, error })?;
    Ok(peer::config("SSH-2.0-greenroom_local", key))
}

/// The only key that may log in.
pub(super) fn authorized_key(guest: &Guest) -> Result<PublicKey, SshServerError> {
    let path = guest.dir.file("authorized_keys");
    PublicKey::from_openssh(fs::read_to_string(&path)?.trim())
        .map_err(|error| SshServerError::Key { path, error })
}

/// A connection that is served in the background.
pub(super) struct Connection {
    is_in: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Connection {
    pub(super) fn is_without_login(&self) -> bool {
        !self.is_in.load(Ordering::Relaxed) && !self.task.is_finished()
    }

    pub(super) fn close(&self) {
        self.task.abort();
    }
}

/// Serves one connection in the background.
pub(super) fn serve_embedded(
    guest: &Arc<Guest>,
    config: &Arc<Config>,
    key: &PublicKey,
    socket: TcpStream,
) -> Connection {
    let is_in = Arc::new(AtomicBool::new(false));
    let visitor = ConnectedGuest { guest: Arc::clone(guest), is_in: Arc::clone(&is_in) };
    let peer = Peer::new(Arc::new(visitor), key.clone());
    let config = Arc::clone(config);
    let known = Arc::clone(&is_in);
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
    Connection { is_in, task: task.abort_handle() }
}

/// The guest, as one connection sees it.
struct ConnectedGuest {
    guest: Arc<Guest>,
    is_in: Arc<AtomicBool>,
}

impl Machine for ConnectedGuest {
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

/// An sshd that has accepted its configuration.
#[derive(Debug)]
pub(super) struct Sshd {
    program: PathBuf,
    config: PathBuf,
}

/// Writes the configuration and has sshd check it: mistakes show at boot, not at the first connection.
pub(super) fn prepare_sshd(guest: &Guest) -> Result<Sshd, SshServerError> {
    let program = find_sshd(guest.spec.sshd.as_deref()).ok_or(SshServerError::NoSshd)?;
    let config = guest.dir.file("sshd_config");
    fs::write(&config, sshd_config(&guest.dir.path, &guest.user, &guest.spec.cookie)?)?;
    let check =
        process::Command::new(&program).arg("-t").arg("-f").arg(&config).stdin(Stdio::null()).output()?;
    if !check.status.success() {
        let message = String::from_utf8_lossy(&check.stderr).trim().to_owned();
        return Err(SshServerError::SshdFailed { program, message });
    }
    Ok(Sshd { program, config })
}

impl Sshd {
    /// Starts an sshd on a connection, in a session of its own; it ends with the connection.
    pub(super) fn hand_over(&self, guest: &Arc<Guest>, socket: TcpStream) {
        if let Err(error) = self.start(guest, socket) {
            note(&format!("cannot start {}: {error}", self.program.display()));
        }
    }

    fn start(&self, guest: &Arc<Guest>, socket: TcpStream) -> io::Result<()> {
        let socket = socket.into_std()?;
        socket.set_nonblocking(false)?;
        let socket = OwnedFd::from(socket);
        let mut command = guest.command(&self.program);
        command.arg("-i").arg("-f").arg(&self.config).arg("-E").arg(guest.dir.file("console.log"));
        command.stdin(Stdio::from(socket.try_clone()?)).stdout(Stdio::from(socket)).stderr(Stdio::null());
        let mut child = command.spawn()?;
        guest.started(child.id());
        tokio::spawn(async move { drop(child.wait().await) });
        Ok(())
    }
}

/// The configuration; only what differs from OpenSSH's defaults.
fn sshd_config(dir: &Path, user: &str, cookie: &str) -> Result<String, SshServerError> {
    // In this format, `"` ends a quoted argument and `%` begins a token.
    let path = dir.to_str().filter(|path| !path.contains(['"', '%', '\n', '\\']));
    let path = path.ok_or_else(|| SshServerError::SpecialPath(dir.to_owned()))?;
    let mut text = format!(
        "HostKey \"{path}/host_key\"\n\
         AuthorizedKeysFile \"{path}/authorized_keys\"\n\
         AllowUsers {user}\n\
         SetEnv \"HOME={path}/home\" \"{COOKIE}={cookie}\"\n"
    );
    text.push_str(
        "AuthenticationMethods publickey\nPermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\n\
         PidFile none\nPrintMotd no\nUseDNS no\nMaxSessions 64\n\
         AllowTcpForwarding no\nAllowStreamLocalForwarding no\nAllowAgentForwarding no\nX11Forwarding no\n",
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_only_what_is_in_the_directory() {
        let text = sshd_config(Path::new("/var/lib/a b/x"), "ci", "x-1:77").unwrap();
        assert!(text.contains("HostKey \"/var/lib/a b/x/host_key\"\n"));
        assert!(text.contains("AllowUsers ci\n"));
        assert!(text.contains("\"GREENROOM_LOCAL_INSTANCE=x-1:77\""));
    }

    #[test]
    fn a_path_that_would_be_misread_is_refused() {
        for bad in ["/a\"b", "/a%b", "/a\nPermitRootLogin yes"] {
            assert!(sshd_config(Path::new(bad), "ci", "c").is_err(), "{bad}");
        }
    }
}
