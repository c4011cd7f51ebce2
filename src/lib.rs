//! Greenroom keeps CI machines warm for GitLab Runner's custom executor. Start at ARCHITECTURE.md.

#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod provider;
