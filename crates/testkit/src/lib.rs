//! The helpers that tests of several crates share. A development dependency: no shipped program contains it.
//!
//! [`gitlab_runner`] plays GitLab Runner. [`clock`], [`memory_host`] and [`memory_store`] are doubles of ports, which the simulation uses, too.
//! The other modules find out what the machine has, start programs, and inject faults into system calls.
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

pub mod clock;
pub mod dice;
pub mod faulty;
pub mod gitlab_runner;
pub mod key_tables;
pub mod memory_host;
pub mod memory_store;
pub mod metadata_service;
pub mod pace;
pub mod program;
pub mod shells;
pub mod skipped;
pub mod systemd;
pub mod write_errors;

/// The folder of the repository.
pub const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
