//! The provider `external`: a program of the operator's makes the machines.

pub mod process;
pub mod protocol;
