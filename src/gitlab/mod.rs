//! The custom-executor contract and nothing else.
//!
//! What the runner gives us (environment, job response, stage names), what it wants back (one JSON document from
//! `config`, exit codes, a file with the script's own code). Decisions come from the response only: variables can be
//! set by whoever writes a pipeline.

pub mod config_json;
pub mod env;
pub mod exit;
pub mod response;
pub mod secret;
pub mod stage;

#[cfg(test)]
mod recorded_tests;
