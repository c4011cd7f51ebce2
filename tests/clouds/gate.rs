//! A gate between a pool and the lab: it lets requests through, and holds one of them where a test says.
//!
//! The lab closes each connection after its answer, so each connection is one request. What the lab does to a
//! connection (an answer, a reset without one) is what the pool sees.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::operation;

/// Where a request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The lab has not seen it.
    Request,
    /// The lab has answered, or dropped the connection; the pool does not know.
    Answer,
}

/// What becomes of a held request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It goes on its way, or its answer does.
    Go,
    /// Both connections end without another byte.
    Drop,
}

#[derive(Debug, Default)]
struct Orders {
    /// The operation to hold, and where.
    hold: Option<(String, At)>,
    /// One is held now.
    held: bool,
    /// What becomes of the held one, once that is said.
    then: Option<Then>,
    /// Requests that have come so far.
    seen: u64,
    /// Nobody is let through any more.
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    orders: Mutex<Orders>,
    changed: Condvar,
}

/// It serves until it is dropped.
#[derive(Debug)]
pub struct Gate {
    pub url: String,
    shared: Arc<Shared>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the caller, if it is meant, until it is told what becomes of it.
    fn pass(&self, operation: &str, at: At) -> Then {
        let mut orders = self.lock();
        if !orders.hold.as_ref().is_some_and(|(name, place)| name == operation && *place == at) {
            return Then::Go;
        }
        orders.hold = None;
        orders.held = true;
        self.changed.notify_all();
        loop {
            if let Some(then) = orders.then.take() {
                orders.held = false;
                return then;
            }
            orders = self.changed.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Gate {
    /// A gate to the lab at `lab` (host and port).
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
                // Either end may go at any moment: that is what it is there for.
                std::thread::spawn(move || drop(serve(&shared, &lab, stream)));
            }
        });
        gate
    }

    /// The next request for this operation is held there.
    pub fn hold(&self, operation: &str, at: At) {
        let mut orders = self.shared.lock();
        assert!(!orders.held && orders.hold.is_none(), "one at a time");
        orders.hold = Some((operation.to_owned(), at));
    }

    /// Waits until the request has come; false if it has not in time.
    #[must_use]
    pub fn wait_held(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut orders = self.shared.lock();
        while !orders.held {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            orders = self.shared.changed.wait_timeout(orders, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// What becomes of the request that is held.
    pub fn release(&self, then: Then) {
        self.shared.lock().then = Some(then);
        self.shared.changed.notify_all();
    }

    /// How many requests have come so far.
    pub fn seen(&self) -> u64 {
        self.shared.lock().seen
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        // It waits for a connection.
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
        // As the lab did: no answer, and the connection gone.
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
        let ask = || {
            let host = gate.url.trim_start_matches("http://").to_owned();
            std::thread::spawn(move || http::call(&host, "GET", PATH, None))
        };
        assert_eq!(ask().join().expect("no panic").expect("an answer").0, 200);
        for (at, then, reaches, answered) in [
            (At::Request, Then::Drop, 0, false),
            (At::Request, Then::Go, 1, true),
            (At::Answer, Then::Drop, 1, false),
            (At::Answer, Then::Go, 1, true),
        ] {
            let (before, seen) = (lab.requests().len(), gate.seen());
            gate.hold(LIST, at);
            let asked = ask();
            assert!(gate.wait_held(SOON));
            gate.release(then);
            assert_eq!(asked.join().expect("no panic").is_ok(), answered, "{at:?} {then:?}");
            assert_eq!((lab.requests().len() - before, gate.seen() - seen), (reaches, 1), "{at:?} {then:?}");
        }
        lab.fault(&serde_json::json!({ "operation": LIST, "mode": "lost" }));
        assert!(ask().join().expect("no panic").is_err(), "a lost answer is lost");
        assert_eq!(lab.faults_left(), [Some(0)]);
    }
}
