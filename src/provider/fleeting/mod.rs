//! The provider `fleeting`: a plugin of GitLab's autoscaler makes the machines.

pub mod artifact;
pub mod group;
pub mod holder;
pub mod locate;
#[cfg(feature = "fleeting")]
pub mod plugin;
pub mod reference;
#[cfg(feature = "fleeting")]
pub mod wire;
