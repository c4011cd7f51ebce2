//! Whole jobs: the real binary under a played GitLab Runner, on the `local` provider.
//!
//! Each test has a place of its own: a state directory, a configuration with short timings, and everything that runs in
//! it. When the place is dropped, its state directory is removed, and any process that is still alive then fails the
//! test.
//!
//! `GREENROOM_KILLS` sets how often `kill.rs` kills (default 60), `GREENROOM_SEED` replays one of its seeds.
#![expect(clippy::format_collect, reason = "a few thousand lines of a test's own text")]
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

mod apart;
mod boot;
mod cleanup;
mod crowd;
mod exit_code;
mod facts;
mod frozen;
mod history;
mod input;
mod keeper;
mod kill;
mod limits;
mod link;
mod pass;
mod prepare;
mod reconfigured;
mod rehearsal;
mod secrets;
#[path = "../situations/jobs/blame.rs"]
mod situation_blame;
#[path = "../situations/jobs/corrected.rs"]
mod situation_corrected;
#[path = "../situations/jobs/early.rs"]
mod situation_early;
#[path = "../situations/jobs/output.rs"]
mod situation_output;
#[path = "../situations/jobs/ready.rs"]
mod situation_ready;
#[path = "../situations/jobs/sick.rs"]
mod situation_sick;
#[path = "../situations/jobs/sizes.rs"]
mod situation_sizes;
mod status;
mod stop;
mod superseded;
mod trust;
mod unbegun;
mod users_machine;

greenroom_testkit::runner_process!();
