//! What the process that posts a notice over HTTPS does.

use std::io::Read as _;
use std::process::ExitCode;

use greenroom_backends::https::{self, causes};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;

use super::deliver::DeliveryError;
use super::helper::Order;
use crate::cli::error::CliError;
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
            ui::out(&CliError::message(&problem));
            ExitCode::from(1)
        }
    }
}

fn posted(order: Order) -> Result<(), DeliveryError> {
    let late = DeliveryError::Silent { url: order.shown.clone(), within: order.within };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| DeliveryError::Unreachable { url: order.shown.clone(), cause })?;
    let posted = runtime.block_on(async { tokio::time::timeout(order.within, post(order)).await });
    // A name that is still being looked up must not delay the end.
    runtime.shutdown_background();
    posted.unwrap_or(Err(late))
}

async fn post(order: Order) -> Result<(), DeliveryError> {
    let Order { url, shown, body, .. } = order;
    let failed = |error: reqwest::Error| DeliveryError::Https { url: shown.clone(), causes: causes(&error) };
    let client = https::client().https_only(true).redirect(Policy::none()).build().map_err(failed)?;
    let request = client.post(url).header(CONTENT_TYPE, "application/json").body(body);
    let response = request.send().await.map_err(failed)?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    Err(DeliveryError::Status { url: shown, status: status.as_u16() })
}
