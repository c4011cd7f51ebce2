//! Holds the harness that plays GitLab Runner to what a real GitLab Runner 19.4 did.
//!
//! Compared exactly: calls, order, arguments, attempts, environment facts, signals received, exits, what is reported.
//! Waits are played at a tenth; a recorded gap between two calls of more than a second must come out as a tenth of
//! it at least (less 50 ms for clocks), and at most 3 s above, which is what a busy machine may add.
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "what cannot be read or was never written fails the test")]

mod by_hand;
mod contract;
mod driver;
mod facts;
mod recording;
mod scenarios;
mod users_machine;

greenroom_testkit::runner_process!();
