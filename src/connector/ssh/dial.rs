//! Opens the TCP connection.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::timeout;

use super::hop::Hop;
use super::prompt::Prompt;
use crate::core::endpoint::{Endpoint, place};
use crate::names::look_up;
use crate::port::connector::ConnectError;

/// No descriptor, memory, port, buffer or route is left on the runner host, or its firewall forbids the connection. Not
/// *no route to host*: this may mean that the instance is gone.
const LOCAL: [Errno; 11] = [
    Errno::MFILE,
    Errno::NFILE,
    Errno::NOMEM,
    Errno::NOBUFS,
    Errno::AGAIN,
    Errno::ADDRNOTAVAIL,
    Errno::ADDRINUSE,
    Errno::PERM,
    Errno::ACCESS,
    Errno::NETDOWN,
    Errno::NETUNREACH,
];

/// A second handle to a connection's socket. Dropping it ends the connection, even if russh's task is waiting: that
/// task outlives a dropped future.
#[derive(Debug)]
pub(super) struct Wire {
    socket: OwnedFd,
    /// The process at the other end of the socket, which is killed with the connection.
    _process: Option<Child>,
}

impl Wire {
    pub(super) fn new(socket: OwnedFd, process: Option<Child>) -> Self {
        Self { socket, _process: process }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Fails only if the connection has already ended.
        let _ended = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// Connects to the first address that answers. The connection ends when data stays unsent or unacknowledged for
/// `patience`. `at` names the host in errors.
pub(super) async fn dial(
    hop: &Hop<'_>,
    at: &str,
    patience: Duration,
) -> Result<(Prompt, Wire), ConnectError> {
    let mut failed = io::Error::other("the name has no address");
    for address in look_up(hop.address, hop.port).await.map_err(|e| unreachable(at, &e))? {
        match TcpStream::connect(address).await {
            Ok(stream) => return tune(stream, patience).map_err(|e| unreachable(at, &e)),
            Err(error) => failed = error,
        }
    }
    Err(unreachable(at, &failed))
}

/// Checks that the host, or the jump host before it, accepts a TCP connection. Sends nothing. A port-forward cannot be tried
/// without a process.
pub(super) async fn probe_port(at: &Endpoint, within: Duration) -> Result<(), ConnectError> {
    if at.forward.is_some() {
        return Ok(());
    }
    let (address, port) = match at.jump.as_deref() {
        Some(jump) => (jump.address.as_str(), jump.port),
        None => (at.address.as_str(), at.port),
    };
    let unreachable = |error: io::Error| unreachable(&place(address, port), &error);
    let connecting = async {
        let found = look_up(address, port).await.map_err(unreachable)?;
        TcpStream::connect(&found[..]).await.map(drop).map_err(unreachable)
    };
    let late = |_| ConnectError::timed_out(place(address, port), within);
    timeout(within, connecting).await.map_err(late)?
}

/// A failed connection. Errors that only the runner host can cause say nothing about the instance.
fn unreachable(at: &str, error: &io::Error) -> ConnectError {
    let problem = plain(error);
    if error.raw_os_error().map(Errno::from_raw_os_error).is_some_and(|errno| LOCAL.contains(&errno)) {
        return ConnectError::HostFault { at: at.to_owned(), problem };
    }
    ConnectError::Unreachable { at: at.to_owned(), problem }
}

fn tune(stream: TcpStream, patience: Duration) -> std::io::Result<(Prompt, Wire)> {
    stream.set_nodelay(true)?;
    // Optional: a kernel without this socket option still connects.
    let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    let _optional = sockopt::set_tcp_user_timeout(&stream, patience);
    let stream = stream.into_std()?;
    let wire = Wire::new(stream.try_clone()?.into(), None);
    Ok((Prompt::new(TcpStream::from_std(stream)?), wire))
}

/// The text of an I/O error without its number, in lower case.
pub(super) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_instance_can_cause_counts_against_it() {
        for (errno, local) in [
            (Errno::CONNREFUSED, false),
            (Errno::CONNRESET, false),
            (Errno::TIMEDOUT, false),
            (Errno::HOSTUNREACH, false),
            (Errno::HOSTDOWN, false),
            (Errno::NETUNREACH, true),
            (Errno::NETDOWN, true),
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOMEM, true),
            (Errno::NOBUFS, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::PERM, true),
        ] {
            let error = unreachable("h:22", &io::Error::from_raw_os_error(errno.raw_os_error()));
            assert_eq!(matches!(error, ConnectError::HostFault { .. }), local, "{error}");
        }
        let unknown = unreachable("h:22", &io::Error::other("unknown host"));
        assert!(matches!(unknown, ConnectError::Unreachable { .. }), "{unknown}");
    }

    #[test]
    fn an_os_error_loses_its_number() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(plain(&refused), "connection refused");
    }
}
