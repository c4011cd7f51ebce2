//! The decisions, pure: no clock, no randomness, no input or output.
//!
//! Vocabulary, one meaning each. *Instance*: one machine that runs jobs. *Pool*: instances of one kind under one
//! policy. *Provider*: makes and lists instances. *OfferingName*: one of the ways in which a provider can launch.
//! *Connector*: reaches instances. *Job*: one CI job. *Attempt*: one prepare-to-cleanup cycle of a job. *Reservation*: a
//! job's standing request for capacity. *Grant*: a slot given to an attempt. *Lease*: a kernel lock that says an attempt
//! is alive. *Drain*: no new jobs, finish the present ones, then terminate. *Terminate*: delete at the provider.
//! *Forget*: drop the record. *Reap*: terminate what carries our tag and no record knows. *Recorded* and *observed*: what
//! the state says and what the provider lists. *Pass*: one round of observe, plan, commit, act.

#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

pub mod apply;
pub mod attempt;
pub mod availability;
pub mod endpoint;
pub mod event;
pub mod failure;
pub mod ids;
pub mod instance;
pub mod invariants;
pub mod inventory;
pub mod job;
#[cfg(test)]
mod notation;
pub mod orphan;
pub mod plan;
pub mod policy;
pub mod pool;
pub mod report;
pub mod reservation;
pub mod schedule;
pub mod text;
pub mod time;
