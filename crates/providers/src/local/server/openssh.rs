//! Hands each connection to OpenSSH's own server.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fs_err as fs;
use tokio::net::TcpStream;

use super::guest::Guest;
use super::note;
use crate::local::doctor::find_sshd;
use crate::local::processes::COOKIE;

/// An sshd that has accepted its configuration.
#[derive(Debug)]
pub(super) struct Sshd {
    program: PathBuf,
    config: PathBuf,
}

/// Writes the configuration and has sshd check it: mistakes show at boot, not at the first connection.
pub(super) fn prepare(guest: &Guest) -> io::Result<Sshd> {
    let missing =
        || io::Error::other("`server = \"openssh\"`, but sshd is not installed: run `greenroom doctor`");
    let program = find_sshd(guest.spec.sshd.as_deref()).ok_or_else(missing)?;
    let config = guest.dir.file("sshd_config");
    fs::write(&config, text(&guest.dir.path, &guest.user, &guest.spec.cookie)?)?;
    let check = Command::new(&program).arg("-t").arg("-f").arg(&config).stdin(Stdio::null()).output()?;
    if !check.status.success() {
        let stderr = String::from_utf8_lossy(&check.stderr);
        return Err(io::Error::other(format!("{} failed: {}", program.display(), stderr.trim())));
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
fn text(dir: &Path, user: &str, cookie: &str) -> io::Result<String> {
    // In this format, `"` ends a quoted argument and `%` begins a token.
    let path = dir.to_str().filter(|path| !path.contains(['"', '%', '\n', '\\']));
    let plain =
        || io::Error::other(format!("sshd's configuration cannot contain the path {}", dir.display()));
    let path = path.ok_or_else(plain)?;
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
        let text = text(Path::new("/var/lib/a b/x"), "ci", "x-1:77").unwrap();
        assert!(text.contains("HostKey \"/var/lib/a b/x/host_key\"\n"));
        assert!(text.contains("AllowUsers ci\n"));
        assert!(text.contains("\"GREENROOM_LOCAL_INSTANCE=x-1:77\""));
    }

    #[test]
    fn a_path_that_would_be_misread_is_refused() {
        for bad in ["/a\"b", "/a%b", "/a\nPermitRootLogin yes"] {
            assert!(text(Path::new(bad), "ci", "c").is_err(), "{bad}");
        }
    }
}
