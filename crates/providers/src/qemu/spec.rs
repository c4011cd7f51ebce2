//! The files in a machine's directory that describe its launch, its boot and its end.

use std::path::PathBuf;

use greenroom_core::images::FoundImage;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::supervised::instance_dir::Launched;

/// The file with what templates pull, as the pool's configuration was at the launch. It may be long, and few read it.
pub(super) const PULLS: &str = "pulls.json";

/// The launch of a machine, in `spec.json`; never changed afterwards.
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
    /// The part of the runner host's disk that the machine may take, in bytes.
    #[serde(default)]
    pub(super) reserved_disk: u64,
    /// The image store that it counts with, once for all machines that have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reserved_store: Option<ReservedStore>,
}

/// The data of an image store, by which budgets count it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReservedStore {
    pub(super) digest: String,
    pub(super) bytes: u64,
}

/// The image store that a machine has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoreUse {
    pub(super) name: String,
    pub(super) digest: String,
}

/// The boot of a machine, in `boot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Booted {
    /// `snapshot`, `direct` or `disk`.
    pub(super) tier: String,
    /// `kvm` or `tcg`.
    pub(super) accel: String,
    /// The time from the start of the machine's supervisor to a guest that answers, in milliseconds.
    pub(super) ms: u64,
    /// The reason the tier is not the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) because: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) image_store: Option<StoreUse>,
    /// The reason the machine lacks the image store that its pool names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) without_store: Option<String>,
    /// Images of containers that it has from its template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) images: Vec<FoundImage>,
    /// A sentence for each image of `images_warm` that its template lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) without_images: Vec<String>,
}

/// The end of a machine, in `ended.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    /// The text of an `Ending`, such as `shut itself down`.
    pub(super) why: String,
}

impl std::fmt::Display for Booted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tier, accel, ms, because, image_store, without_store, images, without_images } = self;
        write!(f, "{tier}, {accel}, {}.{:02} s", ms / 1000, ms % 1000 / 10)?;
        if let Some(because) = because {
            write!(f, " ({because})")?;
        }
        if let Some(StoreUse { name, digest }) = image_store {
            write!(f, ", image store `{name}` ({})", digest.get(..12).unwrap_or(digest))?;
        }
        if let Some(problem) = without_store {
            write!(f, ", no image store: {problem}")?;
        }
        match images.len() {
            0 => {}
            1 => f.write_str(", template with 1 image")?,
            count => write!(f, ", template with {count} images")?,
        }
        without_images.iter().try_for_each(|why| write!(f, ", {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_told_in_a_few_words() {
        let plain = Booted {
            tier: "snapshot".into(),
            accel: "tcg".into(),
            ms: 1049,
            because: None,
            image_store: None,
            without_store: None,
            images: Vec::new(),
            without_images: Vec::new(),
        };
        assert_eq!(plain.to_string(), "snapshot, tcg, 1.04 s");
        let cold = Booted { tier: "direct".into(), because: Some("no template".into()), ..plain.clone() };
        assert_eq!(cold.to_string(), "direct, tcg, 1.04 s (no template)");
        let store = StoreUse { name: "ci".into(), digest: "0123456789abcdef".into() };
        let stored = Booted { image_store: Some(store), ..plain.clone() };
        assert_eq!(stored.to_string(), "snapshot, tcg, 1.04 s, image store `ci` (0123456789ab)");
        let image = FoundImage { name: "r.corp/a:1".into(), digest: None, bytes: 7 };
        let warm = Booted {
            images: vec![image],
            without_images: vec!["not image `b`: denied".into()],
            ..plain.clone()
        };
        assert_eq!(warm.to_string(), "snapshot, tcg, 1.04 s, template with 1 image, not image `b`: denied");
        let without = Booted { without_store: Some("it is damaged".into()), ..plain };
        assert_eq!(without.to_string(), "snapshot, tcg, 1.04 s, no image store: it is damaged");
    }
}
