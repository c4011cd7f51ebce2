//! The runner that started this call, whether it is still running, and how processes are identified.
//!
//! The runner starts each call in a process group of its own, in the runner's session. The group's leader is the call
//! itself, or a script around it; the leader's parent is the runner.
//!
//! Pids are reused. So a process is identified by its pid and its start time, and both are valid only inside the process
//! namespace they were read in.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use greenroom_core::attempt::Presence;
use greenroom_system::process::{Stat, has_exited, watch_exit};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open, test_kill_process};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

/// Polling interval where the kernel cannot notify.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the runner. Created on first use, and detects an exit before that too.
#[derive(Debug)]
pub(super) struct Runner {
    /// The runner's identity, for the attempt's record; `None` if it is unknown.
    pub id: Option<ProcessId>,
    /// The namespaces of this process, in which `id` is valid.
    pub namespaces: Option<Namespaces>,
    watch: ExitWatch,
}

#[derive(Debug)]
enum ExitWatch {
    Pidfd(AsyncFd<OwnedFd>),
    /// No pidfd is available: an old kernel or a strict filter.
    Poll(ProcessId),
    /// The runner had exited before the first check.
    Gone,
    /// The runner cannot be identified: the call is the first process of a container.
    Never,
}

impl Runner {
    /// Finds the runner of this process.
    pub(super) fn find() -> Self {
        // Without a usable /proc, no process can be identified.
        let namespaces = Namespaces::own();
        let unknown = |namespaces| Self { id: None, namespaces, watch: ExitWatch::Never };
        if namespaces.is_none() {
            return unknown(namespaces);
        }
        let Ok(call) = Stat::of(getpid().as_raw_pid()) else { return unknown(namespaces) };
        let eldest = Eldest::of(call);
        // Zero: the parent is outside this process's namespace.
        let Some(parent) = Pid::from_raw(eldest.parent) else { return unknown(namespaces) };
        let fd = pidfd_open(parent, PidfdFlags::empty());
        let runner = Stat::of(eldest.parent).ok();
        // RACE: the runner may die and its pid be reused between reading the parent and the two lines above. If it is
        // still the parent now, it was all the time.
        if runner.is_some_and(|runner| adopted(call, runner)) || !eldest.still_has_parent() {
            return Self { id: None, namespaces, watch: ExitWatch::Gone };
        }
        let id = runner.map(|runner| ProcessId { pid: eldest.parent, start: runner.start });
        let watch = match (fd.map_err(io::Error::from).and_then(watch_exit), id) {
            (Ok(fd), _) => ExitWatch::Pidfd(fd),
            (Err(_), Some(id)) => ExitWatch::Poll(id),
            (Err(_), None) => ExitWatch::Never,
        };
        Self { id, namespaces, watch }
    }

    /// A copy of the runner's pidfd, if there is one.
    pub(super) fn pidfd(&self) -> Option<OwnedFd> {
        match &self.watch {
            ExitWatch::Pidfd(fd) => fd.get_ref().try_clone().ok(),
            ExitWatch::Poll(_) | ExitWatch::Gone | ExitWatch::Never => None,
        }
    }

    /// Resolves when the runner is gone.
    pub(super) async fn gone(&self) {
        match &self.watch {
            ExitWatch::Pidfd(fd) => {
                if fd.readable().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            ExitWatch::Poll(id) => {
                while presence(*id) != Presence::Gone {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
            ExitWatch::Gone => {}
            ExitWatch::Never => std::future::pending().await,
        }
    }
}

/// The process of this call that the runner itself started: the leader of the process group, or this process.
///
/// Read from /proc, because getpgrp and getsid have no number for a group or session outside the namespace.
#[derive(Debug, Clone, Copy)]
struct Eldest {
    pid: i32,
    parent: i32,
}

impl Eldest {
    fn of(call: Stat) -> Self {
        let own = getpid().as_raw_pid();
        let leader = if call.group == own { None } else { Stat::of(call.group).ok() };
        match leader {
            Some(leader) => Self { pid: call.group, parent: leader.parent },
            // A wrapper that has exited leaves its group but not its parent: then this process's own parent counts.
            None => Self { pid: own, parent: call.parent },
        }
    }

    fn still_has_parent(self) -> bool {
        Stat::of(self.pid).is_ok_and(|now| now.parent == self.parent)
    }
}

/// True if an init adopted the group after its real parent died. The runner starts its calls in its own session, so a
/// parent in another session has adopted the group. A group that leads a session itself was not started by a runner,
/// and any parent is accepted.
fn adopted(call: Stat, parent: Stat) -> bool {
    call.session != 0 && parent.session != call.session && call.session != call.group
}

/// The unique identity of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessId {
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

/// The namespaces that a pid and a path were read in, as the kernel names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Namespaces {
    pub mount: String,
    pub pid: String,
}

impl Namespaces {
    /// Reads this process's namespaces; `None` without a usable /proc.
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

/// Checks once. [`Presence::Gone`] is the result of this check only; `core::attempt` decides when it counts.
pub(super) fn presence(process: ProcessId) -> Presence {
    let Some(pid) = Pid::from_raw(process.pid) else { return Presence::Unknown };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => {
            // A zombie has ended, although its pid is in use.
            if has_exited(&fd, Duration::ZERO) {
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
    match Stat::of(process.pid) {
        Ok(found) if found.start == process.start => Presence::There,
        Ok(_) => Presence::Gone,
        Err(_) => Presence::Unknown,
    }
}

/// Delay between the two checks that must both return [`Presence::Gone`].
pub(super) const RECHECK_DELAY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_living_process_is_there_and_an_imposter_with_its_pid_is_not() {
        let own = i32::try_from(std::process::id()).unwrap();
        let start = Stat::of(own).unwrap().start;
        assert_eq!(presence(ProcessId { pid: own, start }), Presence::There);
        assert_eq!(presence(ProcessId { pid: own, start: start + 1 }), Presence::Gone);
    }

    #[test]
    fn a_zombie_and_a_reaped_process_are_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let known = ProcessId { pid, start: Stat::of(pid).unwrap().start };
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
