//! Image stores: images of containers on one read-only disk, which all virtual machines of the runner host share.
//!
//! A store is a directory beside the images of virtual machines, `.stores/NAME/`: an ext4 file system named by its digest,
//! and `store.json`, which names the current one. A machine opens the file when it boots, and keeps it open. So a store is
//! replaced by renaming a manifest, and nothing else has to know.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::image::build::ToolError;
use super::image::is_name;

pub mod build;
mod digest;
pub(super) mod doctor;
mod folder;
mod manifest;
mod skopeo;

pub use folder::{Entry, Stores};
pub use manifest::{FORMAT, Manifest, Source, StoredImage};

const MANIFEST: &str = "store.json";

/// A store that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    dir: PathBuf,
    pub manifest: Manifest,
}

/// Why a store cannot be opened or built.
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
    Manifest { path: PathBuf, problem: String },
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

/// Why no machine may use a store.
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
        let invalid = |error: serde_json::Error| ImageStoreError::Manifest {
            path: path.clone(),
            problem: error.to_string(),
        };
        // Checked first: this version cannot judge the other fields of a newer format.
        let Format { format } = serde_json::from_str(&text).map_err(invalid)?;
        if format > FORMAT {
            return Err(ImageStoreError::Newer { name: name.to_owned(), format });
        }
        let manifest: Manifest = serde_json::from_str(&text).map_err(invalid)?;
        if !digest::is_digest(&manifest.digest) {
            let problem = "`digest` is not a SHA-256".to_owned();
            return Err(ImageStoreError::Manifest { path, problem });
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

    /// What a quick check finds; the data is not read.
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

    /// The same in words; a check that fails is a problem, too.
    pub fn problem(&self) -> Option<String> {
        self.damage().map_or_else(|error| Some(error.to_string()), |damage| Some(damage?.to_string()))
    }

    /// Reads all data. The result is noted for machines that start later.
    pub fn check(&self) -> io::Result<Option<Damage>> {
        match self.damage()? {
            None | Some(Damage::Marked) => {}
            found => return Ok(found),
        }
        let found = digest::of(&self.file())?;
        if found == self.manifest.digest {
            greenroom_system::remove::tree(&self.mark())?;
            return Ok(None);
        }
        fs::write(self.mark(), format!("{found}\n"))?;
        Ok(Some(Damage::WrongDigest { found, expected: self.manifest.digest.clone() }))
    }
}

/// The one field that every format has.
#[derive(Debug, serde::Deserialize)]
struct Format {
    format: u32,
}

/// The folder of stores beside a folder of images of virtual machines.
fn beside(images: &Path) -> PathBuf {
    images.join(".stores")
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
        assert!(matches!(open(&text), ImageStoreError::Manifest { .. }));
        assert!(matches!(Store::open(store.dir.clone(), "../ci"), Err(ImageStoreError::Name(_))));
    }
}
