//! `pool status`: instances, waiting jobs and the active policy.

pub(in crate::cli) mod command;
mod json;
pub(in crate::cli) mod links;
mod model;
mod text;
mod until;
pub mod watch;

use serde_json::{Value, json};

use crate::cli::when::When;

pub(crate) use json::tag;
pub use model::{KeeperStatus, StatusInput};
pub(crate) use model::{Suspension, halts, on_what, passed_over, until_tried, view};

use model::Overview;

/// One pool as text, for a terminal of `width` columns. Ends with a newline.
pub fn render(input: StatusInput<'_>, when: &When, width: usize) -> String {
    text::text(&Overview::of(input, when), when, width)
}

/// One pool as JSON; the fields are described in src/cli/pool/status/json.rs.
pub fn as_json(input: StatusInput<'_>, when: &When) -> Value {
    let pool_json = json::json(&Overview::of(input, when), when);
    // Names, numbers and texts only: nothing in it can fail to be JSON.
    serde_json::to_value(pool_json)
        .unwrap_or_else(|e| json!({ "pool": input.pool.as_str(), "error": e.to_string() }))
}

#[cfg(test)]
mod tests;
