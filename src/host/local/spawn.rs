//! Starts a keeper that outlives the call that needed it.
//!
//! Three traps (all measured): a child that keeps the runner's pipes makes the stage hang until it ends; a child in
//! the caller's session is killed with it; a child that leads a process group cannot call setsid. So: streams
//! detached, and the child itself calls setsid as its first act and says so by one byte on a pipe of ours.
//!
//! The child's standard input is `spawn.lock`, locked: nobody starts a second keeper until the first one has the
//! keeper's lock (and lets go of the other) or has died.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::error::{cannot, io as broken};
use super::files;
use super::flock::{self, Kind};
use super::host::LocalHost;
use crate::core::time::Pretty;
use crate::port::host::HostError;

const SPAWN_LOCK: &str = "spawn.lock";
/// In `/proc/self/fdinfo`.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// "I am on my own": a byte that no program prints by accident.
const DETACHED: u8 = 0x06;

/// The whole environment of a keeper started in the background. Never by stripping: what we do not know stays out.
///
/// `SSH_AUTH_SOCK` is not here: a process that outlives the login and talks to guests must not reach an agent. Nor
/// are keys of clouds (`AWS_SECRET_ACCESS_KEY`): no secret belongs into a long-lived process's environment; the
/// files that hold them are named by the variables below.
const ALLOWED: [&str; 39] = [
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
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CA_BUNDLE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_EC2",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "GCE_METADATA_HOST",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "CLOUDSDK_CONFIG",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "NO_PROXY",
    "no_proxy",
];

/// Passed on unless they carry a password.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// The program that becomes a keeper, complete.
#[derive(Debug, Clone)]
pub struct KeeperCommand {
    pub program: PathBuf,
    /// Paths in them must be absolute: the keeper runs in `/`.
    pub args: Vec<OsString>,
    environment: fn() -> Vec<(OsString, OsString)>,
}

impl KeeperCommand {
    /// `environment` is this process's own, asked for when a keeper is started; what is not on the allow-list is left out.
    pub fn new(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
        environment: fn() -> Vec<(OsString, OsString)>,
    ) -> Self {
        Self { program: program.into(), args: args.into_iter().map(Into::into).collect(), environment }
    }

    fn environment(&self) -> impl Iterator<Item = (OsString, OsString)> {
        (self.environment)().into_iter().filter(|(name, value)| allowed(name, value))
    }
}

fn allowed(name: &OsStr, value: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let has_password = || value.as_encoded_bytes().contains(&b'@');
    ALLOWED.contains(&name) || (PROXIES.contains(&name) && !has_password())
}

impl LocalHost {
    pub(super) async fn spawn_keeper(&self) -> Result<(), HostError> {
        let path = self.state.root().join(SPAWN_LOCK);
        let trouble = |e: io::Error| cannot("lock", &path, e);
        let file = files::open_lock(&path).map_err(trouble)?;
        // Taken: somebody is doing so.
        if !flock::try_lock(&file, Kind::Exclusive).map_err(trouble)? || self.look_for_keeper()? {
            return Ok(());
        }
        self.reap_children();
        let program = &self.keeper_command.program;
        let (child, word) = spawn(&self.keeper_command, file).map_err(|e| cannot("start", program, e))?;
        self.children.borrow_mut().push(child);
        let within = self.times.keeper_start_timeout;
        match timeout(within, detached(word)).await {
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

    /// A keeper that was started in the background has the keeper's lock now: others may start one when it ends.
    pub(super) fn let_others_spawn(&self) -> io::Result<()> {
        let lock = fs::metadata(self.state.root().join(SPAWN_LOCK));
        let input = rustix::fs::fstat(io::stdin())?;
        if lock.is_ok_and(|lock| (lock.dev(), lock.ino()) == (input.st_dev, input.st_ino)) {
            rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        }
        Ok(())
    }

    /// A keeper that settled while we wait would stay a zombie until we end.
    fn reap_children(&self) {
        self.children.borrow_mut().retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

fn spawn(command: &KeeperCommand, spawn_lock: File) -> io::Result<(Child, pipe::Receiver)> {
    // Both ends are close-on-exec; the child gets its end as stdout and nothing else of ours.
    let (hear, tell) = io::pipe()?;
    let child = detached_command(&command.program)?
        .args(&command.args)
        .env_clear()
        .envs(command.environment())
        .current_dir("/")
        .stdin(spawn_lock)
        .stdout(OwnedFd::from(tell))
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, pipe::Receiver::from_owned_fd(OwnedFd::from(hear))?))
}

/// A command that starts `program` with none of the descriptors that this process was started with, but its three
/// streams.
pub fn detached_command(program: &Path) -> io::Result<Command> {
    Ok(without(&inherited()?, program))
}

/// Descriptors that a script around this call left open, perhaps copies of the runner's pipes: a keeper that kept
/// one would hang the stage. Everything we open ourselves is close-on-exec. Only 3 to 9: no shell script has others.
fn inherited() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for number in 3..=9 {
        let path = PathBuf::from(format!("/proc/self/fdinfo/{number}"));
        let Some(text) = files::read(&path)? else { continue };
        let text = String::from_utf8_lossy(&text).into_owned();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        if flags.is_some_and(|flags| flags & CLOSE_ON_EXEC == 0) {
            found.push(number);
        }
    }
    Ok(found)
}

/// A command that starts `program` with these descriptors closed. Closing what we did not open is beyond safe code,
/// so a shell does it and becomes the program.
fn without(descriptors: &[u32], program: &Path) -> Command {
    if descriptors.is_empty() {
        return Command::new(program);
    }
    let closes: Vec<String> = descriptors.iter().map(|number| format!("{number}>&-")).collect();
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {}", closes.join(" "))).arg(program);
    shell
}

/// Waits for the child's word; `false` if it died without one.
async fn detached(mut word: pipe::Receiver) -> io::Result<bool> {
    let mut heard = [0_u8; 256];
    loop {
        let count = word.read(&mut heard).await?;
        if count == 0 {
            return Ok(false);
        }
        if heard[..count].contains(&DETACHED) {
            return Ok(true);
        }
    }
}

/// The first act of a keeper that `start_keeper` started, and of nobody else: a session of its own, then one byte to
/// the parent, then no stream of it left. Standard input stays `spawn.lock` until the keeper's lock is taken.
pub fn detach() -> io::Result<()> {
    // EPERM: it leads a session already (started by hand under setsid).
    match rustix::process::setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    // The parent may be gone, or wait no longer.
    rustix::io::write(io::stdout().as_fd(), &[DETACHED]).ok();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
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
                ("SSH_AUTH_SOCK", "x"),
                ("LD_PRELOAD", "x"),
                ("HTTPS_PROXY", "http://proxy:3128"),
                ("https_proxy", "http://me:secret@proxy:3128"),
            ]
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .to_vec()
        };
        let command = KeeperCommand::new("/bin/true", ["keep"], own);
        let names: Vec<_> = command.environment().map(|(name, _)| name.into_string().unwrap()).collect();
        assert_eq!(names, ["PATH", "HTTPS_PROXY"]);
    }
}
