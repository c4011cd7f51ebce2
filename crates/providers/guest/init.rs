//! Process 1 of a light machine: mounts, limits, two services, and whoever loses its parent.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::naming;
use crate::say;
use crate::ssh::quiet;
use crate::sys::{self, End, MS_NODEV, MS_NOEXEC, MS_NOSUID};

/// What other processes ask process 1 for, by signal.
pub(crate) const POWER_OFF: i32 = sys::SIGUSR2;
pub(crate) const REBOOT: i32 = sys::SIGTERM;

/// Open files: what programs may have, and what they may ask for.
const FILES: (u64, u64) = (65_536, 1_048_576);

/// A service that ended is started again so much later.
const START_AGAIN: Duration = Duration::from_secs(1);

/// This program, where the image has it.
const PROGRAM: &str = "/usr/lib/greenroom/greenroom-guest";

/// Names of kernel modules, a line each, where systemd would read them.
const MODULES: &str = "/etc/modules-load.d/greenroom.conf";

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Sends process 1 a signal.
pub(crate) fn ask(signal: i32) -> io::Result<()> {
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
    /// What this program is called with.
    fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Ssh => "ssh",
        }
    }
}

/// What runs and what is to run.
struct Services {
    /// By process number.
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
            command.arg(service.word()).env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
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

    /// How long until a service is to be started.
    fn next_start(&self) -> Duration {
        let now = Instant::now();
        let next = self.due.values().map(|at| at.saturating_duration_since(now)).min();
        next.unwrap_or(Duration::from_hours(1))
    }
}

/// Loads what the image names, with what that needs.
fn load_modules() -> io::Result<()> {
    let names = match fs::read_to_string(MODULES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(naming(MODULES))?,
    };
    let mut modprobe = Command::new("modprobe");
    modprobe.arg("--all").args(names.lines()).env_clear().env("PATH", PATH);
    quiet(sys::Signals::unblocked(&mut modprobe))
}

/// /tmp stays on the disk, which is thrown away like memory but larger.
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
