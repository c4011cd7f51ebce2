//! `greenroom plugin`: installations from a real registry on loopback, and all that may go wrong there.
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a test fails by panicking, in helpers too")]

mod access;
mod artifact;
mod hostile;
mod install;
mod interrupted;
mod locked;
mod proxy;
mod site;
