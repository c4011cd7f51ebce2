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
#[path = "../contract/provider/here.rs"]
#[expect(dead_code, reason = "clouds have no processes on this machine")]
mod here;
mod http;
mod inbound;
mod jobs;
mod lab;
mod matrix;
mod networks;
mod notices;
#[path = "../jobs/onslaught.rs"]
mod onslaught;
mod operation;
#[path = "../jobs/place.rs"]
#[expect(dead_code, reason = "jobs in clouds use a part of it")]
mod place;
#[path = "../jobs/processes.rs"]
#[expect(dead_code, reason = "jobs in clouds use a part of it")]
mod processes;
#[path = "../contract/provider/suite.rs"]
mod provider;
#[path = "../jobs/setting.rs"]
mod setting;
mod site;
mod truth;
