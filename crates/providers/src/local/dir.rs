//! The files of a local instance's directory, in addition to those of every instance.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use greenroom_core::time::millis;
use greenroom_ports::provider::InstanceKeys;
use serde::{Deserialize, Serialize};

use super::settings::ServerKind;
use crate::instance_dir::{InstanceDir, Launched, make_private, write_private};

/// The settings of a launched instance; never changed afterwards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Spec {
    #[serde(flatten)]
    pub(super) launched: Launched,
    /// Part of the environment of all processes of the instance, which identifies them in any session.
    pub(super) cookie: String,
    pub(super) server: ServerKind,
    #[serde(default)]
    pub(super) sshd: Option<PathBuf>,
    #[serde(with = "millis")]
    pub(super) boot_delay: Duration,
    /// Milliseconds.
    #[serde(default)]
    pub(super) die_after_ms: Option<u64>,
    #[serde(with = "millis")]
    pub(super) list_lag: Duration,
}

impl Spec {
    /// Writes the files of a new instance; the caller moves the directory into place.
    pub(super) fn fill(&self, dir: &InstanceDir, keys: &InstanceKeys) -> io::Result<()> {
        dir.fill(keys)?;
        for inner in ["home", "work", "sessions"] {
            make_private(&dir.file(inner))?;
        }
        write_private(&dir.file("spec.json"), &serde_json::to_vec_pretty(self)?)
    }
}
