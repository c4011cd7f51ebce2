//! Delivers one notice: to a command, to a webhook, or to both.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use greenroom_core::notice::Notice;
use serde::Serialize;
use tokio::process::Command;
use tokio::time::timeout;

use super::{child, helper, webhook};
use crate::cli::when::rfc3339;
use crate::config::Notify;

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
        let post = async {
            if url.tls { helper::post(url, &body, WITHIN).await } else { webhook::post(url, &body).await }
        };
        // The helper has a limit of its own.
        let limit = if url.tls { WITHIN + helper::MORE } else { WITHIN };
        let posted = timeout(limit, post).await;
        posted.unwrap_or_else(|_| Err(format!("{url:?} did not answer within {} s", WITHIN.as_secs())))?;
    }
    Ok(())
}

async fn command(words: &[String], body: &str) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Err("no command".to_owned()) };
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null());
    match timeout(WITHIN, child::run(&mut command, body)).await {
        Ok(Ok((status, _))) if status.success() => Ok(()),
        Ok(Ok((status, _))) => Err(format!("`{program}`: {status}")),
        Ok(Err(error)) => Err(format!("`{program}`: {error}")),
        Err(_) => Err(format!("`{program}` did not end within {} s", WITHIN.as_secs())),
    }
}
