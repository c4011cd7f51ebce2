//! Fleeting plugins: the tests' own with its faults, and GitLab's dummy plugin.
//!
//! The plugin of the tests (plugin/main.rs) reads its faults from files. Its machines are directories.
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]

mod calls;
#[path = "../support/dice.rs"]
#[expect(dead_code, reason = "these tests use a part of it")]
mod dice;
mod dummy;
mod ends;
mod fixture;
mod logs;
#[path = "../external/platform.rs"]
#[expect(dead_code, reason = "these tests use a part of it")]
mod platform;
#[path = "../support/skipped.rs"]
mod skipped;
mod starts;
