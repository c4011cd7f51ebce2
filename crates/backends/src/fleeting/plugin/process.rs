//! A plugin's process: the private directory of its socket, its start, its handshake, its streams, its end.

use std::ffi::OsString;
use std::fmt;
use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fs_err as fs;
use futures_util::future::join_all;
use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use greenroom_providers::launch::random;
use greenroom_providers::process::{Process, boot_id, signal};
use greenroom_system::remove;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::process::ChildStdout;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::log::{Log, LogExcerpt};
use super::settings::PluginSettings;
use crate::fleeting::plugin_guard::{self, LOCK, PluginRecord, RECORD};
use crate::program::child::{GuardProcess, GuardedProgram, ProgramEnd, SpawnError};
use crate::program::environment::SecretError;

/// The variable that tells a plugin who starts it, and its value.
const COOKIE: (&str, &str) = ("FLEETING_INSTANCE_GROUP_PLUGIN", "4c6410b1-cb78-4962-8c76-ab936d0ea908");
/// Longest line.
const MAX_LINE: usize = 4096;
/// A certificate is longer than this.
const NO_CERTIFICATE: usize = 50;
/// The length of a wrong line that a message shows, in characters.
const SHOWN: usize = 100;
/// Longest path, in bytes: a socket's path has at most 107, and plugins add a name of up to 17.
const MAX_DIR: usize = 90;
/// A directory without a lock that is older than this was left by a killed process.
const ABANDONED_AFTER: Duration = Duration::from_mins(2);

/// A running process, which dropping ends.
#[derive(Debug)]
pub(super) struct PluginProcess {
    /// The socket that the plugin serves.
    pub(super) socket: PathBuf,
    /// The guard process ends the plugin when this is closed.
    _control: OwnedWriteHalf,
    ended: watch::Receiver<Option<PluginEnd>>,
}

/// The end of a [`PluginProcess`]. Its text follows the plugin's name in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PluginEnd {
    Program(ProgramEnd),
    /// The guard process was killed.
    Lost,
    /// Greenroom gave the process up.
    Unresponsive,
    /// The plugin no longer serves its socket. Its end has not been reported.
    Disconnected,
    /// The report of the process's end was lost.
    Unknown,
}

/// The reason a [`PluginProcess`] serves no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginStartError {
    #[error(transparent)]
    Directory(#[from] SocketDirError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Guard(#[from] SpawnError),
    #[error("it {end} before its handshake{log}")]
    Ended { end: PluginEnd, log: LogExcerpt },
    #[error("it closed its output before its handshake{log}")]
    Closed { log: LogExcerpt },
    #[error("it did not print its address within {}{log}", Pretty(*within))]
    Late { within: Duration, log: LogExcerpt },
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

impl PluginProcess {
    /// Starts the plugin, and waits for its address.
    pub(super) async fn start(
        settings: &PluginSettings,
        program: &Path,
        log: &Arc<Log>,
    ) -> Result<Self, PluginStartError> {
        let directory = create_socket_dir(&settings.sockets)?;
        let spawned = spawn(settings, program, &directory);
        let started = spawned.inspect_err(|_| drop(remove::tree(&directory)))?;
        let GuardedProgram { stdout, stderr, control, guard } = started;
        let (address, line) = oneshot::channel();
        let streams = [
            tokio::spawn(read_stdout(stdout, address, Arc::clone(log))),
            tokio::spawn(Arc::clone(log).drain(stderr)),
        ];
        let (tell, ended) = watch::channel(None);
        let place = directory.clone();
        tokio::spawn(async move { tell.send_replace(Some(end(guard, streams, &place).await)) });
        let limit = settings.deadlines.handshake;
        let mut process = Self { socket: PathBuf::new(), _control: control, ended };
        let ended = |end| PluginStartError::Ended { end, log: log.excerpt() };
        let line = tokio::select! {
            line = timeout(limit, line) => line,
            end = process.ended() => return Err(ended(end)),
        };
        let line = match line {
            Ok(Ok(line)) => line,
            // Its standard output ended first: the end follows, or the plugin hangs without one.
            Ok(Err(_)) => {
                let end = timeout(limit, process.ended()).await;
                return Err(end.map_or_else(|_| PluginStartError::Closed { log: log.excerpt() }, ended));
            }
            Err(_) => return Err(PluginStartError::Late { within: limit, log: log.excerpt() }),
        };
        process.socket = socket_of_line(&line, &directory)?;
        Ok(process)
    }

    /// The end of the process; `None`: it runs.
    pub(super) fn end(&self) -> Option<PluginEnd> {
        self.ended.borrow().clone()
    }

    /// Waits for the end. Dropping the process does not end the wait.
    pub(super) fn ended(&self) -> impl Future<Output = PluginEnd> + use<> {
        let mut ended = self.ended.clone();
        async move {
            let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
            end.unwrap_or(PluginEnd::Unknown)
        }
    }
}

impl fmt::Display for PluginEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(ProgramEnd::Code(code)) => write!(f, "exited with code {code}"),
            Self::Program(ProgramEnd::Signal(number)) => write!(f, "was killed by signal {number}"),
            Self::Program(ProgramEnd::NotStarted(why)) => write!(f, "cannot be executed: {why}"),
            Self::Program(ProgramEnd::TimeLimit | ProgramEnd::Stopped) => {
                f.write_str("was stopped by Greenroom")
            }
            Self::Lost => f.write_str("was killed with the process that holds it"),
            Self::Unresponsive => f.write_str("did not answer and was killed"),
            Self::Disconnected => f.write_str("closed its connection"),
            Self::Unknown => f.write_str("ended"),
        }
    }
}

