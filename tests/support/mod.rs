//! Plays GitLab Runner 19.4 towards a custom-executor driver: same calls, order, arguments, environment and signals.
//!
//! `Runner` is the runner's configuration, `Job` what GitLab would send. `runner.run(&job)` plays a whole job;
//! `runner.start(&job)` plays it beside the test, which may cancel it; `runner.start_in_own_process(&job)` does the same
//! in a process that can really be killed; `runner.attempt(&job)` makes single calls by hand. Nothing is masked in the
//! log, unlike GitLab's: a test must be able to see a secret that leaked.
//!
//! Use it by `mod support;` in `tests/<name>.rs`, or with `#[path = "../support/mod.rs"]` in `tests/<name>/main.rs`.
//! A script that a test stops should sleep in short pieces: bash loses a SIGTERM for a child between its fork and exec.
#![expect(dead_code, reason = "each test crate uses its own part of the harness")]
#![expect(unreachable_pub, reason = "the harness has an interface, though no crate exports it")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

pub mod attempt;
mod build;
mod config_json;
mod environment;
mod events;
pub mod exit_code;
mod expand;
mod feature_flags;
pub mod handle;
pub mod job;
mod outside;
mod play;
pub mod process;
mod quote;
pub mod record;
mod response;
pub mod runner;
mod scope;
mod script;
mod stages;
mod variables;
