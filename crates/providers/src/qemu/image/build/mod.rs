//! Builds an image from Debian packages.
//!
//! A build works in a folder with a dot name beside the images, and renames it into place at the end. A killed build
//! leaves that folder, and the next build removes it.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fs_err as fs;

use super::store::{Images, StoreError};
use super::{FORMAT, Flavour, INITRD, Image, KERNEL, MANIFEST, Manifest, ROOTFS, SshServer, content_digest};
use rootfs::Rootfs;

mod kernel;
mod rootfs;
mod sources;
mod tools;

pub use kernel::{InitrdError, KernelError};
pub use tools::{Tool, ToolError, packages_of_images};
pub(in crate::qemu) use tools::{all_there as tools_there, make_disk};

/// The program that runs in every guest; build.rs compiles it.
const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/greenroom-guest"));

/// The folder of apt's configuration.
const APT: &str = "/etc/apt";

/// Minimum size of a disk that holds Debian, in bytes.
pub const SMALLEST_DISK: u64 = 1 << 30;

/// The parameters of a build.
#[derive(Debug, Clone)]
pub struct Request {
    pub name: String,
    pub flavour: Flavour,
    pub ssh: SshServer,
    /// Debian's name of the release.
    pub suite: String,
    /// Addresses or whole lines of `sources.list`; empty: the sources of the runner host's apt.
    pub mirrors: Vec<String>,
    /// In addition to those of every image.
    pub packages: Vec<String>,
    /// Size of the disk as the guest sees it, in bytes.
    pub disk_bytes: u64,
    /// True if jobs can run in containers.
    pub containers: bool,
    pub helper: Option<Helper>,
}

/// The `gitlab-runner` that goes into the guest, for cache and artifacts.
#[derive(Debug, Clone)]
pub struct Helper {
    pub path: PathBuf,
    /// `19.4.0`.
    pub version: Option<String>,
}

/// A completed step.
#[derive(Debug, Clone)]
pub struct Step {
    pub what: &'static str,
    pub took: Duration,
    /// Disk space of its result on the runner host, in bytes.
    pub bytes: u64,
}

/// The progress of a build.
#[derive(Debug, Clone)]
pub enum Progress {
    Began(&'static str),
    Done(Step),
}

/// The reason [`build`](build()) failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("building an image requires root, because packages are unpacked with their owners")]
    NotRoot,
    #[error("building an image requires a Linux runner host with an x86-64 processor")]
    Architecture,
    #[error("the systemd flavour supports only OpenSSH")]
    DropbearUnderSystemd,
    #[error("a disk of {0} bytes is too small: the minimum is {SMALLEST_DISK}")]
    DiskTooSmall(u64),
    #[error("apt has no archive of Debian `{suite}` configured: name one with `--mirror URL`")]
    NoSources { suite: String },
    #[error("{} names no mirror", .0.display())]
    NoMirror(PathBuf),
    #[error("the packages contain no kernel")]
    NoKernel,
    #[error("{} is not a program that runs on this host ({error})", path.display())]
    HelperNotStarted { path: PathBuf, error: io::Error },
    #[error("{} is not a program that runs on this host ({status})", path.display())]
    HelperFailed { path: PathBuf, status: ExitStatus },
    #[error("the kernel cannot be used")]
    Kernel(#[from] KernelError),
    #[error("cannot create the initrd")]
    Initrd(#[from] InitrdError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Helper {
    /// Runs the program to get its version: one that does not run here will not run in the guest.
    pub fn at(path: &Path) -> Result<Self, BuildError> {
        let mut command = Command::new(path);
        command.arg("--version").stdin(Stdio::null());
        let not_started = |error| BuildError::HelperNotStarted { path: path.to_owned(), error };
        let output = command.output().map_err(not_started)?;
        if !output.status.success() {
            return Err(BuildError::HelperFailed { path: path.to_owned(), status: output.status });
        }
        let stdout = String::from_utf8_lossy(&output.stdout);
        let version =
            stdout.lines().find_map(|line| line.strip_prefix("Version:")).map(|v| v.trim().to_owned());
        Ok(Self { path: std::path::absolute(path)?, version })
    }
}

/// The name of the runner host's Debian release: `bookworm`.
pub fn suite_of_machine() -> io::Result<Option<String>> {
    Ok(suite_in(&fs::read_to_string("/etc/os-release")?))
}

fn suite_in(os_release: &str) -> Option<String> {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.trim_matches('"').to_owned())
    };
    value("VERSION_CODENAME").filter(|_| value("ID").is_some_and(|id| id == "debian"))
}

/// Builds an image and puts it in its place; one of the same name is replaced.
pub fn build(
    images: &Images,
    request: &Request,
    report: &mut dyn FnMut(Progress),
) -> Result<Image, BuildError> {
    check(request)?;
    tools::all_there(&Tool::OF_IMAGES)?;
    let sources = sources_for(request)?;
    let work = images.begin(&request.name)?;
    let mut steps = Steps { report };
    let rootfs = Rootfs::in_folder(&work.folder);
    let file = |name: &str| work.folder.join(name);
    steps.take("Debian packages", || {
        rootfs.install(request, &sources, &work.lock)?;
        on_disk(&rootfs.path)
    })?;
    let mut release = String::new();
    steps.take("kernel and initrd", || {
        release = kernel_release(&rootfs)?;
        let vmlinuz = fs::read(rootfs.file("boot").join(format!("vmlinuz-{release}")))?;
        write(&file(KERNEL), &kernel::unpack_kernel(&vmlinuz)?)?;
        let modules = rootfs.file("lib/modules").join(&release);
        write(&file(INITRD), &kernel::make_initrd(&modules, GUEST)?)?;
        Ok(on_disk(&file(KERNEL))? + on_disk(&file(INITRD))?)
    })?;
    let mut engine = None;
    steps.take("guest configuration", || {
        engine = request.containers.then(|| rootfs::installed_engine(&rootfs)).transpose()?;
        rootfs.configure(request, GUEST)?;
        rootfs.strip()?;
        on_disk(&rootfs.path)
    })?;
    steps.take("disk", || {
        make_disk(&rootfs.path, &file(ROOTFS), request.disk_bytes, None)?;
        read_only(&file(ROOTFS))?;
        rootfs.remove()?;
        on_disk(&file(ROOTFS))
    })?;
    let digest = content_digest(&file(KERNEL), &file(INITRD), &file(ROOTFS))?;
    let manifest = Manifest { engine, ..manifest(request, release, digest) };
    write(&file(MANIFEST), &serde_json::to_vec_pretty(&manifest).map_err(io::Error::from)?)?;
    Ok(work.finish(manifest)?)
}

