//! Fleeting plugins: the tests' own with its faults, and GitLab's dummy plugin; the contract of every provider on both.
//!
//! The plugin of the tests (plugin/main.rs) reads its faults from files. Its machines are directories.
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]

mod calls;
mod contract;
mod dummy;
mod ends;
mod figures;
mod fixture;
mod jobs;
#[path = "../situations/fleeting/keys.rs"]
mod keys;
mod kit;
mod logs;
#[path = "../situations/fleeting/mended.rs"]
mod mended;
#[path = "../external/platform.rs"]
#[expect(dead_code, reason = "machines of plugins end one by one")]
mod platform;
mod pools;
mod starts;
