//! Plugins as OCI artifacts: their installation from a registry in GitLab's layout, and the lock file of it.

#[cfg(feature = "fleeting")]
pub(super) mod challenge;
#[cfg(feature = "fleeting")]
pub mod credentials;
pub mod digest;
pub mod doctor;
#[cfg(feature = "fleeting")]
mod document;
#[cfg(feature = "fleeting")]
pub mod install;
pub mod lock_file;
#[cfg(feature = "fleeting")]
pub mod platform;
#[cfg(feature = "fleeting")]
pub mod registry;
#[cfg(feature = "fleeting")]
mod unpack;
