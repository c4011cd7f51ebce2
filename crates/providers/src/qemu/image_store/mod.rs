//! Image stores: images of containers on one read-only disk, which all virtual machines of the runner host share.
//!
//! A store is a directory beside the images of virtual machines, `.stores/NAME/`: an ext4 file system named by its digest,
//! and `store.json`, which names the current one. A machine opens the file when it boots, and keeps it open. So a store is
//! replaced by renaming a manifest, and nothing else has to know.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use fs_err as fs;
use greenroom_core::text::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::image::build::ToolError;
use super::image::{format_of, is_name};

pub mod build;
mod folder;
mod skopeo;

pub use folder::ListedStore;
pub use folder::Stores;

pub(super) const MANIFEST: &str = "store.json";

/// A store that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    pub(super) dir: PathBuf,
    pub manifest: Manifest,
}

/// The reason a [`Store`] cannot be opened or built.
#[derive(Debug, thiserror::Error)]
pub enum ImageStoreError {
    #[error("building an image store requires root, because images have files of many users")]
    NotRoot,
    #[error(
        "`{0}` is not a valid name for an image store: use letters, digits, `-`, `_` and `.`, but do not begin with `.`"
    )]
    Name(String),
    #[error("no image store `{name}` in {}", folder.display())]
    Missing { name: String, folder: PathBuf },
    #[error("{} is not a valid manifest: {problem}", path.display())]
    Manifest { path: PathBuf, problem: serde_json::Error },
    #[error("{} is not a valid manifest: `digest` is not a SHA-256", .0.display())]
    ManifestDigest(PathBuf),
    #[error("image store `{name}` cannot be used: {damage}")]
    Damaged { name: String, damage: Damage },
    #[error("image store `{name}` cannot be used: {error}")]
    Unreadable { name: String, error: io::Error },
    #[error(
        "image store `{name}` has format {format}, but this version supports format {FORMAT}: rebuild the store, or use \
         a newer version"
    )]
    Newer { name: String, format: u32 },
    #[error("another `greenroom image store build {0}` is running")]
    Busy(String),
    #[error(
        "there is no image store `{0}` to refresh: to build it, run `greenroom image store build {0} IMAGE…`"
    )]
    NoImages(String),
    #[error("`{image}` is not a valid image: {problem}")]
    Image { image: String, problem: &'static str },
    #[error("{} has no image `{image}`: expected a directory of that name with a `manifest.json` or an `oci-layout`", dir.display())]
    NotInDirectory { image: String, dir: PathBuf },
    /// In a path, skopeo would read it as its own syntax.
    #[error("skopeo cannot work in {}: the path has one of the characters `+@:[],`", .0.display())]
    Path(PathBuf),
    #[error("cannot {what} image `{image}`: {problem}")]
    Skopeo { what: &'static str, image: String, problem: String },
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The damage because of which no machine may use a [`Store`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("its file {} is missing", .0.display())]
    FileMissing(PathBuf),
    #[error("its file has {found} bytes, expected {expected}")]
    WrongSize { found: u64, expected: u64 },
    #[error("its digest is {found}, expected {expected}")]
    WrongDigest { found: String, expected: String },
    #[error("a check found it damaged")]
    Marked,
}

impl Store {
    /// Opens the current store of a directory. Only the manifest is read.
    fn open(dir: PathBuf, name: &str) -> Result<Self, ImageStoreError> {
        if !is_name(name) {
            return Err(ImageStoreError::Name(name.to_owned()));
        }
        let path = dir.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = dir.parent().unwrap_or(&dir).to_owned();
                return Err(ImageStoreError::Missing { name: name.to_owned(), folder });
            }
            other => other?,
        };
        let invalid = |problem| ImageStoreError::Manifest { path: path.clone(), problem };
        let format = format_of(&text).map_err(invalid)?;
        if format > FORMAT {
            return Err(ImageStoreError::Newer { name: name.to_owned(), format });
        }
        let manifest: Manifest = serde_json::from_str(&text).map_err(invalid)?;
        if !is_digest(&manifest.digest) {
            return Err(ImageStoreError::ManifestDigest(path));
        }
        Ok(Self { dir, manifest })
    }

    /// The file system with the images.
    pub fn file(&self) -> PathBuf {
        self.dir.join(format!("{}.img", self.manifest.digest))
    }

    /// Exists as long as the last check found the data damaged.
    fn mark(&self) -> PathBuf {
        self.dir.join(format!("{}.damaged", self.manifest.digest))
    }

    /// The damage that a quick check finds; the data is not read.
    pub fn damage(&self) -> io::Result<Option<Damage>> {
        let found = match fs::metadata(self.file()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(Damage::FileMissing(self.file())));
            }
            other => other?.len(),
        };
        let expected = self.manifest.bytes;
        if found != expected {
            return Ok(Some(Damage::WrongSize { found, expected }));
        }
        Ok(self.mark().try_exists()?.then_some(Damage::Marked))
    }

    /// The sentence for what [`Self::damage`] finds; a check that fails is a problem, too.
    pub fn problem(&self) -> Option<String> {
        self.damage().map_or_else(|error| Some(error.to_string()), |damage| Some(damage?.to_string()))
    }

    /// Reads all data. The result is noted for machines that start later.
    pub fn check(&self) -> io::Result<Option<Damage>> {
        match self.damage()? {
            None | Some(Damage::Marked) => {}
            found => return Ok(found),
        }
        let found = file_digest(&self.file())?;
        if found == self.manifest.digest {
            greenroom_system::remove::tree(&self.mark())?;
            return Ok(None);
        }
        fs::write(self.mark(), format!("{found}\n"))?;
        Ok(Some(Damage::WrongDigest { found, expected: self.manifest.digest.clone() }))
    }
}

