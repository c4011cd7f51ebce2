//! The two cloud providers against the cloud emulator of tests/lab: their contract, whole jobs, and all faults of
//! calls.
//!
//! `GREENROOM_SEED` replays the faults of a seed, `GREENROOM_KILLS` sets how often `jobs/kills.rs` kills, and
//! `GREENROOM_MATRIX=all` runs all of `matrix` instead of every pair.
#![expect(clippy::print_stderr, reason = "figures, and what a failed test leaves to read")]
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

mod cloud;
mod credentials;
mod doctor;
mod first_boot;
mod fixture;
mod gate;
mod http;
mod inbound;
mod jobs;
mod lab;
mod matrix;
mod networks;
mod notices;
mod operation;
mod site;
mod truth;
