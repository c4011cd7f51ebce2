//! The runner that started this call, and whether it is still running.
//!
//! The runner starts each call in a process group of its own, in the runner's session. The group's leader is the call
//! itself, or a script around it; the leader's parent is the runner.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use greenroom_core::attempt::Presence;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::process::{self, Namespaces, ProcessId, Stat, presence};

/// Polling interval where the kernel cannot notify.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the runner. Created on first use, and detects an exit before that too.
#[derive(Debug)]
pub(super) struct Runner {
    /// For the attempt's record; `None` if it is unknown.
    pub id: Option<ProcessId>,
    /// This process's namespaces, in which `id` is valid.
    pub namespaces: Option<Namespaces>,
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    Pidfd(AsyncFd<OwnedFd>),
    /// No pidfd is available: an old kernel or a strict filter.
    Poll(ProcessId),
    /// It had exited before the first check.
    Gone,
    /// It cannot be identified: the call is the first process of a container.
    Never,
}

impl Runner {
    /// Finds the runner of this process.
    pub(super) fn find() -> Self {
        // Without a usable /proc, no process can be identified.
        let namespaces = Namespaces::own();
        let unknown = |namespaces| Self { id: None, namespaces, watch: Watch::Never };
        if namespaces.is_none() {
            return unknown(namespaces);
        }
        let Ok(call) = process::stat(getpid().as_raw_pid()) else { return unknown(namespaces) };
        let eldest = Eldest::of(call);
        // Zero: the parent is outside this process's namespace.
        let Some(parent) = Pid::from_raw(eldest.parent) else { return unknown(namespaces) };
        let fd = pidfd_open(parent, PidfdFlags::empty());
        let runner = process::stat(eldest.parent).ok();
        // RACE: the runner may die and its pid be reused between reading the parent and the two lines above. If it is
        // still the parent now, it was all the time.
        if runner.is_some_and(|runner| adopted(call, runner)) || !eldest.still_has_parent() {
            return Self { id: None, namespaces, watch: Watch::Gone };
        }
        let id = runner.map(|runner| ProcessId { pid: eldest.parent, start: runner.start });
        let watch = match (fd.map_err(io::Error::from).and_then(watchable), id) {
            (Ok(fd), _) => Watch::Pidfd(fd),
            (Err(_), Some(id)) => Watch::Poll(id),
            (Err(_), None) => Watch::Never,
        };
        Self { id, namespaces, watch }
    }

    /// A copy of the runner's pidfd, if there is one.
    pub(super) fn pidfd(&self) -> Option<OwnedFd> {
        match &self.watch {
            Watch::Pidfd(fd) => fd.get_ref().try_clone().ok(),
            Watch::Poll(_) | Watch::Gone | Watch::Never => None,
        }
    }

    /// Resolves when the runner is gone.
    pub(super) async fn gone(&self) {
        match &self.watch {
            Watch::Pidfd(fd) => {
                if fd.readable().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            Watch::Poll(id) => {
                while presence(*id) != Presence::Gone {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
            Watch::Gone => {}
            Watch::Never => std::future::pending().await,
        }
    }
}

#[expect(deprecated, reason = "its successor is unsafe; what it asks for, an OwnedFd always keeps")]
fn watchable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
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
        let leader = if call.group == own { None } else { process::stat(call.group).ok() };
        match leader {
            Some(leader) => Self { pid: call.group, parent: leader.parent },
            // A wrapper that has exited leaves its group but not its parent: then this process's own parent counts.
            None => Self { pid: own, parent: call.parent },
        }
    }

    fn still_has_parent(self) -> bool {
        process::stat(self.pid).is_ok_and(|now| now.parent == self.parent)
    }
}

/// True if an init adopted the group after its real parent died. The runner starts its calls in its own session, so a
/// parent in another session has adopted the group. A group that leads a session itself was not started by a runner,
/// and any parent is accepted.
fn adopted(call: Stat, parent: Stat) -> bool {
    call.session != 0 && parent.session != call.session && call.session != call.group
}
