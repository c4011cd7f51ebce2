//! Jobs in containers: the real binary, a played GitLab Runner, real Podman and Docker, and real registries.
//!
//! Machines are namespaces with a disk in memory. Needs root; where there is none, every test is skipped and says so.
#![expect(clippy::print_stderr, reason = "what a failed test leaves to read")]
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

mod accounts;
mod builders;
mod caches;
mod debug;
mod docker;
mod engine;
mod examples;
mod figures;
mod images;
mod inside;
mod limits;
mod machines;
mod names;
mod owners;
mod pipelines;
#[path = "../jobs/place.rs"]
#[expect(dead_code, reason = "what only jobs on other providers need")]
mod place;
mod platforms;
mod pool;
mod postgres;
#[path = "../jobs/processes.rs"]
#[expect(dead_code, reason = "what only jobs on other providers need")]
mod processes;
mod proxy;
mod registries;
mod secrets;
mod services;
#[path = "../jobs/setting.rs"]
mod setting;
mod shells;
mod site;
#[path = "../situations/containers/apart.rs"]
mod situation_apart;
#[path = "../situations/containers/blame.rs"]
mod situation_blame;
#[path = "../situations/containers/sick.rs"]
mod situation_sick;
#[path = "../situations/containers/surroundings.rs"]
mod situation_surroundings;
#[path = "../situations/containers/variables.rs"]
mod situation_variables;
mod starts;
mod stopping;
mod stores;
mod waiting;
mod warm;
mod yaml;

greenroom_testkit::runner_process!();
