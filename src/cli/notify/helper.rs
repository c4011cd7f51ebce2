//! The process that posts a notice over HTTPS: `greenroom-backends`, which has the libraries for it.
//!
//! The URL, which may have a secret, and the notice come on its standard input; neither is among its arguments. It prints one
//! sentence if it fails.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use greenroom_core::text::clean_line;
use greenroom_core::time::millis;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::deliver::{DeliveryError, run_with_input};
use crate::cli::program;
use crate::config::Webhook;

/// The only argument of the process.
pub(in crate::cli) const COMMAND: &str = "post-notice";
/// The time that the process may take to start and to end, beyond its own limit.
pub(super) const MORE: Duration = Duration::from_secs(5);
/// The length at which the process's sentence is cut, in characters.
const SHOWN: usize = 300;
/// The part of the configuration that needs the second program, in an error.
const WHAT: &str = "`https://` in `webhook` of `[notify]`";

/// The input of the process, which [`post`] writes.
#[derive(Serialize, Deserialize)]
pub(super) struct PostOrder {
    pub(super) url: String,
    /// The URL without its secret.
    pub(super) shown: String,
    pub(super) body: String,
    #[serde(with = "millis")]
    pub(super) within: Duration,
}

/// The reason for which no notice can be posted to this URL: the second program is missing.
pub(in crate::cli) fn missing(webhook: &Webhook) -> Option<String> {
    program::backends(WHAT).err().filter(|_| webhook.tls).map(|error| error.in_a_line())
}

pub(super) async fn post(webhook: &Webhook, body: &str, within: Duration) -> Result<(), DeliveryError> {
    let program = program::backends(WHAT).map_err(|missing| DeliveryError::NoProgram(missing.in_a_line()))?;
    let url = webhook.url();
    let shown = format!("{webhook:?}");
    let body = body.to_owned();
    run(&program, &PostOrder { url, shown, body, within }).await
}

async fn run(path: &Path, order: &PostOrder) -> Result<(), DeliveryError> {
    let program = path.file_name().unwrap_or_default().display().to_string();
    let mut command = Command::new(path);
    let input = serde_json::to_string(order)?;
    let (status, output) = match run_with_input(command.arg(COMMAND).stdout(Stdio::piped()), &input).await {
        Ok(ended) => ended,
        Err(cause) => return Err(DeliveryError::Run { program, cause }),
    };
    let problem = clean_line(&output, SHOWN);
    match (status.success(), problem.is_empty()) {
        (true, _) => Ok(()),
        (false, false) if status.code() == Some(1) => Err(DeliveryError::Said(problem)),
        (false, _) => Err(DeliveryError::Ended { program, status }),
    }
}

#[cfg(feature = "https")]
pub(in crate::cli) mod process {
    //! The process itself, in the program that has the libraries.

    use std::io::Read as _;
    use std::process::ExitCode;

    use greenroom_backends::https::{self, causes};
    use greenroom_core::text::with_causes;
    use reqwest::header::CONTENT_TYPE;
    use reqwest::redirect::Policy;

    use super::PostOrder;
    use crate::cli::notify::deliver::DeliveryError;
    use crate::cli::ui;

    /// Exit status: 0 delivered, 1 not delivered, with a sentence.
    pub(in crate::cli) fn main() -> ExitCode {
        let mut input = String::new();
        let order =
            std::io::stdin().read_to_string(&mut input).ok().and_then(|_| serde_json::from_str(&input).ok());
        let Some(order) = order else { return ExitCode::from(2) };
        match posted(order) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                ui::out(&with_causes(&problem));
                ExitCode::from(1)
            }
        }
    }

    fn posted(order: PostOrder) -> Result<(), DeliveryError> {
        let late = DeliveryError::Silent { url: order.shown.clone(), within: order.within };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|cause| DeliveryError::Unreachable { url: order.shown.clone(), cause })?;
        let posted = runtime.block_on(async { tokio::time::timeout(order.within, post(order)).await });
        // A name that is still being looked up must not delay the end.
        runtime.shutdown_background();
        posted.unwrap_or(Err(late))
    }

    async fn post(order: PostOrder) -> Result<(), DeliveryError> {
        let PostOrder { url, shown, body, .. } = order;
        let failed =
            |error: reqwest::Error| DeliveryError::Https { url: shown.clone(), causes: causes(&error) };
        let client = https::client().https_only(true).redirect(Policy::none()).build().map_err(failed)?;
        let request = client.post(url).header(CONTENT_TYPE, "application/json").body(body);
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        Err(DeliveryError::Status { url: shown, status: status.as_u16() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use fs_err as fs;

    use super::*;

    async fn posted(script: &str) -> Result<(), DeliveryError> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("helper");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let order = PostOrder {
            url: "https://a/secret".to_owned(),
            shown: "https://a:443/…".to_owned(),
            body: "{}".to_owned(),
            within: Duration::from_secs(1),
        };
        run(&program, &order).await
    }

    #[tokio::test]
    async fn its_sentence_or_its_end_is_the_reason_and_the_url_is_no_argument() {
        let reads = "read -r order; case $order in *https://a/secret*) ;; *) exit 7 ;; esac; [ \"$*\" = post-notice ] || exit 8";
        posted(&format!("{reads}; echo ignored")).await.unwrap();
        for (script, expected) in [
            ("echo 'the server is away'; exit 1", "the server is away"),
            ("exit 1", "`helper`: exit status: 1"),
            ("echo usage; exit 2", "`helper`: exit status: 2"),
            ("kill -9 $$", "`helper`: signal: 9 (SIGKILL)"),
            ("head -c 100000 /dev/zero | tr '\\0' x; exit 1", "xxx"),
        ] {
            let problem = posted(&format!("cat >/dev/null; {script}")).await.unwrap_err();
            let problem = problem.to_string();
            assert!(
                problem.starts_with(expected) && problem.chars().count() <= SHOWN + 1,
                "{script}: {problem}"
            );
        }
    }
}
