//! The [`LockFile`]: the versions and digests of plugins that `greenroom plugin install` has installed.

use std::io;
use std::path::{Path, PathBuf};

use greenroom_system::replace::replace;
use serde::{Deserialize, Serialize};

use super::Digest;
use crate::fleeting::reference::{Constraint, PluginName, PluginVersion, Reference};

/// The file is for a repository: everyone may read it.
const MODE: u32 = 0o644;

/// The lock file's name in the plugin directory.
pub const NAME: &str = "greenroom-plugins.lock";
const HEAD: &str = "\
# Written by `greenroom plugin install`, which refuses any other content of these versions.
# Copy it into the plugin directory of another host to install the same plugins there.
";

/// The lock file of a plugin directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFile {
    pub path: PathBuf,
    entries: Vec<Locked>,
}

/// One version on one platform.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// The whole name, with the registry.
    pub name: PluginName,
    pub version: PluginVersion,
    /// Operating system and architecture: `linux/amd64`.
    pub platform: String,
    /// The reference of the installation.
    pub reference: String,
    /// Digest of the version's index, which comprises all platforms.
    pub index: Digest,
    pub manifest: Digest,
    pub layer: Digest,
    /// Digest of the installed program.
    pub program: Digest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockFileContent {
    #[serde(default)]
    plugin: Vec<Locked>,
}

/// The lock file exists, but cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    #[error("the lock file `{}` cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the lock file `{}` cannot be read: {}", path.display(), cause.message())]
    Content { path: PathBuf, cause: Box<toml::de::Error> },
}

impl LockFileError {
    pub fn path(&self) -> &Path {
        match self {
            Self::Read { path, .. } | Self::Content { path, .. } => path,
        }
    }
}

impl LockFile {
    /// Reads that of a plugin directory; without one, nothing is locked.
    pub fn read(directory: &Path) -> Result<Self, LockFileError> {
        let path = directory.join(NAME);
        let content = match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str::<LockFileContent>(&text)
                .map_err(|cause| LockFileError::Content { path: path.clone(), cause: Box::new(cause) })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => LockFileContent { plugin: Vec::new() },
            Err(cause) => return Err(LockFileError::Read { path, cause }),
        };
        Ok(Self { path, entries: content.plugin })
    }

    /// Every entry, in order.
    pub fn entries(&self) -> &[Locked] {
        &self.entries
    }

    /// The digest of a version's index, whatever the platform.
    pub fn index(&self, plugin: &PluginName, version: &PluginVersion) -> Option<&Digest> {
        self.of(plugin, version).map(|entry| &entry.index).next()
    }

    /// The entry of a version on a platform.
    pub fn entry(&self, plugin: &PluginName, version: &PluginVersion, platform: &str) -> Option<&Locked> {
        self.of(plugin, version).find(|entry| entry.platform == platform)
    }

    fn of(&self, plugin: &PluginName, version: &PluginVersion) -> impl Iterator<Item = &Locked> {
        self.entries.iter().filter(move |entry| entry.name == *plugin && entry.version == *version)
    }

    /// The newest locked version that a reference allows.
    pub fn newest(&self, reference: &Reference) -> Option<&PluginVersion> {
        let of_plugin = self.entries.iter().filter(|entry| entry.name == reference.plugin);
        of_plugin.map(|entry| &entry.version).filter(|version| reference.constraint.allows(version)).max()
    }

    /// A reference for each plugin: its newest locked version.
    pub fn references(&self) -> Vec<Reference> {
        let mut newest: Vec<Reference> = Vec::new();
        // Ordered by version.
        for entry in &self.entries {
            let constraint = Constraint::Exact(entry.version.clone());
            newest.retain(|reference| reference.plugin != entry.name);
            newest.push(Reference { plugin: entry.name.clone(), constraint });
        }
        newest
    }

    /// Adds or replaces the entry of a version on a platform, and writes the file in one step.
    pub fn record(&mut self, entry: Locked) -> io::Result<()> {
        self.entries.retain(|old| {
            (&old.name, &old.version, &old.platform) != (&entry.name, &entry.version, &entry.platform)
        });
        self.entries.push(entry);
        self.entries.sort();
        let content = LockFileContent { plugin: self.entries.clone() };
        let text = HEAD.to_owned() + &toml::to_string(&content).map_err(io::Error::other)?;
        replace(&self.path, text.as_bytes(), MODE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(name: &str, version: &str, platform: &str) -> Locked {
        let [index, manifest, layer, program] = ["i", "m", "l", "p"]
            .map(|part| Digest::of(format!("{part}{name}{version}{platform}").as_bytes()));
        Locked {
            name: Reference::parse(name, None).unwrap().plugin,
            version: PluginVersion::parse(version).unwrap(),
            platform: platform.to_owned(),
            reference: name.to_owned(),
            index,
            manifest,
            layer,
            program,
        }
    }

    #[test]
    fn what_is_recorded_is_read_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let mut lock = LockFile::read(dir.path()).unwrap();
        assert_eq!((lock.entries().len(), lock.references()), (0, Vec::new()));
        let old = locked("aws", "1.9.0", "linux/amd64");
        let new = locked("aws", "1.10.0", "linux/amd64");
        let other = locked("aws", "1.10.0", "linux/arm64");
        for entry in [&new, &old, &other, &new] {
            lock.record(entry.clone()).unwrap();
        }
        let read = LockFile::read(dir.path()).unwrap();
        assert_eq!(read, lock);
        assert_eq!(read.entries(), [old.clone(), new.clone(), other.clone()]);
        assert_eq!(read.index(&old.name, &old.version), Some(&old.index));
        assert_eq!(read.entry(&new.name, &new.version, "linux/arm64"), Some(&other));
        assert_eq!(read.entry(&new.name, &new.version, "linux/riscv64"), None);
        let newest = |text| read.newest(&Reference::parse(text, None).unwrap()).map(ToString::to_string);
        assert_eq!(newest("aws:1"), Some("1.10.0".to_owned()));
        assert_eq!(newest("aws:2"), None);
        assert_eq!(newest("ci.example/aws"), None);
        let references: Vec<_> = read.references().iter().map(ToString::to_string).collect();
        assert_eq!(references, ["aws:1.10.0"]);
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let text = toml::to_string(&LockFileContent { plugin: vec![locked("aws", "1.0.0", "linux/amd64")] })
            .unwrap();
        for (from, to) in [
            ("1.0.0", "../../x"),
            ("registry.gitlab.com/", "../"),
            ("sha256:", "md5:"),
            ("platform", "plattform"),
            ("[[plugin]]", "[[plugin"),
        ] {
            assert!(text.contains(from), "{from}");
            std::fs::write(dir.path().join(NAME), text.replacen(from, to, 1)).unwrap();
            let error = LockFile::read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(NAME), "{error}");
        }
    }
}
