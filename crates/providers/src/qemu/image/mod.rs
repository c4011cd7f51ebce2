//! Images that virtual machines boot from: a kernel, an initrd, a disk and their manifest in a directory.

use std::fmt;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use fs_err as fs;
use greenroom_core::text::hex;
use rustix::fs::SeekFrom;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::supervised::instance_dir::is_plain_name;

pub mod build;
pub mod store;

/// The default name of an image.
pub const DEFAULT_NAME: &str = "light";

/// The path at which packages install the runner's program, which guests can use, too.
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

/// The reason an [`Image`] cannot be opened.
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
    Damaged { path: PathBuf, problem: serde_json::Error },
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
    /// The image's content was changed after the build.
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
    /// Opens an image by its name. Only the manifest is read; [`check`](Self::check) covers the rest.
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
        let damaged = |problem| ImageError::Damaged { path: path.clone(), problem };
        let format = format_of(&text).map_err(damaged)?;
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
    /// missing, which [`check`](Self::check) reports.
    pub fn compare(&self) -> Result<Option<Problem>, ImageError> {
        let found = match content_digest(&self.kernel(), &self.initrd(), &self.rootfs()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let expected = self.manifest.digest.clone();
        Ok((found != expected).then_some(Problem::WrongDigest { found, expected }))
    }
}

/// The format of a manifest. Read before the rest: this version cannot judge the other fields of a newer format.
pub(super) fn format_of(manifest: &str) -> serde_json::Result<u32> {
    /// The one field that every format has.
    #[derive(Deserialize)]
    struct Versioned {
        format: u32,
    }
    serde_json::from_str(manifest).map(|Versioned { format }| format)
}

/// True if the name is valid for an image. It becomes a directory's name.
pub fn is_name(name: &str) -> bool {
    is_plain_name(name) && name.len() <= 64
}

fn starts_as_elf(path: &Path) -> io::Result<bool> {
    let mut magic = [0; 4];
    let read = fs::File::open(path)?.read(&mut magic)?;
    Ok(magic[..read] == *b"\x7fELF")
}

/// The format that Greenroom writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// The extent of the operating system that runs in the guest.
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
    /// True if the image contains `gitlab-runner`, for cache and artifacts.
    pub helper: bool,
    /// The version that `gitlab-runner --version` reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper_version: Option<String>,
    /// The engine that runs jobs in containers: `podman 4.3.1`. `None`: the image has no engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// True if machines of the image can use an image store.
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

/// Size of the pieces in which a disk is searched for data, in bytes.
const PIECE: usize = 64 * 1024;

/// SHA-256, in hex, over kernel, initrd and the pieces of the disk that are not zero. The guest program is in the
/// initrd. Holes count as zeros, so a copy has the same digest whether it is sparse or not.
pub(super) fn content_digest(kernel: &Path, initrd: &Path, rootfs: &Path) -> io::Result<String> {
    let mut digest = Sha256::new();
    for path in [kernel, initrd] {
        let bytes = fs::read(path)?;
        digest.update(bytes.len().to_le_bytes());
        digest.update(bytes);
    }
    add_disk_to(&mut digest, rootfs)?;
    Ok(hex(&digest.finalize()))
}

fn add_disk_to(digest: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut file = fs::File::open(path)?;
    let size = file.metadata()?.len();
    digest.update(size.to_le_bytes());
    let step = PIECE as u64;
    let (mut piece, zeros) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < size {
        at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data / step * step,
            // Only a hole is left.
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        file.seek(io::SeekFrom::Start(at))?;
        let length = usize::try_from(step.min(size - at)).unwrap_or(PIECE);
        file.read_exact(&mut piece[..length])?;
        if piece[..length] != zeros[..length] {
            digest.update(at.to_le_bytes());
            digest.update(&piece[..length]);
        }
        at += step;
    }
    Ok(())
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

    #[test]
    fn holes_are_zeros_and_everything_else_counts() {
        let temporary = tempfile::tempdir().unwrap();
        let file = |name: &str| temporary.path().join(name);
        fs::write(file("kernel"), "k").unwrap();
        fs::write(file("initrd"), "i").unwrap();
        let mut content = vec![0; 3 * PIECE + 17];
        content[2 * PIECE + 5] = 1;
        fs::write(file("full"), &content).unwrap();
        let sparse = fs::File::create(file("sparse")).unwrap();
        sparse.set_len(content.len() as u64).unwrap();
        std::os::unix::fs::FileExt::write_at(sparse.file(), &[1], 2 * PIECE as u64 + 5).unwrap();
        let of = |disk: &str| content_digest(&file("kernel"), &file("initrd"), &file(disk)).unwrap();
        assert_eq!(of("full"), of("sparse"));
        content[0] = 1;
        fs::write(file("other"), &content).unwrap();
        assert_ne!(of("full"), of("other"));
        assert_eq!(of("full").len(), 64);
    }
}
