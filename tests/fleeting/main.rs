//! Fleeting plugins: the tests' own with its faults, and GitLab's dummy plugin.
//!
//! The plugin of the tests (plugin/main.rs) reads its faults from files. Its machines are directories.
#![expect(clippy::print_stderr, reason = "what a failed test leaves to read")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]

mod calls;
mod dummy;
mod ends;
mod figures;
mod fixture;
mod jobs;
mod kit;
mod logs;
#[path = "../jobs/onslaught.rs"]
mod onslaught;
#[path = "../jobs/place.rs"]
#[expect(dead_code, reason = "jobs on machines of plugins use a part of it")]
mod place;
#[path = "../external/platform.rs"]
#[expect(dead_code, reason = "these tests use a part of it")]
mod platform;
#[path = "../jobs/processes.rs"]
#[expect(dead_code, reason = "jobs on machines of plugins use a part of it")]
mod processes;
#[path = "../jobs/setting.rs"]
mod setting;
#[path = "../support/skipped.rs"]
mod skipped;
mod starts;
#[path = "../support/mod.rs"]
mod support;
