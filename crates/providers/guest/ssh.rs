//! The SSH server: its key, its command, and whether it listens.

use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{naming, write_file};

/// Greenroom's directory, in memory.
pub(crate) const RUN: &str = "/run/greenroom";

/// Exists as soon as the machine has its identity.
const ITSELF: &str = "/run/greenroom/itself";
/// The socket on which the process that becomes the server waits for its release.
const WAITING: &str = "/run/greenroom/ssh";

const PORT: u16 = 22;
const OPENSSH_KEY: &str = "/etc/ssh/ssh_host_ed25519_key";
const DROPBEAR_KEY: &str = "/etc/dropbear/dropbear_ed25519_host_key";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Openssh,
    Dropbear,
}

impl Server {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "openssh" => Some(Self::Openssh),
            "dropbear" => Some(Self::Dropbear),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Openssh => "openssh",
            Self::Dropbear => "dropbear",
        }
    }

    /// The command that runs the server in the foreground, with its messages on the console.
    fn command(self) -> Command {
        let mut command;
        match self {
            Self::Openssh => {
                command = Command::new("/usr/sbin/sshd");
                command.args(["-D", "-e"]);
            }
            Self::Dropbear => {
                command = Command::new("/usr/sbin/dropbear");
                // No passwords.
                command.args(["-F", "-E", "-s", "-r", DROPBEAR_KEY, "-p", &PORT.to_string()]);
            }
        }
        command.stdin(Stdio::null());
        command
    }

    /// Puts a host key, OpenSSH's format, where the server finds it.
    pub(crate) fn install_host_key(self, pem: &[u8]) -> io::Result<()> {
        match self {
            Self::Openssh => write_file(OPENSSH_KEY, 0o600, pem),
            Self::Dropbear => {
                let given = Path::new(RUN).join("host_key");
                write_file(&given, 0o600, pem)?;
                fs::create_dir_all("/etc/dropbear").map_err(naming("/etc/dropbear"))?;
                let mut convert = Command::new("dropbearconvert");
                convert.args(["openssh", "dropbear"]).arg(&given).arg(DROPBEAR_KEY);
                let converted = quiet(&mut convert);
                fs::remove_file(&given).map_err(naming(given.display()))?;
                converted
            }
        }
    }

    /// Runs what a login runs, with a key that is thrown away, so that it lies in memory when a snapshot is taken.
    pub(crate) fn warm_up(self) -> io::Result<()> {
        let key = Path::new(RUN).join("warm-up");
        let make = match self {
            // The folder is one that sshd insists on; systemd makes it only when the service starts.
            Self::Openssh => {
                "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f KEY && /usr/sbin/sshd -t -h KEY"
            }
            Self::Dropbear => "dropbearkey -t ed25519 -f KEY && /usr/sbin/dropbear -V",
        };
        let script = make.replace("KEY", &key.display().to_string());
        let warmed = quiet(Command::new("/bin/sh").args(["-c", &script]));
        for file in [key.clone(), key.with_extension("pub")] {
            fs::remove_file(file).ok();
        }
        warmed
    }
}

/// Waits until the machine is itself, then becomes the SSH server. Started before a snapshot is taken, so that a clone
/// need not start a process first. Returns only if that cannot be done.
pub(crate) fn become_server(server: Server) -> io::Result<()> {
    fs::create_dir_all(RUN).map_err(naming(RUN))?;
    // Of one that ended while it waited.
    fs::remove_file(WAITING).ok();
    let word = UnixDatagram::bind(WAITING).map_err(naming(WAITING))?;
    // RACE: the mark is written before the datagram is sent: a process that misses the datagram finds the mark.
    if !Path::new(ITSELF).exists() {
        word.recv(&mut []).map_err(naming(WAITING))?;
    }
    Err(naming(server.name())(server.command().exec()))
}

/// Lets the server begin: the machine is itself.
pub(crate) fn release() -> io::Result<()> {
    write_file(ITSELF, 0o600, "")?;
    match UnixDatagram::unbound()?.send_to(&[], WAITING) {
        // Nobody waits yet.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(())
        }
        other => other.map(|_| ()).map_err(naming(WAITING)),
    }
}

/// Runs a command without its output; one that fails is quoted.
pub(crate) fn quiet(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let program = command.get_program().display();
    Err(io::Error::other(format!("{program}: {}: {}", output.status, said.trim())))
}

/// True if a process listens on the SSH port, by the kernel's tables: the server sees no connection.
pub(crate) fn is_listening() -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| fs::read_to_string(table).is_ok_and(|text| lists_listener(&text)))
}

fn lists_listener(table: &str) -> bool {
    let port = format!(":{PORT:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().unwrap_or_default();
        let state = fields.nth(1).unwrap_or_default();
        local.ends_with(&port) && state == "0A"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n";

    #[test]
    fn a_listener_on_the_port_is_seen_and_nothing_else() {
        let one = |local: &str, state: &str| {
            lists_listener(&format!(
                "{HEAD}   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000\n"
            ))
        };
        assert!(one("00000000:0016", "0A"));
        assert!(one("00000000000000000000000000000000:0016", "0A"));
        assert!(!one("00000000:0016", "01"), "a connection");
        assert!(!one("00000000:1F16", "0A"), "another port");
        assert!(!lists_listener(HEAD));
    }
}
