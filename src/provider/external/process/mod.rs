//! Calls of the program: one process for each verb, with limits, which is ended with all that it started.

pub mod call;
pub mod holder;
mod output;

pub use call::{Called, Exit, Line, Program};
