//! Identifies processes, even if their pids are reused.
//!
//! A pid alone is not enough, because pids are reused. A process is identified by its pid and its start time, and both
//! are valid only inside the process namespace they were read in.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::time::Duration;

use greenroom_core::attempt::Presence;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open, test_kill_process};
use serde::{Deserialize, Serialize};

/// The unique identity of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessId {
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

/// The fields of `/proc/PID/stat` that Greenroom uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// Zero if it is outside this process's namespace; so are the next two.
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    pub start: u64,
}

/// The namespaces that a pid and a path were read in, as the kernel names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Namespaces {
    pub mount: String,
    pub pid: String,
}

impl Namespaces {
    /// This process's namespaces; `None` without a usable /proc.
    pub(super) fn own() -> Option<Self> {
        // A /proc of another process namespace numbers processes differently and is not usable.
        let own = fs::read_link("/proc/self").ok()?;
        if own.to_str()?.parse() != Ok(getpid().as_raw_pid()) {
            return None;
        }
        let read = |kind: &str| {
            let link = fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
            link.to_str().map(str::to_owned)
        };
        Some(Self { mount: read("mnt")?, pid: read("pid")? })
    }
}

pub(super) fn stat(pid: i32) -> io::Result<Stat> {
    // One read returns all needed fields together.
    let mut bytes = [0_u8; 1024];
    let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut bytes)?;
    parse(&String::from_utf8_lossy(&bytes[..length]))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not in the format of proc(5)"))
}

/// The name in parentheses may contain blanks and parentheses itself, so fields are counted from the last parenthesis.
fn parse(text: &str) -> Option<Stat> {
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let number = |n: usize| fields.get(n).and_then(|field| field.parse::<i32>().ok());
    Some(Stat {
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// Checks once. `Gone` is the result of this check only; `core::attempt` decides when it counts.
pub(super) fn presence(process: ProcessId) -> Presence {
    let Some(pid) = Pid::from_raw(process.pid) else { return Presence::Unknown };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => {
            // A zombie has ended, although its pid is in use.
            let mut ended = [PollFd::new(&fd, PollFlags::IN)];
            if matches!(poll(&mut ended, Some(&Timespec::default())), Ok(1..)) {
                return Presence::Gone;
            }
        }
        Err(Errno::SRCH) => return Presence::Gone,
        // An old kernel, or a seccomp filter that does not support the call.
        Err(_) => {
            if test_kill_process(pid) == Err(Errno::SRCH) {
                return Presence::Gone;
            }
        }
    }
    // The pid is in use. With `hidepid`, its process may be invisible.
    match stat(process.pid) {
        Ok(found) if found.start == process.start => Presence::There,
        Ok(_) => Presence::Gone,
        Err(_) => Presence::Unknown,
    }
}

/// Delay between the two checks that must both return `Gone`.
pub(super) const RECHECK_DELAY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_name_a_process_gives_itself_is_read_over(name in "\\PC{0,15}") {
            let text = format!("42 ({name}) S 7 42 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3\n");
            prop_assert_eq!(parse(&text), Some(Stat { parent: 7, group: 42, session: 5, start: 98765 }));
        }
    }

    #[test]
    fn a_living_process_is_there_and_an_imposter_with_its_pid_is_not() {
        let own = i32::try_from(std::process::id()).unwrap();
        let start = stat(own).unwrap().start;
        assert_eq!(presence(ProcessId { pid: own, start }), Presence::There);
        assert_eq!(presence(ProcessId { pid: own, start: start + 1 }), Presence::Gone);
    }

    #[test]
    fn a_zombie_and_a_reaped_process_are_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let known = ProcessId { pid, start: stat(pid).unwrap().start };
        assert_eq!(presence(known), Presence::There);
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while presence(known) != Presence::Gone {
            assert!(std::time::Instant::now() < deadline, "a zombie still counts as there");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(presence(known), Presence::Gone);
    }

    #[test]
    fn our_own_namespaces_have_names() {
        let own = Namespaces::own().unwrap();
        assert!(own.mount.starts_with("mnt:[") && own.pid.starts_with("pid:["), "{own:?}");
    }
}
