//! Calls of programs that are not Greenroom's: one process for each, with limits, which is ended with all that it started.

pub mod call;
pub mod child;
pub mod environment;
pub mod guard;

pub use call::{CallEnd, EndedCall, Program};
