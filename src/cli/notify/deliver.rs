//! Delivers one notice: to a command, to a webhook, or to both.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
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

/// Why a notice was not delivered. URLs are those to be shown, without a secret.
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
    /// What the second program says.
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
        let post = async {
            if url.tls { helper::post(url, &body, WITHIN).await } else { webhook::post(url, &body).await }
        };
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
    match timeout(WITHIN, child::run(&mut command, body)).await {
        Ok(Ok((status, _))) if status.success() => Ok(()),
        Ok(Ok((status, _))) => Err(DeliveryError::Ended { program, status }),
        Ok(Err(cause)) => Err(DeliveryError::Run { program, cause }),
        Err(_) => Err(DeliveryError::EndsNot { program, within: WITHIN }),
    }
}
