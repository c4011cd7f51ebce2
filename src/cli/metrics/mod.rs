//! Metrics: the command `metrics`, and the endpoint of the keeper.

pub(super) mod command;
mod http;
mod listener;
pub(super) mod server;
mod source;
