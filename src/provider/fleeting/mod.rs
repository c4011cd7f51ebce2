//! The provider `fleeting`: a plugin of GitLab's autoscaler makes the machines.

pub mod artifact;
pub mod group;
pub mod locate;
pub mod reference;
