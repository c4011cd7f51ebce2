//! Shared parts of fixtures whose instances are on the runner host: clocks, keys, and the process table.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_ports::clock::Clock;
use greenroom_ports::host_keys::Unconnected;
use greenroom_ports::provider::InstanceKeys;
use greenroom_providers::registration::BuildContext;
use greenroom_testkit::clock::ManualClock;
use rustix::process::{Pid, Signal, kill_process};

/// The clocks of this machine.
#[derive(Debug)]
pub struct HereAndNow {
    /// A clock that is ahead of the real one.
    pub ahead: Duration,
}

impl Clock for HereAndNow {
    fn now(&self) -> Stamp {
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let ms = |at: rustix::time::Timespec| at.tv_sec * 1000 + at.tv_nsec / 1_000_000;
        Stamp { wall_ms: ms(wall), manager: ManagerId(1), boot: BootId(1), uptime_ms: ms(up).unsigned_abs() }
            .plus(self.ahead)
    }
}

/// The keys of one client and one host, in files.
pub fn make_keys(state: &Path) {
    for name in ["client", "host"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(state.join(name));
        assert!(keygen.status().expect("ssh-keygen").success());
    }
}

/// The files that [`make_keys`] wrote.
pub fn read_keys(state: &Path) -> InstanceKeys {
    let read = |name: &str| std::fs::read_to_string(state.join(name)).unwrap().trim_end().to_owned();
    InstanceKeys {
        authorized_key: read("client.pub"),
        host_key: read("host"),
        host_key_public: read("host.pub"),
    }
}

/// Every living process with its arguments; zombies have none.
pub fn command_lines() -> Vec<(u32, Vec<String>)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let read = |pid| {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let arguments: Vec<String> = bytes
            .split(|byte| *byte == 0)
            .filter(|argument| !argument.is_empty())
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        (!arguments.is_empty()).then_some((pid, arguments))
    };
    pids.filter_map(read).collect()
}

pub fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Kills processes that may already be gone: one of several may exit with another.
pub fn kill_all(pids: Vec<u32>) {
    for pid in pids {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The context of a provider of the pool `linux` that connects to nothing.
pub fn build_context(state_dir: &Path) -> BuildContext {
    BuildContext {
        pool: PoolName::new("linux"),
        state_dir: state_dir.to_owned(),
        program: "/bin/true".into(),
        containers: false,
        pulls: None,
        clock: Rc::new(ManualClock::default()),
        host_keys: Rc::new(Unconnected),
    }
}