fn spawn(
    settings: &PluginSettings,
    program: &Path,
    directory: &Path,
) -> Result<GuardedProgram, PluginStartError> {
    let arguments = vec![plugin_guard::KIND.into(), directory.into(), program.into()];
    Ok(GuardedProgram::start(&settings.guard, arguments, variables(settings, directory)?)?)
}

/// A few variables of this process, those that the operator names, and the plugins' own. Any other `PLUGIN_` variable could
/// turn on what Greenroom does not speak.
fn variables(settings: &PluginSettings, directory: &Path) -> Result<Vec<(String, OsString)>, SecretError> {
    let mut all = settings.environment.variables()?;
    all.retain(|(name, _)| !name.starts_with("PLUGIN_") && name != COOKIE.0 && name != "TMPDIR");
    all.push((COOKIE.0.to_owned(), COOKIE.1.into()));
    all.push(("PLUGIN_PROTOCOL_VERSIONS".to_owned(), "0".into()));
    all.push(("PLUGIN_UNIX_SOCKET_DIR".to_owned(), directory.into()));
    // Where plugins with an older library put their socket.
    all.push(("TMPDIR".to_owned(), directory.into()));
    Ok(all)
}

/// The first line is the address; the rest is log.
async fn read_stdout(stdout: ChildStdout, address: oneshot::Sender<Vec<u8>>, log: Arc<Log>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    let read = (&mut reader).take(MAX_LINE as u64).read_until(b'\n', &mut line).await;
    if read.is_ok() && !line.is_empty() {
        address.send(line).ok();
    }
    log.drain(reader).await;
}

/// Waits for the plugin's end and the rest of the log. What a killed guard process leaves is killed here.
async fn end(mut guard: GuardProcess, streams: [JoinHandle<()>; 2], directory: &Path) -> PluginEnd {
    let on_loss = |session| {
        end_session(session);
        drop(remove::tree(directory));
    };
    match guard.ended(join_all(streams), on_loss).await {
        Some(report) => PluginEnd::Program(report.ending),
        None => PluginEnd::Lost,
    }
}

