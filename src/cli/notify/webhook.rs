//! Posts a text to an `http://` URL, with HTTP/1.1 and one connection for each.
//!
//! There is no TLS: a client for it would double the libraries of a program that starts ten times a job. `helper.rs` starts
//! another program for it.

use std::fmt::Write as _;

use greenroom_system::names;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::deliver::DeliveryError;
use crate::config::Webhook;

/// Of a response, only its first line is read.
const LONGEST_LINE: u64 = 4 << 10;

pub(super) async fn post(url: &Webhook, body: &str) -> Result<(), DeliveryError> {
    let shown = || format!("{url:?}");
    let failed = |cause| DeliveryError::Unreachable { url: shown(), cause };
    let addresses = names::look_up(&url.host, url.port).await.map_err(failed)?;
    let mut stream = names::connect_any(&addresses).await.map_err(failed)?;
    stream.write_all(request(url, body).as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    let mut limited = stream.take(LONGEST_LINE);
    while !answer.contains(&b'\n') {
        if limited.read_buf(&mut answer).await.map_err(failed)? == 0 {
            break;
        }
    }
    match status(&answer) {
        Some(200..=299) => Ok(()),
        Some(status) => Err(DeliveryError::Status { url: shown(), status }),
        None => Err(DeliveryError::NoHttp { url: shown() }),
    }
}

fn request(url: &Webhook, body: &str) -> String {
    let mut text = format!("POST {} HTTP/1.1\r\nHost: {}", url.target, url.authority());
    let version = env!("CARGO_PKG_VERSION");
    write!(
        text,
        "\r\nUser-Agent: greenroom/{version}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
    .ok();
    text
}

/// The status of a response, from its first line.
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let is_http = words.next()?.starts_with("HTTP/1.");
    words.next()?.parse().ok().filter(|_| is_http)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_what_a_server_needs() {
        let url = Webhook { tls: false, host: "::1".to_owned(), port: 8080, target: "/hook?a=1".to_owned() };
        let text = request(&url, "{}\n");
        assert!(text.starts_with("POST /hook?a=1 HTTP/1.1\r\nHost: [::1]:8080\r\n"), "{text}");
        assert!(text.contains("\r\nContent-Length: 3\r\n") && text.ends_with("\r\n\r\n{}\n"), "{text}");
    }

    #[test]
    fn a_status_is_read_and_rubbish_is_none() {
        for (answer, expected) in [
            (&b"HTTP/1.1 204 No Content\r\n\r\n"[..], Some(204)),
            (b"HTTP/1.0 500\n", Some(500)),
            (b"SSH-2.0-OpenSSH\r\n", None),
            (b"HTTP/1.1 abc\r\n", None),
            (b"\xff\xff", None),
            (b"", None),
        ] {
            assert_eq!(status(answer), expected);
        }
    }
}