fn check(request: &Request) -> Result<(), BuildError> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(BuildError::Architecture);
    }
    if request.flavour == Flavour::Systemd && request.ssh == SshServer::Dropbear {
        return Err(BuildError::DropbearUnderSystemd);
    }
    if request.disk_bytes < SMALLEST_DISK {
        return Err(BuildError::DiskTooSmall(request.disk_bytes));
    }
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(BuildError::NotRoot) }
}

fn sources_for(request: &Request) -> Result<Vec<String>, BuildError> {
    if !request.mirrors.is_empty() {
        return Ok(request.mirrors.iter().map(|mirror| sources::of_mirror(mirror, &request.suite)).collect());
    }
    let lines = sources::of_machine(Path::new(APT), &request.suite)?;
    if lines.is_empty() { Err(BuildError::NoSources { suite: request.suite.clone() }) } else { Ok(lines) }
}

/// The release of the only installed kernel.
fn kernel_release(rootfs: &Rootfs) -> Result<String, BuildError> {
    for entry in fs::read_dir(rootfs.file("boot"))? {
        let name = entry?.file_name();
        if let Some(release) = name.to_str().and_then(|name| name.strip_prefix("vmlinuz-")) {
            return Ok(release.to_owned());
        }
    }
    Err(BuildError::NoKernel)
}

fn manifest(request: &Request, kernel: String, digest: String) -> Manifest {
    Manifest {
        format: FORMAT,
        name: request.name.clone(),
        flavour: request.flavour,
        ssh: request.ssh,
        suite: request.suite.clone(),
        built: jiff::Timestamp::now(),
        kernel,
        digest,
        disk_bytes: request.disk_bytes / 1024 * 1024,
        helper: request.helper.is_some(),
        helper_version: request.helper.as_ref().and_then(|helper| helper.version.clone()),
        engine: None,
        image_store: request.containers,
        user: "root".to_owned(),
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)?;
    read_only(path)
}

/// Protects a part of an image from changes by mistake.
fn read_only(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, std::fs::Permissions::from_mode(0o444))
}

/// Disk space of a file, or of everything in a folder, in bytes.
pub fn on_disk(path: &Path) -> Result<u64, BuildError> {
    use std::os::unix::fs::MetadataExt as _;
    let own = fs::symlink_metadata(path)?;
    let mut bytes = own.blocks() * 512;
    if own.is_dir() {
        for entry in fs::read_dir(path)? {
            bytes += on_disk(&entry?.path())?;
        }
    }
    Ok(bytes)
}

/// Reports the beginning and the end of each step.
struct Steps<'a> {
    report: &'a mut dyn FnMut(Progress),
}

impl Steps<'_> {
    fn take(
        &mut self,
        what: &'static str,
        work: impl FnOnce() -> Result<u64, BuildError>,
    ) -> Result<(), BuildError> {
        let began = Instant::now();
        (self.report)(Progress::Began(what));
        let bytes = work()?;
        (self.report)(Progress::Done(Step { what, took: began.elapsed(), bytes }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn request() -> Request {
        Request {
            name: "light".to_owned(),
            flavour: Flavour::Light,
            ssh: SshServer::Openssh,
            suite: "bookworm".to_owned(),
            mirrors: Vec::new(),
            packages: Vec::new(),
            disk_bytes: 8 << 30,
            containers: false,
            helper: None,
        }
    }

    #[test]
    fn what_cannot_be_built_is_refused_before_anything_is_begun() {
        let tiny = Request { disk_bytes: 4096, ..request() };
        assert!(matches!(check(&tiny), Err(BuildError::DiskTooSmall(4096))));
        let odd = Request { flavour: Flavour::Systemd, ssh: SshServer::Dropbear, ..request() };
        assert!(matches!(check(&odd), Err(BuildError::DropbearUnderSystemd)));
    }

    #[test]
    fn only_debian_has_a_release_of_debian() {
        assert_eq!(suite_in("ID=debian\nVERSION_CODENAME=bookworm\n").as_deref(), Some("bookworm"));
        assert_eq!(suite_in("ID=\"debian\"\nVERSION_CODENAME=\"trixie\"\n").as_deref(), Some("trixie"));
        assert_eq!(suite_in("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
    }

    #[test]
    fn a_helper_has_to_run_and_says_its_version() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("gitlab-runner");
        fs::write(&path, "#!/bin/sh\nprintf 'Version:      19.4.0\\nGit revision: x\\n'\n").unwrap();
        assert!(matches!(Helper::at(&path), Err(BuildError::HelperNotStarted { .. })), "not executable");
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(Helper::at(&path).unwrap().version.as_deref(), Some("19.4.0"));
    }
}
