//! A registry with faults: a proxy before the one without a password.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::site::Site;

/// The fault with which the proxy treats connections.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Answers this to each request, as often as said; then it passes all on.
    Status(&'static str, u32),
    /// Accepts, and never answers.
    Stall,
    /// Accepts so many connections without an answer; then it passes all on.
    StallFirst(u32),
    /// The proxy passes all on, without a fault.
    None,
}

#[derive(Debug)]
pub struct Proxy {
    /// The name of the registry that the proxy plays, with which the names of its images begin.
    pub registry: String,
    seen: Arc<AtomicU32>,
    /// The first lines of the requests that it passed on.
    passed: Lines,
}

type Lines = Arc<Mutex<Vec<String>>>;

impl Proxy {
    pub fn new(site: &'static Site, fault: Fault) -> Self {
        let (listener, registry) = site.listen();
        let seen = Arc::new(AtomicU32::new(0));
        let passed = Lines::default();
        let proxy = Self { registry, seen: Arc::clone(&seen), passed: Arc::clone(&passed) };
        thread::spawn(move || serve(site, &listener, fault, &seen, &passed));
        proxy
    }

    /// The requests by which clients have fetched a part of the path: `blobs` or `manifests`.
    pub fn fetched(&self, part: &str) -> Vec<String> {
        let passed = self.passed.lock().expect("no thread has panicked");
        let part = format!("/{part}/");
        passed.iter().filter(|line| line.starts_with("GET ") && line.contains(&part)).cloned().collect()
    }

    /// Connections without TLS so far.
    pub fn seen(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }
}

fn serve(site: &'static Site, listener: &TcpListener, fault: Fault, seen: &AtomicU32, passed: &Lines) {
    let mut stalled = Vec::new();
    for client in listener.incoming().flatten() {
        // Podman tries TLS first.
        let mut first = [0];
        if !matches!(fault, Fault::Stall) && (client.peek(&mut first).is_err() || first == [0x16]) {
            continue;
        }
        let count = seen.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::Stall => stalled.push(client),
            Fault::StallFirst(times) if count < times => stalled.push(client),
            Fault::Status(status, times) if count < times => refuse(client, status),
            Fault::Status(..) | Fault::StallFirst(_) | Fault::None => pass(site, client, Arc::clone(passed)),
        }
    }
}

fn refuse(mut client: TcpStream, status: &'static str) {
    thread::spawn(move || {
        let _request = client.read(&mut [0; 4096]);
        let body = format!("{{\"errors\":[{{\"code\":\"UNKNOWN\",\"message\":\"{status}\"}}]}}");
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
        let _told = write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
    });
}

fn pass(site: &'static Site, client: TcpStream, passed: Lines) {
    let server = site.inside(|| TcpStream::connect(("198.18.0.1", 5000))).expect("the registry answers");
    // Requests without a body: each begins with what one call returns.
    let note = move |bytes: &[u8]| {
        let line = String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().to_owned();
        passed.lock().expect("no thread has panicked").push(line);
    };
    copy(client.try_clone().expect("a socket"), server.try_clone().expect("a socket"), note);
    copy(server, client, |_| ());
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut note: impl FnMut(&[u8]) + Send + 'static) {
    thread::spawn(move || {
        let mut part = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut part) {
            note(&part[..count]);
            if to.write_all(&part[..count]).is_err() {
                break;
            }
        }
        let _closed = to.shutdown(std::net::Shutdown::Write);
    });
}
