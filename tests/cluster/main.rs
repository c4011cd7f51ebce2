//! A real Kubernetes cluster of one node: what it promises to the tests that use it, and what its API answers.
//!
//! README.md in this directory says how it is made. Where it is not built, every test is skipped and says so.
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

mod answers;
mod api;
mod cluster;
mod ends;
mod machines;
mod manifests;
mod recording;
