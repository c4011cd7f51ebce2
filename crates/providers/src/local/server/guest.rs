//! The state that the parts of an instance's process share.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Spec, note, own_program, processes};
use crate::instance_dir::InstanceDir;
use crate::launch::passed_on;
use crate::local::processes::{COOKIE, Session};
use crate::process::{self, Process};

/// Used if this process's environment has no `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The instance, from the inside.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) dir: InstanceDir,
    pub(super) spec: Spec,
    /// The login name that all programs run as.
    pub(super) user: String,
    /// Started sessions in which processes may be left. Also on disk, for the process that removes the instance.
    pub(super) sessions: Mutex<BTreeSet<Session>>,
}

impl Guest {
    fn sessions(&self) -> MutexGuard<'_, BTreeSet<Session>> {
        // The set is consistent between any two operations, even after a panic.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command that will run in a session of its own, recorded before its program begins.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(own_program());
        command.args(["instance", "session"]).arg(&self.dir.path).arg(program);
        command.env_clear().envs(self.environment());
        command.current_dir(self.dir.file("work"));
        command
    }

    /// The whole environment of a program on the instance.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut environment = vec![("PATH", OsString::from(PATH))];
        environment.extend(passed_on());
        environment.extend([
            ("HOME", self.dir.file("home").into_os_string()),
            ("USER", OsString::from(&self.user)),
            ("LOGNAME", OsString::from(&self.user)),
            ("SHELL", OsString::from("/bin/sh")),
            (COOKIE, OsString::from(&self.spec.cookie)),
        ]);
        environment
    }

    /// Adds the session of a leader that has just been started.
    pub(super) fn started(&self, pid: Option<u32>) {
        let process = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Process::of);
        if let Some(Process { pid, started, .. }) = process {
            self.sessions().insert(Session { leader: pid, started });
        }
    }

    /// Removes the sessions in which no process is left.
    pub(super) fn sweep(&self) {
        let mut sessions = self.sessions();
        if sessions.is_empty() {
            return;
        }
        for session in processes::ended(&sessions) {
            sessions.remove(&session);
            drop(std::fs::remove_file(self.dir.file("sessions").join(session.name())));
        }
    }

    /// Kills all processes on the instance; returns how many are left.
    pub(super) fn end_all(&self) -> usize {
        // A recorded session may be missing here: an earlier process of the instance was its parent.
        let mut sessions = self.sessions().clone();
        sessions.extend(Session::recorded(&self.dir.file("sessions")).iter().filter(|_| self.is_this_boot()));
        processes::end_all(&self.spec.cookie, &sessions).unwrap_or_else(|error| {
            note(&format!("cannot list processes: {error}"));
            1
        })
    }

    fn is_this_boot(&self) -> bool {
        let served = self.dir.served().ok().flatten();
        let boot = process::boot_id().ok();
        served.is_some_and(|served| Some(served.boot) == boot)
    }
}
