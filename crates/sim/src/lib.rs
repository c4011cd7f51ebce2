//! The deterministic simulation: the real engine among faults.
//!
//! [`study`] runs plan and apply alone, as fast as possible. [`run`] runs the engine: every call, keeper and reap is a
//! process, and the seed picks the next step at every port call. [`check`] and [`rest`] judge both from outside. In some
//! seeds, two managers share a journal ([`second`]).

pub mod check;
pub mod cloud;
pub mod connector;
pub mod cover;
mod early;
pub mod exec;
pub mod fate;
pub mod fault;
pub mod host;
pub mod images;
pub mod keeping;
mod lists;
pub mod offerings;
pub mod operator;
mod orders;
pub mod ports;
pub mod process;
pub mod product;
pub mod provider;
pub mod rest;
pub mod rig;
pub mod rng;
pub mod run;
pub mod scenario;
pub mod second;
mod sick;
mod stages;
mod stopped;
pub mod study;
pub mod truth;
pub mod workload;
pub mod world;
