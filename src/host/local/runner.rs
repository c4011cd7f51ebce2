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
use crate::core::attempt::Sight;

/// How often we look where the kernel cannot tell us.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches the runner. Made at the first question, so that its death before that is noticed too.
#[derive(Debug)]
pub(super) struct Runner {
    /// For the attempt's record; `None` where it cannot be told.
    pub id: Option<ProcessId>,
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
        match parent_of_group() {
            Parent::Is(pid) => Self::watching(pid),
            Parent::Gone => Self { id: None, watch: Watch::Gone },
            Parent::Unknown => Self { id: None, watch: Watch::Never },
        }
    }

    fn watching(pid: Pid) -> Self {
        let fd = pidfd_open(pid, PidfdFlags::empty());
        let start = process::stat(pid.as_raw_pid()).ok().map(|found| found.start);
        // RACE: the runner may die and its pid be used again between our asking and the two lines above. If it is
        // still the parent now, it was all the time.
        match parent_of_group() {
            Parent::Is(still) if still == pid => {}
            _ => return Self { id: None, watch: Watch::Gone },
        }
        let id = start.map(|start| ProcessId { pid: pid.as_raw_pid(), start });
        let watched = fd.map_err(io::Error::from).and_then(watchable);
        let watch = match (watched, id) {
            (Ok(fd), _) => Watch::Pidfd(fd),
            (Err(_), Some(id)) => Watch::Look(id),
            (Err(_), None) => Watch::Never,
        };
        Self { id, watch }
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
                while look(*id) != Sight::Gone {
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

#[derive(Debug, PartialEq, Eq)]
enum Parent {
    Is(Pid),
    Gone,
    Unknown,
}

/// Asked of /proc, not of getpgrp and getsid: those know no number for a group or session outside our namespace.
fn parent_of_group() -> Parent {
    // Zero or no usable /proc: the parent lives outside our process namespace, or cannot be named.
    if Namespaces::own().is_none() {
        return Parent::Unknown;
    }
    let own = getpid().as_raw_pid();
    let Ok(call) = process::stat(own) else { return Parent::Unknown };
    let parent = if call.group == own {
        call.parent
    } else {
        // A wrapper that is no more leaves us its group but not its parent: then our own parent counts.
        process::stat(call.group).map_or(call.parent, |leader| leader.parent)
    };
    match Pid::from_raw(parent) {
        None => Parent::Unknown,
        Some(_) if orphaned(call, parent) => Parent::Gone,
        Some(pid) => Parent::Is(pid),
    }
}

/// Was the group handed to an init after its real parent died? The runner starts its calls in its own session; a
/// parent in another one is an adoptive parent, unless the group leads a session itself (then somebody else than a
/// runner started it, and any parent will do).
fn orphaned(call: Stat, parent: i32) -> bool {
    let Ok(adoptive) = process::stat(parent) else { return false };
    call.session != 0 && adoptive.session != call.session && call.session != call.group
}
