//! Jobs in containers: the real binary, a played GitLab Runner, real Podman and Docker, and real registries.
//!
//! Machines are namespaces with a disk in memory. Needs root; where there is none, every test is skipped and says so.
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
mod platforms;
mod pool;
mod postgres;
mod proxy;
mod registries;
mod secrets;
mod services;
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
