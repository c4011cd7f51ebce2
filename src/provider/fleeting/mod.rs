//! The provider `fleeting`: a plugin of GitLab's autoscaler makes the machines.

pub mod group;
