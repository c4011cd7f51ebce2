//! Opens the TCP connection, which acknowledges data immediately while it is young.
//!
//! After a login, sshd sends several small packets, and until a command runs it leaves them to Nagle's algorithm: each
//! waits for the acknowledgement of the one before. The kernel delays acknowledgements by 40 ms, which would be half of
//! the time that a new connection takes. It resets the option for quick acknowledgements whenever data is sent, so the
//! option is set again before each wait of a young connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use greenroom_core::endpoint::{Endpoint, place};
use greenroom_ports::connector::ConnectError;
use greenroom_system::names::{self, ConnectFailures, look_up};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::timeout;

use super::hop::Hop;
use super::progress::Progress;

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

/// Addresses of a name that an error names at most.
const ADDRESSES_NAMED: usize = 4;

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
    progress: &Progress,
) -> Result<(QuickAck, Wire), ConnectError> {
    let found = look_up(hop.address, hop.port).await.map_err(|e| unreachable(at, &e))?;
    let connecting = names::connect(&found, |address, error| progress.tries(address, error));
    let stream = connecting.await.map_err(|failed| none_accepts(at, &failed))?;
    tune(stream, patience).map_err(|e| unreachable(at, &e))
}

/// Checks that a host without a jump host accepts a TCP connection. Sends nothing. A port-forward cannot be tried without
/// a process.
pub(super) async fn probe_port(at: &Endpoint, within: Duration) -> Result<(), ConnectError> {
    if at.forward.is_some() {
        return Ok(());
    }
    let name = place(&at.address, at.port);
    let progress = Progress::default();
    progress.contacts(&name);
    let connecting = async {
        let found = look_up(&at.address, at.port).await.map_err(|e| unreachable(&name, &e))?;
        let connecting = names::connect(&found, |address, error| progress.tries(address, error));
        connecting.await.map(drop).map_err(|failed| none_accepts(&name, &failed))
    };
    timeout(within, connecting).await.map_err(|_| progress.timed_out(within))?
}

/// A failed connection. Errors that only the runner host can cause say nothing about the instance.
fn unreachable(at: &str, error: &io::Error) -> ConnectError {
    if is_local(error) {
        return ConnectError::HostFault { at: at.to_owned(), problem: plain(error) };
    }
    ConnectError::Unreachable { at: at.to_owned(), problem: plain(error) }
}

/// No address accepts. The runner host is at fault only if each error is its own.
fn none_accepts(at: &str, failed: &ConnectFailures) -> ConnectError {
    let at = at.to_owned();
    let problem = match failed.as_slice() {
        [] => "the name has no address".to_owned(),
        [(_, error)] => plain(error),
        several => listed(several.iter().map(|(address, error)| (*address, plain(error))).collect()),
    };
    if !failed.is_empty() && failed.iter().all(|(_, error)| is_local(error)) {
        return ConnectError::HostFault { at, problem };
    }
    ConnectError::Unreachable { at, problem }
}

/// Several addresses, each with its outcome; many are shortened to the first few.
pub(super) fn listed(each: Vec<(SocketAddr, String)>) -> String {
    let more = each.len().saturating_sub(ADDRESSES_NAMED);
    let named = each.into_iter().take(ADDRESSES_NAMED);
    let mut named: Vec<String> =
        named.map(|(address, outcome)| format!("{}: {outcome}", address.ip())).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join("; ")
}

fn is_local(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw_os_error).is_some_and(|errno| LOCAL.contains(&errno))
}

fn tune(stream: TcpStream, patience: Duration) -> std::io::Result<(QuickAck, Wire)> {
    stream.set_nodelay(true)?;
    // Optional: a kernel without this socket option still connects.
    let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    let _optional = sockopt::set_tcp_user_timeout(&stream, patience);
    let stream = stream.into_std()?;
    let wire = Wire::new(stream.try_clone()?.into(), None);
    Ok((QuickAck::new(TcpStream::from_std(stream)?), wire))
}

/// The text of an I/O error without its number, in lower case.
pub(super) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// There are about fifteen waits from connecting to a running command; an agent's keys or a long banner add some.
const QUICK_WAITS: u32 = 64;

/// The stream of a connection.
#[derive(Debug)]
pub(super) struct QuickAck {
    stream: TcpStream,
    /// Remaining waits before which the option is set.
    left: u32,
}

impl QuickAck {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, left: QUICK_WAITS }
    }
}

impl AsyncRead for QuickAck {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        if polled.is_pending() && self.left > 0 {
            self.left -= 1;
            // Optional: a kernel without this socket option still connects.
            let _optional = sockopt::set_tcp_quickack(&self.stream, true);
        }
        polled
    }
}

impl AsyncWrite for QuickAck {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
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

    /// Addresses 192.0.2.1, 192.0.2.2, …, with these errors.
    fn failed(errors: &[Errno]) -> ConnectFailures {
        let error = |errno: &Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        let each = errors.iter().zip(1..);
        each.map(|(errno, last)| (SocketAddr::from(([192, 0, 2, last], 22)), error(errno))).collect()
    }

    #[test]
    fn each_address_is_reported_and_the_runner_host_is_blamed_only_if_each_error_is_its_own() {
        const REFUSED: Errno = Errno::CONNREFUSED;
        for (errors, local, problem) in [
            (&[][..], false, "the name has no address"),
            (&[REFUSED], false, "connection refused"),
            (
                &[REFUSED, Errno::NETUNREACH],
                false,
                "192.0.2.1: connection refused; 192.0.2.2: network is unreachable",
            ),
            (
                &[Errno::NETUNREACH, REFUSED],
                false,
                "192.0.2.1: network is unreachable; 192.0.2.2: connection refused",
            ),
            (
                &[Errno::NETUNREACH; 2],
                true,
                "192.0.2.1: network is unreachable; 192.0.2.2: network is unreachable",
            ),
            (&[REFUSED; 6], false, "and 2 more"),
        ] {
            let error = none_accepts("h:22", &failed(errors));
            assert_eq!(matches!(error, ConnectError::HostFault { .. }), local, "{error}");
            assert!(error.to_string().ends_with(problem), "{error}");
        }
    }

    #[test]
    fn an_os_error_loses_its_number() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(plain(&refused), "connection refused");
    }
}
