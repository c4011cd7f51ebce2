//! `pool status`: instances, waiting jobs and the active policy.

pub(in crate::cli) mod command;
pub(in crate::cli) mod links;
mod reason;
mod text;
mod until;
mod view;
pub mod watch;

use serde_json::{Value, json};

use crate::cli::when::When;

pub(crate) use reason::{hosts, is_suspended, on_what};
pub use view::{ContainerUse, KeeperStatus, StatusInput};
pub(crate) use view::{InstanceView, LaunchBackoff, offerings};

use view::PoolView;

/// One pool as text, for a terminal of `width` columns. Ends with a newline.
pub fn render(input: StatusInput<'_>, when: &When, width: usize) -> String {
    text::text(&PoolView::of(input, when), when, width)
}

/// One pool as JSON.
pub fn as_json(input: StatusInput<'_>, when: &When) -> Value {
    json!(PoolView::of(input, when))
}

#[cfg(test)]
mod tests;
