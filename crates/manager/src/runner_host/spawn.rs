//! Starts a keeper that outlives the call that needed it.
//!
//! Three pitfalls (all measured): a child that keeps the runner's pipes makes the stage hang until the child exits; a
//! child in the caller's session is killed with it; a child that leads a process group cannot call setsid. So the
//! streams are detached, and the child first calls setsid and confirms that with one byte on a pipe.
//!
//! The child's standard input is `spawn.lock`, locked. No second keeper is started until the first one has taken the
//! keeper's lock (and released `spawn.lock`) or has died.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use greenroom_core::time::Pretty;
use greenroom_ports::host_error::HostError;
use greenroom_system::threads::flock::{self, Kind};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::files::{self, broken, cannot};
use super::host::LocalHost;

const SPAWN_LOCK: &str = "spawn.lock";
/// In `/proc/self/fdinfo`.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// Confirms that the child is detached: a byte that no program prints by accident.
const DETACHED: u8 = 0x06;

impl LocalHost {
    pub(super) async fn spawn_keeper(&self) -> Result<(), HostError> {
        let path = self.state.root().join(SPAWN_LOCK);
        let failed = |e: io::Error| cannot("lock", &path, e);
        let file = files::open_lock(&path).map_err(failed)?;
        // Locked: another process is starting a keeper.
        if !flock::try_lock(&file, Kind::Exclusive).map_err(failed)? || self.keeper_runs()? {
            return Ok(());
        }
        self.reap_children();
        let program = &self.keeper_command.program;
        let (child, confirmation) =
            spawn(&self.keeper_command, file).map_err(|e| cannot("start", program, e))?;
        self.children.borrow_mut().push(child);
        let within = self.times.keeper_start_timeout;
        match timeout(within, detached(confirmation)).await {
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
            rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        }
        Ok(())
    }

    /// Reaps keepers that have exited: they would stay zombies until this process exits.
    fn reap_children(&self) {
        self.children.borrow_mut().retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

fn spawn(command: &KeeperCommand, spawn_lock: File) -> io::Result<(Child, pipe::Receiver)> {
    // Both ends are close-on-exec; the child inherits only its own end, as stdout.
    let (reader, writer) = io::pipe()?;
    let child = detached_command(&command.program)?
        .args(&command.args)
        .env_clear()
        .envs(command.environment())
        .current_dir("/")
        .stdin(spawn_lock)
        .stdout(OwnedFd::from(writer))
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?))
}

/// A command that starts `program` without the descriptors that this process inherited, except the three standard
/// streams.
pub fn detached_command(program: &Path) -> io::Result<Command> {
    Ok(without(&inherited()?, program))
}

/// Descriptors that a script around this call left open, perhaps copies of the runner's pipes: a keeper that kept one
/// would hang the stage. Greenroom's own descriptors are close-on-exec. Only 3 to 9, because shell scripts use no
/// others.
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

/// A command that starts `program` with these descriptors closed. Safe code cannot close descriptors that it has not
/// opened, so a shell closes them and then executes the program.
fn without(descriptors: &[u32], program: &Path) -> Command {
    if descriptors.is_empty() {
        return Command::new(program);
    }
    let closes: Vec<String> = descriptors.iter().map(|number| format!("{number}>&-")).collect();
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {}", closes.join(" "))).arg(program);
    shell
}

/// Waits for the child's confirmation; `false` if it died without one.
async fn detached(mut confirmation: pipe::Receiver) -> io::Result<bool> {
    let mut buffer = [0_u8; 256];
    loop {
        let count = confirmation.read(&mut buffer).await?;
        if count == 0 {
            return Ok(false);
        }
        if buffer[..count].contains(&DETACHED) {
            return Ok(true);
        }
    }
}

/// Detaches a keeper, as its first action: creates a session, sends one byte to the parent, then closes the parent's
/// streams. Only for a keeper that `start_keeper` started. Standard input stays `spawn.lock` until the keeper's lock is
/// taken.
pub fn detach() -> io::Result<()> {
    // EPERM: this process already leads a session (started by hand under setsid).
    match rustix::process::setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    // The parent may have exited or stopped waiting.
    rustix::io::write(io::stdout().as_fd(), &[DETACHED]).ok();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
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
