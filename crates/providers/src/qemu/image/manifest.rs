//! The description of an image: `manifest.json`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The format that Greenroom writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// How much of an operating system runs in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// The guest program is process 1: Debian's programs, none of its services.
    Light,
    /// A full Debian, in which `systemctl` works.
    Systemd,
}

/// The guest's SSH server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SshServer {
    Openssh,
    Dropbear,
}

/// The file beside the image's parts, written last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub name: String,
    pub flavour: Flavour,
    pub ssh: SshServer,
    /// Debian's name of the release: `bookworm`.
    pub suite: String,
    pub built: jiff::Timestamp,
    /// The kernel's release: `6.1.0-44-cloud-amd64`.
    pub kernel: String,
    /// SHA-256, in hex, over kernel, initrd, the disk's data and the guest program.
    pub digest: String,
    /// Size of the disk as the guest sees it, in bytes.
    pub disk_bytes: u64,
    /// Whether the image contains `gitlab-runner`, for cache and artifacts.
    pub helper: bool,
    /// The version that `gitlab-runner --version` reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper_version: Option<String>,
    /// What runs jobs in containers: `podman 4.3.1`. `None`: the image has no engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Whether its machines can use an image store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub image_store: bool,
    /// The user that logs in over SSH.
    pub user: String,
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Light => "light",
            Self::Systemd => "systemd",
        })
    }
}

impl fmt::Display for SshServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Openssh => "openssh",
            Self::Dropbear => "dropbear",
        })
    }
}
