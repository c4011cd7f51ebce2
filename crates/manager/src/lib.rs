//! The runner host's side of Greenroom: what a state directory holds, and the contract with GitLab Runner.
//!
//! [`file_store`] keeps journal and snapshot of each pool. [`runner_host`] has attempts, leases, the keeper's lock and wake-ups.
//! [`gitlab`] reads what GitLab Runner passes, and writes what it expects.

pub mod file_store;
pub mod gitlab;
pub mod runner_host;
