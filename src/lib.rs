//! Greenroom keeps CI machines warm for GitLab Runner's custom executor. Start at ARCHITECTURE.md.

#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod connector;
pub mod engine;
#[cfg(test)]
#[path = "../tests/support/faulty.rs"]
mod faulty;
pub mod gitlab;
pub mod host;
#[cfg(feature = "https")]
pub mod https;
pub mod keys;
#[cfg(test)]
#[path = "../tests/support/metadata_service.rs"]
mod metadata_service;
pub mod names;
pub mod port;
pub mod provider;
pub mod remove;
pub mod replace;
pub mod rsa;
#[cfg(test)]
#[path = "../tests/support/shells.rs"]
mod shells;
pub mod sim;
#[cfg(test)]
#[path = "../tests/support/skipped.rs"]
mod skipped;
pub mod store;
pub mod threads;
#[cfg(test)]
#[path = "../tests/support/write_errors.rs"]
mod write_errors;

pub use greenroom_core as core;
