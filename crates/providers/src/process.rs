//! Processes of the runner host, distinguished from later ones with the same pid.

use std::io;

use fs_err as fs;
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
    /// Field numbers as in proc(5); the name in brackets may contain anything, brackets included.
    fn parse(stat: &str) -> Option<Self> {
        let pid = stat.split(' ').next()?.parse().ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        let zombie = matches!(*fields.first()?, "Z" | "X");
        let parent = fields.get(1)?.parse().ok()?;
        let session = fields.get(3)?.parse().ok()?;
        let started = fields.get(19)?.parse().ok()?;
        Some(Self { pid, parent, session, started, zombie })
    }

    /// The process with a pid; `None`: it does not exist.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
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
    fn a_name_full_of_brackets_confuses_nobody() {
        let rest = "S 1 41 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987 1 2 3";
        let process = Process::parse(&format!("42 (a) b (c) {rest}")).unwrap();
        assert_eq!(process, Process { pid: 42, parent: 1, session: 40, started: 987, zombie: false });
        assert_eq!(Process::parse("42 (a"), None);
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(!own.zombie && own.started > 0);
    }
}
