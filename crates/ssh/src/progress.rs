//! The progress of a connection: the host, the step, and what the server sent before its SSH greeting.
//!
//! The greeting is the line that begins with `SSH-` (RFC 4253, 4.2). OpenSSH closes a connection before it has greeted while it
//! penalizes the address (`PerSourcePenalties`), or while too many logins are in progress (`MaxStartups`). So the moment of the end
//! tells more than the error.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use greenroom_core::text::clean_line;
use greenroom_ports::connector::{ConnectError, Step};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::dial::{listed, plain};

/// The host that is being contacted, and the step that it is in.
#[derive(Debug, Default)]
pub(super) struct Progress {
    at: RefCell<String>,
    step: Cell<Step>,
    /// The addresses that were tried, each with its error.
    tried: RefCell<Vec<(SocketAddr, Option<String>)>>,
    greeting: RefCell<Greeting>,
}

impl Progress {
    /// The next host on the way.
    pub(super) fn contacts(&self, at: &str) {
        at.clone_into(&mut self.at.borrow_mut());
        self.step.set(Step::Connect);
        self.tried.borrow_mut().clear();
    }

    /// An address is tried, or has failed.
    pub(super) fn tries(&self, address: SocketAddr, error: Option<&io::Error>) {
        let mut tried = self.tried.borrow_mut();
        match error {
            None => tried.push((address, None)),
            Some(error) => {
                if let Some((_, why)) = tried.iter_mut().find(|(known, _)| *known == address) {
                    *why = Some(plain(error));
                }
            }
        }
    }

    /// A connection stands: its greeting is next.
    pub(super) fn connected(&self, greeting: &Greeting) {
        self.greeting.replace(greeting.clone());
        self.step.set(Step::Greeting);
    }

    /// The host key is verified: the login is next.
    pub(super) fn verified(&self) {
        self.step.set(Step::Login);
    }

    /// The error of a connection that was not ready in time.
    pub(super) fn timed_out(&self, waited: Duration) -> ConnectError {
        let step = match self.step.get() {
            Step::Greeting if self.greeting.borrow().has_come() => Step::Exchange,
            step => step,
        };
        let tried = self.tried.borrow();
        let mut at = self.at.borrow().clone();
        if step == Step::Connect && tried.len() > 1 {
            let outcome = |why: &Option<String>| why.clone().unwrap_or_else(|| "no answer".to_owned());
            let each = tried.iter().map(|(address, why)| (*address, outcome(why))).collect();
            at = format!("{at} ({})", listed(each));
        }
        ConnectError::timed_out_in(step, at, waited)
    }
}

/// Bytes that are kept before the greeting. russh reads at most 20 lines of 255 bytes.
const KEPT: usize = 6 << 10;
/// Characters of the first line that are reported.
const REPORTED: usize = 80;

/// The bytes that a server has sent so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Greeting(Arc<Mutex<GreetingBytes>>);

#[derive(Debug, Default)]
struct GreetingBytes {
    before: Vec<u8>,
    greeted: bool,
}

impl Greeting {
    fn heard(&self) -> MutexGuard<'_, GreetingBytes> {
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
