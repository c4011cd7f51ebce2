//! Providers that need no vendor's library, and what a provider is to the rest of the program.
//!
//! [`registration`] and [`first_pool`] are the second part: `greenroom-backends` has more providers of that kind.
//! [`local`] and [`qemu`] have instances on the runner host, each with a process that supervises it: [`supervised`] is
//! their common part. [`static_hosts`] are machines of the operator's. [`conformance`] judges providers, here and in other crates.

#![forbid(unsafe_code)]

pub mod conformance;
pub mod first_pool;
pub mod local;
pub mod mistakes;
pub mod process;
pub mod qemu;
pub mod registration;
pub mod static_hosts;
pub mod supervised;

pub use supervised::launch;
