//! The description of an image store: `store.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The format that Greenroom writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// The file beside the store's data. Renaming it into place makes a new store the current one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub name: String,
    /// SHA-256, in hex, of the data, whose file it names.
    pub digest: String,
    /// Length of the data.
    pub bytes: u64,
    /// When the content last changed.
    pub built: jiff::Timestamp,
    /// When the images were last compared with their source.
    pub refreshed: jiff::Timestamp,
    /// What wrote the engine's storage: `skopeo 1.9.3`.
    pub tool: String,
    pub images: Vec<StoredImage>,
    #[serde(default)]
    pub source: Source,
}

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredImage {
    /// Complete: `docker.io/library/ruby:3.3`.
    pub name: String,
    /// Of its manifest at the source: `sha256:…`.
    pub digest: String,
    /// When the store got this digest.
    pub since: jiff::Timestamp,
}

/// Where the images come from. A refresh uses it again. Without passwords: it names files that have them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Source {
    /// A directory with images; `None`: their registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// A file with logins, as Podman writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authfile: Option<PathBuf>,
    /// Certificates that registries are verified with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Mirrors by their registries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mirrors: BTreeMap<String, String>,
}

impl Manifest {
    /// True if the images and their digests are these.
    pub(super) fn has(&self, images: &[(String, String)]) -> bool {
        let own = self.images.iter().map(|image| (&image.name, &image.digest));
        own.eq(images.iter().map(|(name, digest)| (name, digest)))
    }

    /// Since when an image has had its digest.
    pub(super) fn since(&self, name: &str, digest: &str) -> Option<jiff::Timestamp> {
        let same = |image: &&StoredImage| image.name == name && image.digest == digest;
        self.images.iter().find(same).map(|image| image.since)
    }
}
