//! The parts that Greenroom's own SSH servers share: the one of provider `local`, and `greenroom-server` in pods.

pub mod admission;
pub mod peer;
mod program;
