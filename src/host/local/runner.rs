//! The runner that called us, and whether it still lives.
//!
//! The runner starts each call in a process group of its own, in the runner's session. The group's leader is the call
//! itself, or a script around it; the leader's parent is the runner.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::process::{self, Namespaces, ProcessId, Stat, look};
use crate::core::attempt::Presence;

/// How often we look where the kernel cannot tell us.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches the runner. Made at the first question, so that its death before that is noticed too.
#[derive(Debug)]
pub(super) struct Runner {
    /// For the attempt's record; `None` where it cannot be told.
    pub id: Option<ProcessId>,
    /// Ours, in which `id` means something.
    pub namespaces: Option<Namespaces>,
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    Pidfd(AsyncFd<OwnedFd>),
    /// No pidfd here: an old kernel or a strict filter.
    Look(ProcessId),
    /// It was gone before we could look.
    Gone,
    /// Nobody we could name: the first process of a container.
    Never,
}

impl Runner {
    /// Finds the runner of this process.
    pub(super) fn find() -> Self {
        // Without a usable /proc nobody can be named.
        let namespaces = Namespaces::own();
        let unknown = |namespaces| Self { id: None, namespaces, watch: Watch::Never };
        if namespaces.is_none() {
            return unknown(namespaces);
        }
        let Ok(call) = process::stat(getpid().as_raw_pid()) else { return unknown(namespaces) };
        let eldest = Eldest::of(call);
        // Zero: the parent lives outside our process namespace.
        let Some(parent) = Pid::from_raw(eldest.parent) else { return unknown(namespaces) };
        let fd = pidfd_open(parent, PidfdFlags::empty());
        let runner = process::stat(eldest.parent).ok();
        // RACE: the runner may die and its pid be used again between our asking and the two lines above. If it is
        // still the parent now, it was all the time.
        if runner.is_some_and(|runner| adopted(call, runner)) || !eldest.still_has_parent() {
            return Self { id: None, namespaces, watch: Watch::Gone };
        }
        let id = runner.map(|runner| ProcessId { pid: eldest.parent, start: runner.start });
        let watch = match (fd.map_err(io::Error::from).and_then(watchable), id) {
            (Ok(fd), _) => Watch::Pidfd(fd),
            (Err(_), Some(id)) => Watch::Look(id),
            (Err(_), None) => Watch::Never,
        };
        Self { id, namespaces, watch }
    }

    /// A copy of the descriptor that says when the runner is gone, where there is one.
    pub(super) fn pidfd(&self) -> Option<OwnedFd> {
        match &self.watch {
            Watch::Pidfd(fd) => fd.get_ref().try_clone().ok(),
            Watch::Look(_) | Watch::Gone | Watch::Never => None,
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
            Watch::Look(id) => {
                while look(*id) != Presence::Gone {
                    tokio::time::sleep(LOOK_EVERY).await;
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

/// The process of this call that the runner itself started: the leader of our group, or we.
///
/// Asked of /proc, not of getpgrp and getsid: those know no number for a group or session outside our namespace.
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
            // A wrapper that is no more leaves us its group but not its parent: then our own parent counts.
            None => Self { pid: own, parent: call.parent },
        }
    }

    fn still_has_parent(self) -> bool {
        process::stat(self.pid).is_ok_and(|now| now.parent == self.parent)
    }
}

/// Was the group handed to an init after its real parent died? The runner starts its calls in its own session; a
/// parent in another one is an adoptive parent, unless the group leads a session itself (then somebody else than a
/// runner started it, and any parent will do).
fn adopted(call: Stat, parent: Stat) -> bool {
    call.session != 0 && parent.session != call.session && call.session != call.group
}
