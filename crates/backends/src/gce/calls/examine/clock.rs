//! Compute Engine's clock.

use std::time::SystemTime;

use super::super::ComputeEngine;
use super::super::client::answer;
use crate::cloud::clock;

/// An operation that does not exist, because the libraries return headers only with errors.
const NONE: &str = "greenroom-doctor-asks-the-time";

/// Compute Engine's clock minus the runner host's, in seconds; `None` if the answer had no date.
pub(super) async fn ahead_s(engine: &ComputeEngine) -> Option<i64> {
    let operations = &engine.clients().await.ok()?.operations;
    let zone = &engine.settings.common.offerings[0].place;
    let get = operations.get().set_project(&engine.settings.project).set_zone(zone).set_operation(NONE);
    let error = answer(get.send()).await.err()?;
    clock::ahead_s(error.http_headers()?.get("date")?.to_str().ok()?, SystemTime::now())
}
