//! Provider `external`: its contract on a shell program and a Python program, what programs do wrong, and whole jobs.
//!
//! The programs make machines of a stand-in platform (platform.rs): an sshd for each machine.
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]

mod call;
mod contract;
mod doctor;
mod examples;
mod figures;
mod fixture;
mod host_keys;
mod jobs;
mod kit;
mod page;
mod platform;
#[path = "../situations/external/empty_list.rs"]
mod situation_empty_list;
mod throttled;
mod unanswered;
mod wrong;
