//! Delivers one notice: to a command, to a webhook, or to both.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::webhook;
use crate::cli::when::rfc3339;
use crate::config::Notify;
use crate::core::notice::Notice;

/// How long the command may take, and the webhook.
const WITHIN: Duration = Duration::from_secs(30);

/// What a command reads and a webhook gets. Field names are stable: a field may be added.
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

/// The error is the end of a sentence, without a secret.
pub(super) async fn deliver(
    root: &Path,
    notify: &Notify,
    notice: &Notice,
    dropped: u64,
) -> Result<(), String> {
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
    let body = serde_json::to_string(&payload).map_err(|error| error.to_string())? + "\n";
    if let Some(words) = &notify.command {
        command(words, &body).await?;
    }
    if let Some(url) = &notify.webhook {
        let posted = timeout(WITHIN, webhook::post(url, &body)).await;
        posted.unwrap_or_else(|_| Err(format!("{url:?} did not answer within {} s", WITHIN.as_secs())))?;
    }
    Ok(())
}

async fn command(words: &[String], body: &str) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Err("no command".to_owned()) };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // With what it starts, so that a limit ends all of it.
    let mut child = command
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("`{program}`: {error}"))?;
    let group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let input = child.stdin.take();
    let work = async {
        if let Some(mut input) = input {
            // A program need not read it.
            input.write_all(body.as_bytes()).await.ok();
        }
        child.wait().await
    };
    match timeout(WITHIN, work).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("`{program}`: {status}")),
        Ok(Err(error)) => Err(format!("`{program}`: {error}")),
        Err(_) => {
            drop(group);
            Err(format!("`{program}` did not end within {} s", WITHIN.as_secs()))
        }
    }
}

/// A process group that is killed when this is dropped, unless its leader has ended.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // An error: nothing of it is left.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}
