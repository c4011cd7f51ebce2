//! Whole jobs on hosts of the operator's own: the real binary, a played GitLab Runner, and real `sshd`s, each in
//! network, mount and process namespaces of its own.
//!
//! Needs root and namespaces; where there are none, every test is skipped and says so.
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

mod away;
mod clean;
mod cleaned;
mod containers;
mod domains;
mod engine;
mod hostile;
mod hostile_containers;
#[path = "../containers/images.rs"]
#[expect(dead_code, reason = "what only machines that are launched need")]
mod images;
mod machine;
mod operators;
mod returns;
#[path = "../situations/hosts/blame.rs"]
mod situation_blame;
#[path = "../situations/hosts/builds.rs"]
mod situation_builds;
#[path = "../situations/hosts/engine_state.rs"]
mod situation_engine_state;
#[path = "../situations/hosts/login.rs"]
mod situation_login;
#[path = "../situations/hosts/profiles.rs"]
mod situation_profiles;
#[path = "../situations/hosts/true_reason.rs"]
mod situation_true_reason;
mod sudo;
mod unbegun;
mod users_machine;

greenroom_testkit::runner_process!();
