//! Starts a keeper that outlives the call that needed it.
//!
//! The child's standard input is `spawn.lock`, locked. No second keeper is started until the first one has taken the
//! keeper's lock (and released `spawn.lock`) or has died.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Child;

use greenroom_core::time::Pretty;
use greenroom_ports::host_error::HostError;
pub use greenroom_system::process::detached_command;
use greenroom_system::process::{Confirmation, close_input, confirm_start, lead_session, start_detached};
use greenroom_system::threads::flock::{self, Kind};
use tokio::time::timeout;

use super::files::{self, broken, cannot};
use super::host::LocalHost;

const SPAWN_LOCK: &str = "spawn.lock";

impl LocalHost {
    pub(super) async fn spawn_keeper(&self) -> Result<(), HostError> {
        let path = self.state.root().join(SPAWN_LOCK);
        let failed = |e: io::Error| cannot("lock", &path, e);
        let file = files::open_lock(&path).map_err(failed)?;
        // Locked: another process is starting a keeper.
        if !flock::try_lock(&file, Kind::Exclusive).map_err(failed)? || self.keeper_runs()? {
            return Ok(());
        }
        self.children.reap();
        let program = &self.keeper_command.program;
        let (child, confirmation) =
            spawn(&self.keeper_command, file).map_err(|e| cannot("start", program, e))?;
        self.children.add(child);
        let within = self.times.keeper_start_timeout;
        match timeout(within, confirmation.arrives()).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(broken(format_args!(
                "`{}` exited before it became a keeper: read keeper.log in the state directory",
                program.display()
            ))),
            Ok(Err(error)) => Err(cannot("read from", program, error)),
            Err(_) => Err(broken(format_args!(
                "`{}` did not become a keeper within {}",
                program.display(),
                Pretty(within)
            ))),
        }
    }

    /// Releases `spawn.lock` in a keeper that was started in the background. It holds the keeper's lock now, so others
    /// may start one when it exits.
    pub(super) fn let_others_spawn(&self) -> io::Result<()> {
        let lock = fs::metadata(self.state.root().join(SPAWN_LOCK));
        let input = rustix::fs::fstat(io::stdin())?;
        if lock.is_ok_and(|lock| (lock.dev(), lock.ino()) == (input.st_dev, input.st_ino)) {
            close_input()?;
        }
        Ok(())
    }
}

fn spawn(command: &KeeperCommand, spawn_lock: File) -> io::Result<(Child, Confirmation)> {
    let mut start = detached_command(&command.program)?;
    start.args(&command.args).stdin(spawn_lock);
    start_detached(start, command.environment())
}

/// Detaches a keeper, as its first action: creates a session, sends one byte to the parent, then closes the parent's
/// streams. Only for a keeper that `start_keeper` started. Standard input stays `spawn.lock` until the keeper's lock is
/// taken.
pub fn detach() -> io::Result<()> {
    lead_session()?;
    confirm_start()
}

/// The environment of a keeper started in the background. An allow-list, so that unknown variables are left out.
///
/// `SSH_AUTH_SOCK` is left out: a process that outlives the login and connects to guests must not reach an agent. So
/// are keys of clouds (`AWS_SECRET_ACCESS_KEY`), because a long-lived process's environment must not contain secrets.
/// Providers name further variables, which hold the paths of files with secrets.
const ALLOWED: [&str; 21] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_TIME",
    "TZ",
    "NO_COLOR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "RUST_BACKTRACE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NO_PROXY",
    "no_proxy",
];

/// Variables that are passed on unless they contain a password.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// The complete command that starts a keeper.
#[derive(Debug, Clone)]
pub struct KeeperCommand {
    pub program: PathBuf,
    /// Paths in them must be absolute: the keeper runs in `/`.
    pub args: Vec<OsString>,
    environment: fn() -> Vec<(OsString, OsString)>,
    /// True for a variable that the keeper gets in addition to the allow-list.
    passes: fn(&str) -> bool,
}

impl KeeperCommand {
    /// `environment` returns this process's own, when a keeper is started. Variables that are not on the allow-list are
    /// left out.
    pub fn new(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
        environment: fn() -> Vec<(OsString, OsString)>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            environment,
            passes: |_| false,
        }
    }

    /// Adds variables to the allow-list.
    #[must_use]
    pub fn passing(self, passes: fn(&str) -> bool) -> Self {
        Self { passes, ..self }
    }

    fn allows(&self, name: &OsStr, value: &OsStr) -> bool {
        let Some(name) = name.to_str() else { return false };
        let has_password = || value.as_encoded_bytes().contains(&b'@');
        ALLOWED.contains(&name) || (self.passes)(name) || (PROXIES.contains(&name) && !has_password())
    }

    pub(super) fn environment(&self) -> impl Iterator<Item = (OsString, OsString)> {
        (self.environment)().into_iter().filter(|(name, value)| self.allows(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_job_variable_no_tmpdir_and_no_secret_gets_through() {
        let own = || {
            [
                ("PATH", "/bin"),
                ("CUSTOM_ENV_PATH", "x"),
                ("CI_JOB_TOKEN", "x"),
                ("TMPDIR", "x"),
                ("JOB_RESPONSE_FILE", "x"),
                ("AWS_SECRET_ACCESS_KEY", "x"),
                ("AWS_PROFILE", "ci"),
                ("SSH_AUTH_SOCK", "x"),
                ("LD_PRELOAD", "x"),
                ("HTTPS_PROXY", "http://proxy:3128"),
                ("https_proxy", "http://me:secret@proxy:3128"),
            ]
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .to_vec()
        };
        let command = KeeperCommand::new("/bin/true", ["keep"], own);
        let names = |command: &KeeperCommand| -> Vec<_> {
            command.environment().map(|(name, _)| name.into_string().unwrap()).collect()
        };
        assert_eq!(names(&command), ["PATH", "HTTPS_PROXY"]);
        assert_eq!(
            names(&command.passing(|name| name == "AWS_PROFILE")),
            ["PATH", "AWS_PROFILE", "HTTPS_PROXY"]
        );
    }
}
