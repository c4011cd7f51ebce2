//! The files in a machine's directory that describe its launch, its boot and its end.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::provider::instance_dir::Launched;

/// `spec.json`; never changed afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spec {
    #[serde(flatten)]
    pub(super) launched: Launched,
    pub(super) settings: Settings,
    pub(super) state_dir: PathBuf,
    /// Greenroom's executable, by a path that other users can follow. Absolute.
    pub(super) program: PathBuf,
    /// The part of the runner host's memory that the machine may take, in bytes.
    pub(super) reserved: u64,
    /// The same of its disk.
    #[serde(default)]
    pub(super) reserved_disk: u64,
}

/// `boot.json`: how a machine booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Booted {
    /// `snapshot`, `direct` or `disk`.
    pub(super) tier: String,
    /// `kvm` or `tcg`.
    pub(super) accel: String,
    /// From the start of its supervisor to a guest that answers, in milliseconds.
    pub(super) ms: u64,
    /// Why the tier is not the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) because: Option<String>,
}

/// `ended.json`: why the machine ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    /// One sentence without its subject: `shut itself down`.
    pub(super) why: String,
}

impl std::fmt::Display for Booted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tier, accel, ms, because } = self;
        write!(f, "{tier}, {accel}, {}.{:02} s", ms / 1000, ms % 1000 / 10)?;
        because.as_ref().map_or(Ok(()), |because| write!(f, " ({because})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_told_in_a_few_words() {
        let plain = Booted { tier: "snapshot".into(), accel: "tcg".into(), ms: 1049, because: None };
        assert_eq!(plain.to_string(), "snapshot, tcg, 1.04 s");
        let cold = Booted { tier: "direct".into(), because: Some("no template".into()), ..plain };
        assert_eq!(cold.to_string(), "direct, tcg, 1.04 s (no template)");
    }
}
