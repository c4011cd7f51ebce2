//! Images that virtual machines boot from: a kernel, an initrd, a disk and their manifest in a directory.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;

pub mod build;
mod manifest;
pub mod store;

pub use manifest::{FORMAT, Flavour, Manifest, SshServer};

/// The default name of an image.
pub const DEFAULT_NAME: &str = "light";

/// Where packages install the runner's program, which guests can use, too.
pub const GITLAB_RUNNER: &str = "/usr/bin/gitlab-runner";

const MANIFEST: &str = "manifest.json";
const KERNEL: &str = "vmlinux";
const INITRD: &str = "initrd.cpio";
const ROOTFS: &str = "rootfs.img";

/// A finished image. Its files are never changed; a rebuild replaces the whole directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// `IMAGES/NAME`.
    pub dir: PathBuf,
    pub manifest: Manifest,
}

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Nothing was built under that name.
    #[error("no image `{name}` in {}", images.display())]
    Missing { name: String, images: PathBuf },
    /// The name is not valid for a directory.
    #[error(
        "`{0}` is not a valid name for an image: use letters, digits, `-`, `_` and `.`, but do not begin \
         with `.`"
    )]
    Name(String),
    #[error("{} is not a valid manifest: {problem}", path.display())]
    Damaged { path: PathBuf, problem: String },
    /// A newer Greenroom has built it.
    #[error(
        "image `{name}` has format {format}, but this version supports format {FORMAT}: rebuild the image, \
         or use a newer version"
    )]
    Newer { name: String, format: u32 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A problem of an image that can be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Machines of this image cannot boot.
    #[error("{} is missing", _0.display())]
    FileMissing(PathBuf),
    /// Machines of this image cannot boot.
    #[error("{} is not an uncompressed kernel", _0.display())]
    NoKernel(PathBuf),
    /// The disk does not match the manifest: it was truncated, or changed in place.
    #[error("{} has {found} bytes, expected {expected} by the manifest", path.display())]
    WrongSize { path: PathBuf, found: u64, expected: u64 },
    /// Its content was changed after the build.
    #[error("its digest is {found}, expected {expected} by the manifest")]
    WrongDigest { found: String, expected: String },
    /// Jobs can neither use the cache nor pass artifacts.
    #[error("it does not contain gitlab-runner: jobs have no cache and no artifacts")]
    NoHelper,
}

impl Problem {
    /// True if machines cannot boot, or if it is uncertain what they boot.
    pub fn prevents_boot(&self) -> bool {
        *self != Self::NoHelper
    }
}

impl Image {
    /// Opens an image by its name. Only the manifest is read; `check` covers the rest.
    pub fn open(images: &Path, name: &str) -> Result<Self, ImageError> {
        if !is_name(name) {
            return Err(ImageError::Name(name.to_owned()));
        }
        let dir = images.join(name);
        let path = dir.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ImageError::Missing { name: name.to_owned(), images: images.to_owned() });
            }
            other => other?,
        };
        let damaged =
            |error: serde_json::Error| ImageError::Damaged { path: path.clone(), problem: error.to_string() };
        // Checked first: this version cannot judge the other fields of a newer format.
        let Format { format } = serde_json::from_str(&text).map_err(damaged)?;
        if format > FORMAT {
            return Err(ImageError::Newer { name: name.to_owned(), format });
        }
        let manifest = serde_json::from_str(&text).map_err(damaged)?;
        Ok(Self { dir, manifest })
    }

    /// The uncompressed kernel, an ELF file that boots by PVH.
    pub fn kernel(&self) -> PathBuf {
        self.dir.join(KERNEL)
    }

    pub fn initrd(&self) -> PathBuf {
        self.dir.join(INITRD)
    }

    /// The disk: raw, sparse, one ext4 without a partition table.
    pub fn rootfs(&self) -> PathBuf {
        self.dir.join(ROOTFS)
    }

    /// The problems that a quick check finds; no large file is read.
    pub fn check(&self) -> Result<Vec<Problem>, ImageError> {
        let mut found = Vec::new();
        for path in [self.kernel(), self.initrd(), self.rootfs()] {
            if !path.try_exists()? {
                found.push(Problem::FileMissing(path));
            }
        }
        if !found.is_empty() {
            return Ok(found);
        }
        if !starts_as_elf(&self.kernel())? {
            found.push(Problem::NoKernel(self.kernel()));
        }
        let size = fs::metadata(self.rootfs())?.len();
        let expected = self.manifest.disk_bytes;
        if size != expected {
            found.push(Problem::WrongSize { path: self.rootfs(), found: size, expected });
        }
        if !self.manifest.helper {
            found.push(Problem::NoHelper);
        }
        Ok(found)
    }

    /// Reads all files and compares their digest with the manifest's. `None`: the image is unchanged, or a file is
    /// missing, which `check` reports.
    pub fn compare(&self) -> Result<Option<Problem>, ImageError> {
        let found = match build::digest::of_image(&self.kernel(), &self.initrd(), &self.rootfs()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let expected = self.manifest.digest.clone();
        Ok((found != expected).then_some(Problem::WrongDigest { found, expected }))
    }
}

