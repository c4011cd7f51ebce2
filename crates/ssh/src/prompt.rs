//! A connection that acknowledges data immediately.
//!
//! After a login, sshd sends several small packets, and until a command runs it leaves them to Nagle's algorithm: each
//! waits for the acknowledgement of the one before. The kernel delays acknowledgements by 40 ms, which would be half of
//! the time that a new connection takes. It resets the option for quick acknowledgements whenever data is sent, so the
//! option is set again before each wait of a young connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// There are about fifteen waits from connecting to a running command; an agent's keys or a long banner add some.
const YOUNG: u32 = 64;

/// The stream of a connection.
#[derive(Debug)]
pub(super) struct Prompt {
    stream: TcpStream,
    /// Remaining waits before which the option is set.
    left: u32,
}

impl Prompt {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, left: YOUNG }
    }
}

impl AsyncRead for Prompt {
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

impl AsyncWrite for Prompt {
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
