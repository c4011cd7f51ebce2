//! The conformance kit: whether a program keeps the promises of the protocol.
//!
//! It calls the program as the provider does, from outside, and judges what comes. The cheap half makes no machine.

mod called;
pub mod cheap;
mod checks;
pub mod doctor;
pub mod live;
pub mod program;
pub mod reply;
pub mod session;
