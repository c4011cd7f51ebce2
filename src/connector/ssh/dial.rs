//! Opens the TCP connection.

use std::net::Shutdown;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::hop::Hop;
use super::prompt::Prompt;
use crate::core::endpoint::{Endpoint, place};
use crate::names::look_up;
use crate::port::connector::ConnectError;

/// A second handle to a connection's socket. Dropping it ends the connection, even if russh's task is waiting: that
/// task outlives a dropped future.
#[derive(Debug)]
pub(super) struct Wire(std::net::TcpStream);

impl Drop for Wire {
    fn drop(&mut self) {
        // Fails only if the connection has already ended.
        let _ended = self.0.shutdown(Shutdown::Both);
    }
}

/// Connects to the first address that answers. The connection ends when data stays unsent or unacknowledged for
/// `patience`. `at` names the host in errors.
pub(super) async fn dial(
    hop: &Hop<'_>,
    at: &str,
    patience: Duration,
) -> Result<(Prompt, Wire), ConnectError> {
    let unreachable = |problem: String| ConnectError::Unreachable { at: at.to_owned(), problem };
    let mut problem = String::new();
    for address in look_up(hop.address, hop.port).await.map_err(|e| unreachable(plain(&e)))? {
        match TcpStream::connect(address).await {
            Ok(stream) => return tune(stream, patience).map_err(|e| unreachable(plain(&e))),
            Err(error) => problem = plain(&error),
        }
    }
    Err(unreachable(problem))
}

/// Checks that the host, or the jump host before it, accepts a TCP connection. Sends nothing.
pub(super) async fn probe_port(at: &Endpoint, within: Duration) -> Result<(), ConnectError> {
    let (address, port) = match at.jump.as_deref() {
        Some(jump) => (jump.address.as_str(), jump.port),
        None => (at.address.as_str(), at.port),
    };
    let unreachable = |error: std::io::Error| ConnectError::Unreachable {
        at: place(address, port),
        problem: plain(&error),
    };
    let connecting = async {
        let found = look_up(address, port).await.map_err(unreachable)?;
        TcpStream::connect(&found[..]).await.map(drop).map_err(unreachable)
    };
    let late = |_| ConnectError::timed_out(place(address, port), within);
    timeout(within, connecting).await.map_err(late)?
}

fn tune(stream: TcpStream, patience: Duration) -> std::io::Result<(Prompt, Wire)> {
    stream.set_nodelay(true)?;
    // Optional: a kernel without this socket option still connects.
    let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    let _optional = sockopt::set_tcp_user_timeout(&stream, patience);
    let stream = stream.into_std()?;
    let wire = Wire(stream.try_clone()?);
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
    fn an_os_error_loses_its_number() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(plain(&refused), "connection refused");
    }
}
