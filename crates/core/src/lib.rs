//! The decisions, pure: no clock, no randomness, no input or output. [`plan::plan`] makes them, and
//! [`pool::PoolState::apply`] records them.
//!
//! docs/glossary.md defines the terms.

#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

pub mod apply;
pub mod attempt;
pub mod availability;
pub mod container;
pub mod counters;
pub mod endpoint;
pub mod event;
pub mod execution;
pub mod failure;
pub mod format;
pub mod glob;
#[cfg(feature = "samples")]
pub mod golden;
pub mod history;
pub mod ids;
pub mod images;
pub mod instance;
pub mod invariants;
pub mod inventory;
pub mod job;
pub mod job_end;
pub mod metadata;
pub mod metrics;
#[cfg(feature = "samples")]
pub mod notation;
pub mod notice;
pub mod obstacle;
pub mod order;
pub mod orphan;
pub mod own_key;
pub mod plan;
pub mod policy;
pub mod pool;
pub mod report;
pub mod schedule;
pub mod shell_text;
pub mod start;
pub mod text;
pub mod time;
pub mod unbegun;
