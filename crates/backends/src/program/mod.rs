//! Calls of programs that are not Greenroom's: one process for each, with limits, which is ended with all that it started.

pub mod call;
pub mod doctor;
pub mod holder;
pub mod kit;
mod output;

pub use call::{Ended, Exit, Program};
