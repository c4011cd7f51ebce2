//! The contract of the custom executor, and nothing else.
//!
//! The runner's input (environment, job response, stage names), and the output that it expects (one JSON document from
//! `config`, exit codes, a file with the script's own code). Only the response is used for decisions, because the
//! author of a pipeline can set variables.

mod bounded;
pub mod config_json;
mod containers;
pub mod env;
pub mod exit;
pub mod response;
pub mod stage;