/// The folder of stores beside a folder of images of virtual machines.
fn beside(images: &Path) -> PathBuf {
    images.join(".stores")
}

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
    /// The time when the content last changed.
    pub built: jiff::Timestamp,
    /// The time when the images were last compared with their source.
    pub refreshed: jiff::Timestamp,
    /// The tool that wrote the engine's storage: `skopeo 1.9.3`.
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
    /// The digest of the image's manifest at the source: `sha256:…`.
    pub digest: String,
    /// The time when the store got this digest.
    pub since: jiff::Timestamp,
}

/// The origin of the images, which a refresh uses again. It has no passwords: it names files that have them.
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

/// Size of one read, in bytes.
const PIECE: usize = 1 << 20;

/// The SHA-256, in hex, of a file's whole content.
pub(super) fn file_digest(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut digest = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&digest.finalize())),
            read => digest.update(&piece[..read]),
        }
    }
}

/// The digest of a manifest, as registries write it.
pub(super) fn manifest_digest(text: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(text)))
}

/// True if the text is a digest. It becomes the name of a file.
pub(super) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
pub(in crate::qemu) mod tests {
    use super::*;

    pub(super) fn manifest(name: &str, data: &[u8]) -> Manifest {
        let at: jiff::Timestamp = "2026-11-20T03:00:00Z".parse().unwrap();
        let image = StoredImage {
            name: "docker.io/library/ruby:3.3".to_owned(),
            digest: format!("sha256:{}", "a".repeat(64)),
            since: at,
        };
        Manifest {
            format: FORMAT,
            name: name.to_owned(),
            digest: greenroom_core::text::hex(&<sha2::Sha256 as sha2::Digest>::digest(data)),
            bytes: data.len() as u64,
            built: at,
            refreshed: at,
            tool: "skopeo 1.9.3".to_owned(),
            images: vec![image],
            source: Source::default(),
        }
    }

    /// A store with this data, beside images.
    pub(in crate::qemu) fn store(images: &Path, name: &str, data: &[u8]) -> Store {
        let store = Store { dir: beside(images).join(name), manifest: manifest(name, data) };
        fs::create_dir_all(&store.dir).unwrap();
        fs::write(store.file(), data).unwrap();
        fs::write(store.dir.join(MANIFEST), serde_json::to_vec(&store.manifest).unwrap()).unwrap();
        store
    }

    #[test]
    fn damage_is_found_by_a_check_and_noted_until_it_is_gone() {
        let images = tempfile::tempdir().unwrap();
        let store = store(images.path(), "ci", b"data");
        assert_eq!((store.damage().unwrap(), store.check().unwrap()), (None, None));
        fs::write(store.file(), b"dada").unwrap();
        assert_eq!(store.damage().unwrap(), None, "only a check reads all of it");
        assert!(matches!(store.check().unwrap(), Some(Damage::WrongDigest { .. })));
        assert_eq!(store.damage().unwrap(), Some(Damage::Marked));
        fs::write(store.file(), b"data").unwrap();
        assert_eq!(store.check().unwrap(), None);
        assert_eq!(store.damage().unwrap(), None);
        fs::write(store.file(), b"dat").unwrap();
        assert_eq!(store.check().unwrap(), Some(Damage::WrongSize { found: 3, expected: 4 }));
        fs::remove_file(store.file()).unwrap();
        assert_eq!(store.check().unwrap(), Some(Damage::FileMissing(store.file())));
    }

    #[test]
    fn a_manifest_that_is_invalid_or_newer_is_not_guessed_at() {
        let images = tempfile::tempdir().unwrap();
        let store = store(images.path(), "ci", b"data");
        let open = |text: &str| {
            fs::write(store.dir.join(MANIFEST), text).unwrap();
            Store::open(store.dir.clone(), "ci").unwrap_err()
        };
        assert!(matches!(open("{"), ImageStoreError::Manifest { .. }));
        assert!(matches!(open(r#"{"format":2,"layers":[]}"#), ImageStoreError::Newer { format: 2, .. }));
        let elsewhere = Manifest { digest: "../../etc/passwd".to_owned(), ..store.manifest.clone() };
        let text = serde_json::to_string(&elsewhere).unwrap();
        assert!(matches!(open(&text), ImageStoreError::ManifestDigest(_)));
        assert!(matches!(Store::open(store.dir.clone(), "../ci"), Err(ImageStoreError::Name(_))));
    }
}