/// The reason a plugin's first line names no usable socket. Texts of the plugin's are cleaned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("it printed an empty line instead of its address")]
    EmptyLine,
    #[error("it printed `{0}` instead of its address")]
    Line(String),
    #[error("it speaks version {0} of the plugins' core protocol, not 1")]
    CoreVersion(String),
    #[error("it speaks version {0} of the fleeting protocol, not 0")]
    Version(String),
    #[error("it speaks `{0}`, not gRPC")]
    Protocol(String),
    #[error("it demands TLS, which Greenroom did not ask for")]
    Tls,
    #[error("it listens on `{0}`, not on a Unix socket")]
    Network(String),
    #[error("its socket `{socket}` is not in `{}`", directory.display())]
    Elsewhere { socket: String, directory: PathBuf },
}

/// The socket in `directory` that a plugin's first line names.
fn socket_of_line(line: &[u8], directory: &Path) -> Result<PathBuf, HandshakeError> {
    let text = std::str::from_utf8(line).map_err(|_| unreadable(line))?.trim();
    let fields: Vec<&str> = text.split('|').collect();
    let [core, version, network, address, rest @ ..] = fields.as_slice() else {
        return Err(unreadable(line));
    };
    if *core != "1" {
        return Err(HandshakeError::CoreVersion(shown(core)));
    }
    if *version != "0" {
        return Err(HandshakeError::Version(shown(version)));
    }
    match *rest.first().unwrap_or(&"netrpc") {
        "grpc" => {}
        other => return Err(HandshakeError::Protocol(shown(other))),
    }
    if rest.get(1).is_some_and(|certificate| certificate.len() > NO_CERTIFICATE) {
        return Err(HandshakeError::Tls);
    }
    if *network != "unix" {
        return Err(HandshakeError::Network(shown(network)));
    }
    let socket = Path::new(address);
    // A name below the directory, with no way out of it.
    if socket.parent() != Some(directory) || socket.file_name().is_none() {
        return Err(HandshakeError::Elsewhere { socket: shown(address), directory: directory.to_owned() });
    }
    Ok(socket.to_owned())
}

fn unreadable(line: &[u8]) -> HandshakeError {
    if line.iter().all(u8::is_ascii_whitespace) {
        return HandshakeError::EmptyLine;
    }
    HandshakeError::Line(clean_line(line, SHOWN))
}

fn shown(field: &str) -> String {
    clean_line(field.as_bytes(), SHOWN)
}

/// The reason there is no directory for a plugin's socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketDirError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(
        "the path of the directory for plugins' sockets is too long for a socket: `{}` may have at most {} bytes; use a \
         shorter state directory", .0.display(), MAX_DIR - 17
    )]
    TooLong(PathBuf),
    #[error("`{}` must be a directory of this user's that only this user may write to", .0.display())]
    Exposed(PathBuf),
}

/// Makes a fresh directory below `base`, and clears what was left there.
fn create_socket_dir(base: &Path) -> Result<PathBuf, SocketDirError> {
    fs::create_dir_all(base)?;
    check_base(base)?;
    sweep(base);
    let path = base.join(random()?);
    if path.as_os_str().len() > MAX_DIR {
        return Err(SocketDirError::TooLong(base.to_owned()));
    }
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
    Ok(path)
}

/// Refuses a directory that another user could exchange sockets in.
fn check_base(base: &Path) -> Result<(), SocketDirError> {
    let known = fs::symlink_metadata(base)?;
    let own = rustix::process::geteuid().as_raw();
    if !known.is_dir() || known.uid() != own || known.permissions().mode() & 0o022 != 0 {
        return Err(SocketDirError::Exposed(base.to_owned()));
    }
    Ok(())
}

fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let is_ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let path = entry.path();
        if is_ours && is_abandoned(&path) {
            end_process(&path);
            drop(remove::tree(&path));
        }
    }
}

/// True if the process that holds the plugin is gone.
fn is_abandoned(path: &Path) -> bool {
    if let Ok(lock) = fs::File::open(path.join(LOCK)) {
        return !matches!(lock.file().try_lock_shared(), Err(TryLockError::WouldBlock));
    }
    let age = fs::metadata(path).and_then(|known| known.modified()).ok().and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age > ABANDONED_AFTER)
}

