//! Providers that need no vendor's library, and what a provider is to the rest of the program.
//!
//! [`registration`] and [`first_pool`] are the second part: `greenroom-backends` has more providers of that kind. [`local`] and [`qemu`] have
//! instances on the runner host: [`supervised`] is such an instance seen from outside, [`supervisor`] from inside.
//! [`static_hosts`] are machines of the operator's.

#![forbid(unsafe_code)]

pub mod console;
#[cfg(test)]
mod failing_writes;
pub mod first_pool;
pub mod halt;
pub mod instance_dir;
pub mod launch;
pub mod local;
pub mod mistakes;
pub mod process;
pub mod qemu;
pub mod registration;
pub mod scope;
pub mod static_hosts;
pub mod supervised;
pub mod supervisor;
