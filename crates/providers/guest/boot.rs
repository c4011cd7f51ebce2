//! The way from the kernel to a running machine: `/init` of the initrd, and process 1 of a light machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::ssh::quiet;
use crate::sys::{self, End, MS_MOVE, MS_NOATIME, MS_NODEV, MS_NOEXEC, MS_NOSUID};
use crate::{naming, say};

/// The modules to load, one path a line, each after those that it needs.
const INITRD_MODULES: &str = "/modules";
const DISK: &str = "/dev/vda";
/// The size of the disk, in sectors.
const DISK_SIZE: &str = "/sys/class/block/vda/size";
const SECTOR: u64 = 512;
/// The size of the blocks that mke2fs makes on disks of this size.
const BLOCK: u64 = 4096;
const NEW_ROOT: &str = "/sysroot";

/// A disk that has not appeared after so long will not.
const DISK_WAIT: Duration = Duration::from_secs(30);
const DISK_LOOK: Duration = Duration::from_millis(5);

/// The kernel's own file systems: type, mount point, flags.
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
    load_initrd_modules()?;
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

fn load_initrd_modules() -> io::Result<()> {
    let list = fs::read_to_string(INITRD_MODULES).map_err(naming(INITRD_MODULES))?;
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

/// Grows the file system to the size of the disk, which may be larger than the image's.
fn fill_disk(root: &Path) -> io::Result<()> {
    let text = fs::read_to_string(DISK_SIZE).map_err(naming(DISK_SIZE))?;
    let sectors: u64 = text.trim_end().parse().map_err(io::Error::other)?;
    sys::grow_ext4(root, sectors * SECTOR / BLOCK)
}

/// Removes the rest of the initrd, which takes memory and is never used again.
fn give_memory_back() {
    fs::remove_dir_all("/lib").ok();
    for file in [INITRD_MODULES, "/init"] {
        fs::remove_file(file).ok();
    }
}

/// The signals by which other processes have process 1 end the machine.
pub(crate) const POWER_OFF: i32 = sys::SIGUSR2;
pub(crate) const REBOOT: i32 = sys::SIGTERM;

/// Open files: the soft and the hard limit.
const FILES: (u64, u64) = (65_536, 1_048_576);

/// A service that ended is started again so much later.
const START_AGAIN: Duration = Duration::from_secs(1);

/// The path of this program in the image.
const PROGRAM: &str = "/usr/lib/greenroom/greenroom-guest";

/// The names of kernel modules, a line each, where systemd would read them.
const MODULES: &str = "/etc/modules-load.d/greenroom.conf";

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Sends process 1 a signal.
pub(crate) fn signal_init(signal: i32) -> io::Result<()> {
    sys::send_signal(1, signal).map_err(naming("sending a signal to process 1"))
}

/// Runs the machine until it is powered off.
pub(crate) fn init() -> io::Result<()> {
    let signals = sys::Signals::block(&[sys::SIGCHLD, POWER_OFF, REBOOT, sys::SIGINT, sys::SIGHUP])?;
    mount_all()?;
    if let Err(error) = load_modules() {
        // The machine serves jobs that need none of them.
        say(&format!("cannot load kernel modules: {error}"));
    }
    sys::limit_files(FILES.0, FILES.1).map_err(naming("limits"))?;
    std::env::set_current_dir("/")?;
    let now = Instant::now();
    let due = BTreeMap::from([(Service::Agent, now), (Service::Ssh, now)]);
    let mut services = Services { running: BTreeMap::new(), due };
    loop {
        services.start_due();
        match signals.wait(services.next_start())? {
            Some(POWER_OFF) => return Err(sys::end_machine(End::PowerOff)),
            // Ctrl-Alt-Del arrives as an interrupt.
            Some(REBOOT | sys::SIGINT) => return Err(sys::end_machine(End::Restart)),
            _ => {}
        }
        while let Some(pid) = sys::reap() {
            services.ended(pid);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Service {
    Agent,
    /// Waits until the machine is itself.
    Ssh,
}

impl Service {
    /// The argument of this program that runs the service.
    fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Ssh => "ssh",
        }
    }
}

/// The running services, and those that are to be started.
struct Services {
    /// The running services, by process number.
    running: BTreeMap<u32, Service>,
    due: BTreeMap<Service, Instant>,
}

impl Services {
    fn start_due(&mut self) {
        let now = Instant::now();
        let due: Vec<Service> = self.due.iter().filter(|(_, at)| **at <= now).map(|(s, _)| *s).collect();
        for service in due {
            self.due.remove(&service);
            let mut command = Command::new(PROGRAM);
            command.arg(service.as_str()).env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
            match sys::Signals::unblocked(&mut command).spawn() {
                Ok(child) => drop(self.running.insert(child.id(), service)),
                Err(error) => {
                    say(&format!("{service:?}: {error}"));
                    self.due.insert(service, now + START_AGAIN);
                }
            }
        }
    }

    fn ended(&mut self, pid: u32) {
        if let Some(service) = self.running.remove(&pid) {
            say(&format!("{service:?} exited; restarting it"));
            self.due.insert(service, Instant::now() + START_AGAIN);
        }
    }

    /// Time until a service is to be started.
    fn next_start(&self) -> Duration {
        let now = Instant::now();
        let next = self.due.values().map(|at| at.saturating_duration_since(now)).min();
        next.unwrap_or(Duration::from_hours(1))
    }
}

/// Loads the kernel modules that the image names, with those that they need.
fn load_modules() -> io::Result<()> {
    let names = match fs::read_to_string(MODULES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(naming(MODULES))?,
    };
    let mut modprobe = Command::new("modprobe");
    modprobe.arg("--all").args(names.lines()).env_clear().env("PATH", PATH);
    quiet(sys::Signals::unblocked(&mut modprobe))
}

/// Mounts everything but /tmp, which stays on the disk: that is thrown away like memory, but larger.
fn mount_all() -> io::Result<()> {
    let plain = MS_NOSUID | MS_NODEV;
    for (kind, at, flags, options) in [
        ("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"),
        ("tmpfs", "/dev/shm", plain, "mode=1777"),
        ("tmpfs", "/run", plain, "mode=755"),
        ("cgroup2", "/sys/fs/cgroup", plain | MS_NOEXEC, ""),
    ] {
        fs::create_dir_all(at).map_err(naming(at))?;
        sys::mount_at(kind, Path::new(at), kind, flags, options).map_err(naming(at))?;
    }
    // Where Debian's programs expect to write; sshd insists on the first.
    for dir in ["/run/sshd", "/run/lock", "/run/user"] {
        fs::create_dir_all(dir).map_err(naming(dir))?;
    }
    for (to, link) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ] {
        symlink(to, link).map_err(naming(link))?;
    }
    Ok(())
}
