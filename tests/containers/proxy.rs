//! A registry with faults: a proxy before the one without a password.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::site::Site;

/// What it does with a connection.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Answers this to each request, as often as said; then it passes all on.
    Status(&'static str, u32),
    /// Accepts, and never answers.
    Stall,
    /// The same with so many connections; then it passes all on.
    StallFirst(u32),
}

#[derive(Debug)]
pub struct Proxy {
    /// How images there are named.
    pub registry: String,
    seen: Arc<AtomicU32>,
}

impl Proxy {
    pub fn new(site: &'static Site, fault: Fault) -> Self {
        let (listener, registry) = site.listen();
        let seen = Arc::new(AtomicU32::new(0));
        let proxy = Self { registry, seen: Arc::clone(&seen) };
        thread::spawn(move || serve(site, &listener, fault, &seen));
        proxy
    }

    /// Connections without TLS so far.
    pub fn seen(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }
}

fn serve(site: &'static Site, listener: &TcpListener, fault: Fault, seen: &AtomicU32) {
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
            Fault::Status(..) | Fault::StallFirst(_) => pass(site, client),
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

fn pass(site: &'static Site, client: TcpStream) {
    let server = site.inside(|| TcpStream::connect(("198.18.0.1", 5000))).expect("the registry answers");
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        thread::spawn(move || {
            let _copied = std::io::copy(&mut from, &mut to);
            let _closed = to.shutdown(std::net::Shutdown::Write);
        });
    };
    copy(client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
    copy(server, client);
}
