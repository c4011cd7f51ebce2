//! `pool status`: instances, waiting jobs and the policy in force.

pub(in crate::cli) mod command;
mod json;
mod model;
mod text;
mod until;
pub mod watch;

use serde_json::{Value, json};

use crate::cli::when::When;
use crate::core::ids::PoolName;
use crate::core::pool::PoolState;
use crate::core::report::Report;

pub(crate) use json::tag;
pub use model::KeeperSight;
pub(crate) use model::{Halt, halts, on_what, view};

use model::Overview;

/// One pool as text, for a terminal of `width` columns. Ends with a newline.
pub fn render(
    pool: &PoolName,
    state: &PoolState,
    report: Option<&Report>,
    keeper: &KeeperSight,
    when: &When,
    width: usize,
) -> String {
    text::text(&Overview::of(pool, state, report, keeper, when), when, width)
}

/// One pool as JSON; the fields are described in src/cli/pool/status/json.rs.
pub fn as_json(
    pool: &PoolName,
    state: &PoolState,
    report: Option<&Report>,
    keeper: &KeeperSight,
    when: &When,
) -> Value {
    let pool_json = json::json(&Overview::of(pool, state, report, keeper, when), when);
    // Names, numbers and texts only: nothing in it can fail to be JSON.
    serde_json::to_value(pool_json)
        .unwrap_or_else(|e| json!({ "pool": pool.as_str(), "error": e.to_string() }))
}

#[cfg(test)]
mod tests;