/// The one field that every format has.
#[derive(Debug, serde::Deserialize)]
struct Format {
    format: u32,
}

/// True if the name is valid for an image. It becomes a directory's name.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= 64 && !name.starts_with('.') && name.bytes().all(plain)
}

fn starts_as_elf(path: &Path) -> io::Result<bool> {
    use io::Read as _;
    let mut magic = [0; 4];
    let read = fs::File::open(path)?.read(&mut magic)?;
    Ok(magic[..read] == *b"\x7fELF")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::qemu) fn image() -> Image {
        Image { dir: PathBuf::from("/images/light"), manifest: manifest() }
    }

    pub(super) fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            name: "light".to_owned(),
            flavour: Flavour::Light,
            ssh: SshServer::Openssh,
            suite: "bookworm".to_owned(),
            built: "2026-11-21T09:00:00Z".parse().unwrap(),
            kernel: "6.1.0-44-cloud-amd64".to_owned(),
            digest: "00".to_owned(),
            disk_bytes: 4096,
            helper: true,
            helper_version: Some("19.4.0".to_owned()),
            engine: Some("podman 4.3.1".to_owned()),
            image_store: false,
            user: "root".to_owned(),
        }
    }

    fn images() -> (tempfile::TempDir, PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("light");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(MANIFEST), serde_json::to_string(&manifest()).unwrap()).unwrap();
        (temporary, dir)
    }

    #[test]
    fn an_image_is_found_by_its_name_and_says_what_it_is() {
        let (temporary, dir) = images();
        let image = Image::open(temporary.path(), "light").unwrap();
        assert_eq!(image.manifest, manifest());
        assert_eq!(image.rootfs(), dir.join("rootfs.img"));
        let missing = Image::open(temporary.path(), "heavy").unwrap_err();
        assert!(missing.to_string().starts_with("no image `heavy` in /"), "{missing}");
        assert!(matches!(Image::open(temporary.path(), "../light"), Err(ImageError::Name(_))));
    }

    #[test]
    fn the_manifest_has_the_words_that_others_read() {
        let json = serde_json::to_value(manifest()).unwrap();
        assert_eq!(json["flavour"], "light");
        assert_eq!(json["ssh"], "openssh");
        assert_eq!(json["built"], "2026-11-21T09:00:00Z");
    }

    #[test]
    fn a_newer_format_is_not_guessed_at() {
        let (temporary, dir) = images();
        fs::write(dir.join(MANIFEST), r#"{"format":2,"flavour":"tiny"}"#).unwrap();
        assert!(matches!(Image::open(temporary.path(), "light"), Err(ImageError::Newer { format: 2, .. })));
        fs::write(dir.join(MANIFEST), "{").unwrap();
        let damaged = Image::open(temporary.path(), "light").unwrap_err();
        assert!(damaged.to_string().contains("manifest.json is not a valid manifest"), "{damaged}");
    }

    #[test]
    fn a_check_names_what_is_missing_cut_off_or_never_was_there() {
        let (temporary, dir) = images();
        let mut image = Image::open(temporary.path(), "light").unwrap();
        assert_eq!(image.check().unwrap().len(), 3, "no file is there");
        fs::write(dir.join(KERNEL), b"\x7fELF...").unwrap();
        fs::write(dir.join(INITRD), b"0").unwrap();
        fs::write(dir.join(ROOTFS), vec![0; 4096]).unwrap();
        assert_eq!(image.check().unwrap(), []);
        fs::write(dir.join(KERNEL), b"MZ").unwrap();
        fs::write(dir.join(ROOTFS), b"").unwrap();
        image.manifest.helper = false;
        let problems = image.check().unwrap();
        assert_eq!(problems.len(), 3, "{problems:?}");
        let boots_with: Vec<&Problem> = problems.iter().filter(|problem| !problem.prevents_boot()).collect();
        assert_eq!(boots_with, [&Problem::NoHelper]);
    }
}
