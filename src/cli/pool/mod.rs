//! `pool …`: look at pools and steer them.

pub mod status;
