//! Provider `external`: its contract on a shell program and a Python program, what programs do wrong, and whole jobs.
//!
//! The programs make machines of a stand-in platform (platform.rs): an sshd for each machine.
#![expect(clippy::print_stderr, reason = "figures, and what a failed test leaves to read")]
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

mod call;
mod contract;
mod doctor;
mod examples;
mod figures;
mod fixture;
#[path = "../contract/provider/here.rs"]
#[expect(dead_code, reason = "machines are processes of the platform's")]
mod here;
mod host_keys;
mod jobs;
mod kit;
#[path = "../jobs/onslaught.rs"]
mod onslaught;
mod page;
#[path = "../jobs/place.rs"]
#[expect(dead_code, reason = "jobs on machines of programs use a part of it")]
mod place;
mod platform;
#[path = "../jobs/processes.rs"]
#[expect(dead_code, reason = "jobs on machines of programs use a part of it")]
mod processes;
#[path = "../contract/provider/suite.rs"]
mod provider;
#[path = "../jobs/setting.rs"]
mod setting;
#[path = "../situations/external/empty_list.rs"]
mod situation_empty_list;
mod throttled;
mod unanswered;
mod wrong;
