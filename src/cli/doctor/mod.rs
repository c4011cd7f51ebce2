//! `doctor`: what is wrong, or will go wrong, and what to do about it.

pub mod clock;
pub mod code;
pub mod keeper;
pub mod pools;
pub mod runner;
mod trial;
