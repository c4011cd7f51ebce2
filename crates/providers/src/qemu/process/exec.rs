//! QEMU's program, the user that runs it, and its start as a child that has fewer privileges than its supervisor and never
//! outlives it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr};

use crate::qemu::settings::{Accel, Settings};
use crate::supervised::supervisor::note;

/// Maximum number of bytes that are read of QEMU's stderr.
const STDERR_LIMIT: u64 = 64 * 1024;

/// A descriptor that the child inherits under the same number.
#[derive(Debug)]
pub(in crate::qemu) struct PassedDescriptor(OwnedFd);

impl PassedDescriptor {
    pub(in crate::qemu) fn new(descriptor: impl Into<OwnedFd>) -> Self {
        Self(descriptor.into())
    }

    /// Passes on a descriptor; also returns the path by which the child opens its file again.
    pub(in crate::qemu) fn path(descriptor: OwnedFd) -> (String, Self) {
        (format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Self(descriptor))
    }

    pub(in crate::qemu) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// The reason there is no [`QemuProgram`] for these settings.
#[derive(Debug, thiserror::Error)]
pub(in crate::qemu) enum ProgramError {
    #[error("{} is not installed: `apt-get install qemu-system-x86`", .0.display())]
    Missing(PathBuf),
    #[error("unknown user `{0}`")]
    UnknownUser(String),
    #[error("`user` is root: a guest that escapes from QEMU would control the runner host")]
    Root,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The QEMU program and the user that runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::qemu) struct QemuProgram {
    /// Absolute.
    pub(in crate::qemu) qemu: PathBuf,
    /// User and group; `None`: those of this process.
    pub(in crate::qemu) identity: Option<(u32, u32)>,
}

impl QemuProgram {
    /// The configured QEMU and its user.
    pub(in crate::qemu) fn configured(settings: &Settings) -> Result<Self, ProgramError> {
        let qemu = if let Some(named) = &settings.qemu {
            named.is_file().then(|| named.clone()).ok_or_else(|| ProgramError::Missing(named.clone()))?
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            on_path(&path).ok_or_else(|| ProgramError::Missing(QEMU.into()))?
        };
        let is_root = rustix::process::geteuid().is_root();
        let identity = if is_root { Some(identity(settings)?) } else { None };
        Ok(Self { qemu, identity })
    }

    /// QEMU under the user ID of one machine. Its group is the one that may use KVM, otherwise one of the machine's own.
    pub(in crate::qemu) fn under(&self, uid: u32, accel: Accel) -> Self {
        let kvm = if accel == Accel::Tcg { None } else { kvm_group(Path::new(KVM)) };
        Self { identity: Some((uid, kvm.unwrap_or(uid))), ..self.clone() }
    }

    /// The user that QEMU runs as.
    pub(in crate::qemu) fn uid(&self) -> u32 {
        self.identity.map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid)
    }

    /// Starts QEMU and closes the passed descriptors here. No other thread may start a process meanwhile: it would
    /// inherit the descriptors, too.
    pub(in crate::qemu) fn start(
        &self,
        arguments: &[String],
        passed: Vec<PassedDescriptor>,
    ) -> io::Result<QemuProcess> {
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
        Ok(QemuProcess { child, stderr })
    }
}

/// A running QEMU; killed when it is dropped.
#[derive(Debug)]
pub(in crate::qemu) struct QemuProcess {
    pub(super) child: Child,
    /// Taken by the task that reads it.
    pub(super) stderr: Option<ChildStderr>,
}

impl QemuProcess {
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

/// The users to search for if none is configured: first one for QEMU alone, then `nobody`.
const USERS: [&str; 2] = ["greenroom-vm", "nobody"];

const KVM: &str = "/dev/kvm";

const QEMU: &str = "qemu-system-x86_64";

/// Read and write permission of the group.
const GROUP_MAY: u32 = 0o060;

/// True if other programs may run as QEMU's user, too.
pub(in crate::qemu) fn is_shared_user(settings: &Settings) -> bool {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = settings.user.as_deref().unwrap_or(USERS[0]);
    rustix::process::geteuid().is_root() && (own == USERS[1] || ids(&users, own).is_none())
}

fn on_path(path: &std::ffi::OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|dir| dir.join(QEMU)).find(|program| program.is_file())
}

fn identity(settings: &Settings) -> Result<(u32, u32), ProgramError> {
    let users = std::fs::read_to_string("/etc/passwd")?;
    let named = settings.user.as_deref();
    let found = match named {
        Some(name) => ids(&users, name),
        None => USERS.iter().find_map(|name| ids(&users, name)),
    };
    let unknown = || ProgramError::UnknownUser(named.unwrap_or(USERS[1]).to_owned());
    let (uid, gid) = found.ok_or_else(unknown)?;
    if uid == 0 {
        return Err(ProgramError::Root);
    }
    // /dev/kvm belongs to a group, and a change of user keeps only the first of several groups.
    let kvm = if settings.accel == Accel::Tcg { None } else { kvm_group(Path::new(KVM)) };
    Ok((uid, kvm.unwrap_or(gid)))
}

fn kvm_group(device: &Path) -> Option<u32> {
    let found = std::fs::metadata(device).ok()?;
    (found.mode() & GROUP_MAY == GROUP_MAY && found.gid() != 0).then(|| found.gid())
}

/// User id and first group id of a user, from the text of /etc/passwd.
fn ids(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;

    use super::*;

    #[test]
    fn a_user_has_a_number_and_a_group() {
        let users = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65533:nobody:/:/bin/false\n";
        assert_eq!(ids(users, "nobody"), Some((65534, 65533)));
        assert_eq!(ids(users, "nobod"), None);
    }

    #[test]
    fn qemu_is_never_run_by_root() {
        let settings = Settings::read(&PoolName::new("linux"), &"user = \"root\"".parse().unwrap()).unwrap();
        assert!(identity(&settings).unwrap_err().to_string().contains("would control the runner host"));
        let settings =
            Settings::read(&PoolName::new("linux"), &"user = \"no-such-user\"".parse().unwrap()).unwrap();
        assert_eq!(identity(&settings).unwrap_err().to_string(), "unknown user `no-such-user`");
    }

    #[test]
    fn a_missing_qemu_is_named_with_what_installs_it() {
        assert_eq!(on_path(std::ffi::OsStr::new("/no/such/dir")), None);
        let settings =
            Settings::read(&PoolName::new("linux"), &"qemu = \"/no/such/qemu\"".parse().unwrap()).unwrap();
        let error = QemuProgram::configured(&settings).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/qemu is not installed: `apt-get install"), "{error}");
    }
}
