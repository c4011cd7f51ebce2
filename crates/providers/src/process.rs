//! Processes of the runner host, distinguished from later ones with the same pid.

use std::io;

use fs_err as fs;
use greenroom_system::process::Stat;
use rustix::process::{Pid, PidfdFlags, Signal};

/// One line of the process table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub session: i32,
    /// Start time in clock ticks since boot; distinguishes it from a later process with the same pid.
    pub started: u64,
    /// Has exited, but its parent has not waited for it yet.
    pub zombie: bool,
}

impl Process {
    /// The process with a pid; `None`: it does not exist.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid).ok()?;
        let Stat { parent, session, start, .. } = stat;
        Some(Self { pid, parent, session, started: start, zombie: stat.has_exited() })
    }

    /// Everything in the process table.
    pub fn all() -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            found.extend(pid.and_then(Self::of));
        }
        Ok(found)
    }
}

/// Signals exactly this process, never a later one with the same pid.
pub fn signal(process: &Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    // RACE: the handle is taken first; if pid and start time match now, the handle is the process's.
    if Process::of(process.pid).is_some_and(|now| now.started == process.started) {
        // A process that has exited needs no signal. A refusal (another user's process) shows in the next check.
        let _ = rustix::process::pidfd_send_signal(&handle, signal);
    }
}

/// The kernel's id of the current boot.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_is_in_the_table() {
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(!own.zombie && own.started > 0);
        assert!(Process::all().unwrap().contains(&own));
    }
}
