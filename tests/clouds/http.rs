//! One HTTP request on loopback, with JSON both ways: a client for the emulator.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// The emulator answers its own operations within milliseconds, on a busy machine within seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a request to `host` (name and port) and reads the whole answer: its status and its body.
pub fn call(host: &str, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let text = body.map(Value::to_string).unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{text}",
        text.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    parsed(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, answer.clone()))
}

fn parsed(answer: &str) -> Option<(u16, Value)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}
