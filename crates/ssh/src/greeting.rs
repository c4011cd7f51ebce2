//! What a server sends before and with its SSH greeting, the line that begins with `SSH-` (RFC 4253, 4.2).
//!
//! OpenSSH closes a connection before it has greeted while it penalizes the address (`PerSourcePenalties`), or while too
//! many logins are in progress (`MaxStartups`). So the moment of the end tells more than the error.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use greenroom_core::text::clean_line;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are kept before the greeting. russh reads at most 20 lines of 255 bytes.
const KEPT: usize = 6 << 10;
/// Characters of the first line that are reported.
const REPORTED: usize = 80;

/// What has been received so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Greeting(Arc<Mutex<Heard>>);

#[derive(Debug, Default)]
struct Heard {
    before: Vec<u8>,
    greeted: bool,
}

impl Greeting {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_come(&self) -> bool {
        self.heard().greeted
    }

    /// The first line that the server sent instead, for messages; `None`: it sent nothing.
    pub(super) fn instead(&self) -> Option<String> {
        let heard = self.heard();
        let line = heard.before.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = clean_line(line, REPORTED);
        (!heard.greeted && !line.is_empty()).then_some(line)
    }

    /// True if the greeting has come with this.
    fn hear(&self, bytes: &[u8]) -> bool {
        let mut heard = self.heard();
        let room = KEPT.saturating_sub(heard.before.len());
        heard.before.extend_from_slice(&bytes[..bytes.len().min(room)]);
        heard.greeted =
            heard.before.starts_with(b"SSH-") || heard.before.windows(5).any(|five| five == b"\nSSH-");
        heard.greeted
    }
}

/// A stream whose beginning is noted.
#[derive(Debug)]
pub(super) struct Greeted<S> {
    stream: S,
    greeting: Greeting,
    listens: bool,
}

impl<S> Greeted<S> {
    pub(super) fn new(stream: S, greeting: Greeting) -> Self {
        Self { stream, greeting, listens: true }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Greeted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        if self.listens && matches!(polled, Poll::Ready(Ok(()))) {
            self.listens = !self.greeting.hear(&into.filled()[before..]);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Greeted<S> {
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
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Reads `parts` one after the other.
    async fn after(parts: &[&[u8]]) -> (bool, Option<String>) {
        let greeting = Greeting::default();
        for part in parts {
            let mut stream = Greeted::new(*part, greeting.clone());
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
        (greeting.has_come(), greeting.instead())
    }

    #[tokio::test]
    async fn a_greeting_begins_a_line_in_whatever_parts_it_comes() {
        for parts in [&[&b"SSH-2.0-x\r\n"[..]][..], &[b"SS", b"H-2.0"], &[b"hello\r\n", b"SSH", b"-2.0-x\n"]]
        {
            assert_eq!(after(parts).await, (true, None), "{parts:?}");
        }
        for (text, line) in [
            ("", None),
            ("Not allowed at this time\r\n", Some("Not allowed at this time")),
            ("an SSH-2.0 server? no\nmore", Some("an SSH-2.0 server? no")),
            ("\r\n\r\n", None),
        ] {
            assert_eq!(after(&[text.as_bytes()]).await, (false, line.map(str::to_owned)), "{text:?}");
        }
        let endless = vec![b'x'; 4 * KEPT];
        assert_eq!(after(&[&endless]).await.1.map(|line| line.chars().count()), Some(REPORTED));
    }
}
