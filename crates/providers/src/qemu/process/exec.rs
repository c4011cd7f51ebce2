//! Starts QEMU as a child that has fewer privileges than its supervisor and never outlives it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr};

use crate::supervisor::note;

/// Maximum number of bytes that are read of QEMU's stderr.
const STDERR_LIMIT: u64 = 64 * 1024;

/// A descriptor that the child inherits under the same number.
#[derive(Debug)]
pub(in crate::qemu) struct Passed(OwnedFd);

impl Passed {
    pub(in crate::qemu) fn new(descriptor: impl Into<OwnedFd>) -> Self {
        Self(descriptor.into())
    }

    /// Also returns the path by which the child opens it anew.
    pub(in crate::qemu) fn path(descriptor: OwnedFd) -> (String, Self) {
        (format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Self(descriptor))
    }

    pub(in crate::qemu) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// The QEMU program and the user that runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::qemu) struct Runner {
    /// Absolute.
    pub(in crate::qemu) qemu: PathBuf,
    /// User and group; `None`: those of this process.
    pub(in crate::qemu) identity: Option<(u32, u32)>,
}

impl Runner {
    /// The user that QEMU runs as.
    pub(in crate::qemu) fn uid(&self) -> u32 {
        self.identity.map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid)
    }

    /// Starts QEMU and closes the passed descriptors here. No other thread may start a process meanwhile: it would
    /// inherit the descriptors, too.
    pub(in crate::qemu) fn start(&self, arguments: &[String], passed: Vec<Passed>) -> io::Result<Started> {
        for descriptor in &passed {
            rustix::io::fcntl_setfd(descriptor.0.as_fd(), FdFlags::empty())?;
        }
        let mut command = Command::new("/proc/self/exe");
        command.args(["instance", "qemu", "exec", &std::process::id().to_string()]);
        command.arg(&self.qemu).args(arguments);
        command.env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some((uid, gid)) = self.identity {
            // The change of user drops all other groups.
            command.uid(uid).gid(gid);
        }
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        drop(passed);
        let stderr = child.stderr.take();
        Ok(Started { child, stderr })
    }
}

/// A running QEMU; killed when it is dropped.
#[derive(Debug)]
pub(in crate::qemu) struct Started {
    pub(super) child: Child,
    /// Taken by the task that reads it.
    pub(super) stderr: Option<ChildStderr>,
}

impl Started {
    /// Waits for its exit; also returns the beginning of its stderr.
    pub(in crate::qemu) async fn output(&mut self) -> io::Result<(ExitStatus, String)> {
        let mut output = Vec::new();
        if let Some(stderr) = &mut self.stderr {
            stderr.take(STDERR_LIMIT).read_to_end(&mut output).await?;
        }
        Ok((self.child.wait().await?, String::from_utf8_lossy(&output).into_owned()))
    }

    /// Kills it and waits for its exit.
    pub(in crate::qemu) async fn kill(&mut self) {
        // An error means that it has already exited.
        drop(self.child.kill().await);
    }
}

/// `instance qemu exec SUPERVISOR PROGRAM ARGUMENT…`: executes the program, as a child that dies with its supervisor.
/// Returns only on failure.
pub(super) fn exec(supervisor: &OsString, program: &OsString, arguments: &[OsString]) -> ExitCode {
    let problem = match begin(supervisor) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    };
    note(&format!("cannot run {}: {problem}", program.display()));
    ExitCode::from(127)
}

fn begin(supervisor: &OsString) -> io::Result<()> {
    // After the change of user, which would reset it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // No set-uid program may restore the dropped privileges.
    rustix::thread::set_no_new_privs(true)?;
    // Guest memory holds secrets of jobs.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // RACE: a supervisor that died before the first line causes no signal any more.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if parent.as_deref() != supervisor.to_str() {
        return Err(io::Error::other("its supervisor has exited"));
    }
    Ok(())
}
