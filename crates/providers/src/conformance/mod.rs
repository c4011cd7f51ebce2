//! The conformance suite of the provider port: the promises of [`Provider`], each stated once.
//!
//! A [`Subject`] is one provider under test. Three callers judge theirs with the same functions:
//!
//! * The contract of Greenroom's own adapters (`crates/harness/src/provider.rs`), whose tests panic with the verdict.
//! * `greenroom provider test`, the kit of programs for provider `external`.
//! * `greenroom plugin test`, the kit of fleeting plugins.
//!
//! Both kits drive a *plain port*: each of its calls is one call of the program or plugin, without a cache or a repeat. The
//! adapters of these providers would not do, because they exist to make up for faults: they search lists before they repeat a
//! launch, do not believe an early *gone*, and keep identities that a plugin lacks. [`SubjectKind`] names the differences
//! between the subjects.
//!
//! The other checks stay with their callers, because the port does not show what they judge:
//!
//! * In the kit of programs: outputs and exit codes, versions, settings, the IDs in answers, single tags (the port has all of
//!   them or none), lists without a network, `resources` of the program's own kinds, machines that end without the program.
//! * In the kit of plugins: the process and its next start, and how many instances `Increase` and `Decrease` accept. A group has
//!   no launch tokens and no tags, so nothing about these can be judged there.
//! * In the contract: what needs a fixture, such as injected faults and the instances that really run, and what only an adapter
//!   promises, such as sorted lists, or that a launch may be dropped at each await.
//! * Logins: a kit logs in as a job would, with the key of its launch or plugin. The contract only reads the first line of the SSH
//!   server, so it needs no account.
//!
//! [`Provider`]: greenroom_ports::provider::Provider

pub mod ends;
pub mod launches;
pub mod report;
pub mod subject;
#[cfg(test)]
mod tests;
pub mod verdict;

pub use subject::{Limits, Subject, SubjectKind, Watch};
