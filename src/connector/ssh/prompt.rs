//! A connection that acknowledges at once.
//!
//! sshd sends what follows a login in several small packets, and until a command runs it leaves them to Nagle's
//! algorithm: each waits for our acknowledgement of the one before, which the kernel holds back for 40 ms. That
//! would be half of the time that a new connection takes. The kernel forgets the wish for quick acknowledgements as
//! soon as we send something, so it is said again before each wait, as long as a connection is young.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// From connecting to a running command there are about fifteen waits; an agent's keys or a long banner add some.
const YOUNG: u32 = 64;

/// The stream of a connection.
#[derive(Debug)]
pub(super) struct Prompt {
    stream: TcpStream,
    /// Waits that are still hurried.
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
            // A refinement: a kernel that does not know it still connects.
            let _hint = sockopt::set_tcp_quickack(&self.stream, true);
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
