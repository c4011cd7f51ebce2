//! A gate between a pool and the emulator: it forwards requests, and holds one of them for a test.
//!
//! The emulator closes each connection after its answer, so each connection is one request. The pool sees what the
//! emulator does to a connection: an answer, or a reset without one.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::operation;

/// The place where a request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The emulator has not received it.
    Request,
    /// The emulator has answered, or dropped the connection; the pool has received nothing.
    Answer,
}

/// The continuation of a held request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The request, or its answer, is forwarded.
    Go,
    /// The gate ends both connections without another byte.
    Drop,
}

#[derive(Debug, Default)]
struct State {
    /// The operation to hold, and where.
    hold: Option<(String, At)>,
    /// True while a request is held.
    held: bool,
    /// The continuation of the held one, once decided.
    then: Option<Then>,
    /// The number of requests so far.
    seen: u64,
    /// True if no more requests are forwarded.
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A gate, which serves until it is dropped.
#[derive(Debug)]
pub struct Gate {
    pub url: String,
    shared: Arc<Shared>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the request, if it is the one to hold, until its release.
    fn pass(&self, operation: &str, at: At) -> Then {
        let mut state = self.lock();
        if !state.hold.as_ref().is_some_and(|(name, place)| name == operation && *place == at) {
            return Then::Go;
        }
        state.hold = None;
        state.held = true;
        self.changed.notify_all();
        loop {
            if let Some(then) = state.then.take() {
                state.held = false;
                return then;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Gate {
    /// A gate in front of the emulator at `lab` (host and port).
    pub fn before(lab: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (shared, lab) = (Arc::new(Shared::default()), lab.to_owned());
        let gate = Self { url, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.lock().closed {
                    return;
                }
                let (shared, lab) = (Arc::clone(&shared), lab.clone());
                // Either end may close at any moment; the tests rely on it.
                std::thread::spawn(move || drop(serve(&shared, &lab, stream)));
            }
        });
        gate
    }

    /// Holds the next request for this operation there.
    pub fn hold(&self, operation: &str, at: At) {
        let mut state = self.shared.lock();
        assert!(!state.held && state.hold.is_none(), "one at a time");
        state.hold = Some((operation.to_owned(), at));
    }

    /// Waits until the request is held; false after `within`.
    #[must_use]
    pub fn wait_held(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut state = self.shared.lock();
        while !state.held {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Releases the held request.
    pub fn release(&self, then: Then) {
        self.shared.lock().then = Some(then);
        self.shared.changed.notify_all();
    }

    /// The number of requests so far.
    pub fn seen(&self) -> u64 {
        self.shared.lock().seen
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        // The listener waits for a connection.
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
    }
}

fn serve(shared: &Shared, lab: &str, mut pool: TcpStream) -> io::Result<()> {
    let request = read_request(&mut pool)?;
    shared.lock().seen += 1;
    let operation = operation::of(&request);
    if shared.pass(&operation, At::Request) == Then::Drop {
        return Ok(());
    }
    let mut there = TcpStream::connect(lab)?;
    there.write_all(&request)?;
    let mut answer = Vec::new();
    let ended = there.read_to_end(&mut answer);
    if shared.pass(&operation, At::Answer) == Then::Drop {
        return Ok(());
    }
    if ended.is_err() || answer.is_empty() {
        // As the emulator did: no answer, and the connection closed.
        return pool.shutdown(Shutdown::Both);
    }
    pool.write_all(&answer)
}

/// One request, head and body.
fn read_request(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut some = [0; 16 * 1024];
    loop {
        let count = from.read(&mut some)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&some[..count]);
        if operation::body(&bytes).is_some_and(|(body, length)| body.len() >= length) {
            return Ok(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http;
    use crate::lab::Taken;

    const LIST: &str = "compute.zones.list";
    const PATH: &str = "/compute/v1/projects/lab-project/zones";
    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn what_is_held_reaches_the_lab_or_does_not_and_is_answered_or_is_not() {
        let lab = Taken::take();
        let gate = Gate::before(lab.host());
        let send = || {
            let host = gate.url.trim_start_matches("http://").to_owned();
            std::thread::spawn(move || http::call(&host, "GET", PATH, None))
        };
        assert_eq!(send().join().expect("no panic").expect("an answer").0, 200);
        for (at, then, reaches, answered) in [
            (At::Request, Then::Drop, 0, false),
            (At::Request, Then::Go, 1, true),
            (At::Answer, Then::Drop, 1, false),
            (At::Answer, Then::Go, 1, true),
        ] {
            let (before, seen) = (lab.requests().len(), gate.seen());
            gate.hold(LIST, at);
            let sent = send();
            assert!(gate.wait_held(SOON));
            gate.release(then);
            assert_eq!(sent.join().expect("no panic").is_ok(), answered, "{at:?} {then:?}");
            assert_eq!((lab.requests().len() - before, gate.seen() - seen), (reaches, 1), "{at:?} {then:?}");
        }
        lab.fault(&serde_json::json!({ "operation": LIST, "mode": "lost" }));
        assert!(send().join().expect("no panic").is_err(), "a lost answer is lost");
        assert_eq!(lab.faults_left(), [Some(0)]);
    }
}
