//! `/init` of the initrd: drivers, the disk, and over to what lies on it.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::naming;
use crate::say;
use crate::sys::{self, MS_MOVE, MS_NOATIME, MS_NODEV, MS_NOEXEC, MS_NOSUID};

/// The modules to load, one path a line, each after those that it needs.
const MODULES: &str = "/modules";
const DISK: &str = "/dev/vda";
/// In sectors.
const DISK_SIZE: &str = "/sys/class/block/vda/size";
const SECTOR: u64 = 512;
/// What mke2fs makes of disks of this size.
const BLOCK: u64 = 4096;
const NEW_ROOT: &str = "/sysroot";

/// A disk that has not appeared after so long will not.
const DISK_WAIT: Duration = Duration::from_secs(30);
const DISK_LOOK: Duration = Duration::from_millis(5);

/// What the kernel offers as file systems, and where.
const KERNEL_MOUNTS: [(&str, &str, std::ffi::c_ulong); 3] = [
    ("devtmpfs", "/dev", MS_NOSUID | MS_NOEXEC),
    ("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC),
    ("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC),
];

/// Becomes the disk's `/sbin/init`; returns only with an error, and the kernel panics.
pub(crate) fn boot() -> io::Result<()> {
    for (kind, at, flags) in KERNEL_MOUNTS {
        fs::create_dir_all(at).map_err(naming(at))?;
        sys::mount_at(kind, Path::new(at), kind, flags, "").map_err(naming(at))?;
    }
    load_modules()?;
    wait_for_disk()?;
    let root = Path::new(NEW_ROOT);
    fs::create_dir_all(root)?;
    // The disk is new for every machine: no inode table is worth clearing in the background.
    sys::mount_at(DISK, root, "ext4", MS_NOATIME, "noinit_itable").map_err(naming(DISK))?;
    if let Err(error) = fill_disk(root) {
        say(&format!("cannot grow the file system to the size of its disk: {error}"));
    }
    give_memory_back();
    for (_, at, _) in KERNEL_MOUNTS {
        sys::mount_at(at, &root.join(at.trim_start_matches('/')), "", MS_MOVE, "").map_err(naming(at))?;
    }
    std::env::set_current_dir(root)?;
    sys::mount_at(".", Path::new("/"), "", MS_MOVE, "").map_err(naming("moving to the disk"))?;
    sys::enter_root(Path::new("."))?;
    Err(naming("/sbin/init")(Command::new("/sbin/init").exec()))
}

fn load_modules() -> io::Result<()> {
    let list = fs::read_to_string(MODULES).map_err(naming(MODULES))?;
    for path in list.lines().filter(|line| !line.is_empty()) {
        let file = fs::File::open(path).map_err(naming(path))?;
        sys::load_module(&file).map_err(naming(path))?;
    }
    Ok(())
}

fn wait_for_disk() -> io::Result<()> {
    let deadline = Instant::now() + DISK_WAIT;
    while !Path::new(DISK).exists() {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("the disk {DISK} did not appear")));
        }
        sleep(DISK_LOOK);
    }
    Ok(())
}

/// The disk may be larger than the image's.
fn fill_disk(root: &Path) -> io::Result<()> {
    let text = fs::read_to_string(DISK_SIZE).map_err(naming(DISK_SIZE))?;
    let sectors: u64 = text.trim_end().parse().map_err(io::Error::other)?;
    sys::grow_ext4(root, sectors * SECTOR / BLOCK)
}

/// The initrd lies in memory; what is left of it is never used again.
fn give_memory_back() {
    fs::remove_dir_all("/lib").ok();
    for file in [MODULES, "/init"] {
        fs::remove_file(file).ok();
    }
}