/// Kills the plugin that lost its guard process, and its session.
fn end_process(path: &Path) {
    let Ok(record) = fs::read(path.join(RECORD)) else { return };
    let Ok(running) = serde_json::from_slice::<PluginRecord>(&record) else { return };
    let is_it = |process: &Process| process.started == running.started;
    if boot_id().is_ok_and(|boot| boot == running.boot)
        && Process::of(running.pid).as_ref().is_some_and(is_it)
    {
        end_session(running.session);
    }
}

/// Kills every process of a session.
fn end_session(session: i32) {
    for process in Process::all().unwrap_or_default() {
        if process.session == session && !process.zombie {
            signal(&process, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_socket_in_the_private_directory() {
        let dir = Path::new("/run/x");
        for line in [
            "1|0|unix|/run/x/plugin745|grpc|\n",
            "1|0|unix|/run/x/plugin745|grpc",
            "1|0|unix|/run/x/plugin745|grpc|\r\n",
        ] {
            assert_eq!(socket_of_line(line.as_bytes(), dir), Ok("/run/x/plugin745".into()), "{line:?}");
        }
    }

    #[test]
    fn every_other_line_is_refused_with_a_sentence() {
        let tls = format!("1|0|unix|/run/x/p|grpc|{}", "A".repeat(700));
        for (line, why) in [
            ("2|0|unix|/run/x/p|grpc|", "version 2 of the plugins' core protocol"),
            ("1|1|unix|/run/x/p|grpc|", "version 1 of the fleeting protocol"),
            ("1|0|tcp|127.0.0.1:1|grpc|", "listens on `tcp`"),
            ("1|0|unix|/run/x/p|netrpc|", "`netrpc`, not gRPC"),
            ("1|0|unix|/run/x/p", "not gRPC"),
            (&tls, "demands TLS"),
            ("1|0|unix|/tmp/p|grpc|", "`/tmp/p` is not in `/run/x`"),
            ("1|0|unix|/run/x/../p|grpc|", "is not in"),
            ("1|0|unix|/run/x|grpc|", "is not in"),
            ("1|0|unix|/run/x/..|grpc|", "is not in"),
            ("1|0|unix||grpc|", "is not in"),
            ("hello\u{1b}[31m", "it printed `hello` instead"),
            ("\n", "an empty line"),
        ] {
            let error = socket_of_line(line.as_bytes(), dir_x()).unwrap_err().to_string();
            assert!(error.contains(why), "{line:?}: {error}");
        }
        assert!(socket_of_line(b"\xff\xfe", dir_x()).is_err());
    }

    fn dir_x() -> &'static Path {
        Path::new("/run/x")
    }

    #[test]
    fn a_fresh_directory_is_private_and_abandoned_ones_go() {
        let base = tempfile::tempdir().unwrap();
        let dead = base.path().join("0123456789abcdef");
        let held = base.path().join("1123456789abcdef");
        let young = base.path().join("2123456789abcdef");
        for dir in [&dead, &held, &young, &base.path().join("other")] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(dead.join(LOCK), "").unwrap();
        fs::write(dead.join(RECORD), "no record").unwrap();
        let lock = fs::File::create(held.join(LOCK)).unwrap();
        lock.file().try_lock().unwrap();
        let fresh = create_socket_dir(base.path()).unwrap();
        assert_eq!(fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!dead.exists() && held.exists() && young.exists() && base.path().join("other").exists());
        // Not only closed: a process that another test has just forked holds the same lock until it runs its program.
        lock.file().unlock().unwrap();
        create_socket_dir(base.path()).unwrap();
        assert!(!held.exists() && fresh.exists());
    }

    #[test]
    fn a_directory_of_others_or_with_a_long_path_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let long = base.path().join("x".repeat(80));
        assert!(create_socket_dir(&long).unwrap_err().to_string().contains("too long for a socket"));
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(create_socket_dir(&open).unwrap_err().to_string().contains("only this user may write"));
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(create_socket_dir(&link).is_err());
    }
}
