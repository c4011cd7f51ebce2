//! Delivers one notice: to a command, to a webhook, or to both.
//!
//! A webhook gets it over HTTP/1.1, on a connection of its own. There is no TLS here: a client for it would double the
//! libraries of a program that starts ten times a job. `helper.rs` starts another program for it.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use greenroom_core::notice::Notice;
use greenroom_system::names;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use super::helper;
use crate::cli::when::rfc3339;
use crate::config::{Notify, Webhook};

/// The time that the command, or the webhook, may take.
const WITHIN: Duration = Duration::from_secs(30);

/// The document that a command reads and a webhook gets. Field names are stable: a field may be added.
#[derive(Debug, Serialize)]
struct Payload<'a> {
    version: u32,
    number: u64,
    event: &'static str,
    at: String,
    host: String,
    state_dir: String,
    pool: Option<&'a str>,
    instance: Option<&'a str>,
    message: &'a str,
    help: &'a str,
    dropped: u64,
}

/// The reasons for which a notice was not delivered. URLs are those to be shown, without a secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("the notice cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    #[error("`{program}` cannot be run")]
    Run {
        program: String,
        #[source]
        cause: io::Error,
    },
    #[error("`{program}`: {status}")]
    Ended { program: String, status: ExitStatus },
    #[error("`{program}` did not end within {} s", within.as_secs())]
    EndsNot { program: String, within: Duration },
    #[error("{url}")]
    Unreachable {
        url: String,
        #[source]
        cause: io::Error,
    },
    #[cfg(feature = "https")]
    #[error("{url}: {causes}")]
    Https { url: String, causes: String },
    #[error("{url} answered with status {status}")]
    Status { url: String, status: u16 },
    #[error("{url} did not answer as an HTTP server")]
    NoHttp { url: String },
    #[error("{url} did not answer within {} s", within.as_secs())]
    Silent { url: String, within: Duration },
    /// The second program delivers notices over HTTPS.
    #[error("{0}")]
    NoProgram(String),
    /// The sentence of the second program.
    #[error("{0}")]
    Said(String),
}

pub(super) async fn deliver(
    root: &Path,
    notify: &Notify,
    notice: &Notice,
    dropped: u64,
) -> Result<(), DeliveryError> {
    let condition = &notice.condition;
    let payload = Payload {
        version: 1,
        number: notice.number,
        event: condition.kind.word(),
        at: rfc3339(notice.at),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        state_dir: root.display().to_string(),
        pool: condition.pool.as_deref(),
        instance: condition.instance.as_deref(),
        message: &condition.message,
        help: &condition.help,
        dropped,
    };
    let body = serde_json::to_string(&payload)? + "\n";
    if let Some(words) = &notify.command {
        command(words, &body).await?;
    }
    if let Some(url) = &notify.webhook {
        let post =
            async { if url.tls { helper::post(url, &body, WITHIN).await } else { post(url, &body).await } };
        // The helper has a limit of its own.
        let limit = if url.tls { WITHIN + helper::MORE } else { WITHIN };
        let posted = timeout(limit, post).await;
        let silent = || DeliveryError::Silent { url: format!("{url:?}"), within: WITHIN };
        posted.map_err(|_| silent())??;
    }
    Ok(())
}

async fn command(words: &[String], body: &str) -> Result<(), DeliveryError> {
    // The configuration refuses an empty list.
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null());
    let program = program.clone();
    match timeout(WITHIN, run_with_input(&mut command, body)).await {
        Ok(Ok((status, _))) if status.success() => Ok(()),
        Ok(Ok((status, _))) => Err(DeliveryError::Ended { program, status }),
        Ok(Err(cause)) => Err(DeliveryError::Run { program, cause }),
        Err(_) => Err(DeliveryError::EndsNot { program, within: WITHIN }),
    }
}

/// The length at which a program's output is cut, in bytes.
const OUTPUT: u64 = 4 << 10;

/// Runs a command; returns its exit status, and the beginning of its output if the command pipes it. Dropping the
/// future kills the program, with all processes of its group.
pub(super) async fn run_with_input(command: &mut Command, input: &str) -> io::Result<(ExitStatus, Vec<u8>)> {
    command.stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    let mut group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    if let Some(mut stdin) = child.stdin.take() {
        // A program need not read it.
        stdin.write_all(input.as_bytes()).await.ok();
    }
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(OUTPUT).read_to_end(&mut output).await?;
    }
    let status = child.wait().await?;
    group.0 = None;
    Ok((status, output))
}

/// A process group that is killed when this is dropped, unless its leader has ended.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // An error: nothing of it is left.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

/// The longest first line of a response, in bytes. The rest of a response is not read.
const LONGEST_LINE: u64 = 4 << 10;

async fn post(url: &Webhook, body: &str) -> Result<(), DeliveryError> {
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
