//! A program under its guard process ([`guard`](super::guard)), as the caller has it: started, read, and waited for.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures_util::future::{Either, select};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::timeout;

/// Longest report, in bytes.
const MAX_REPORT: u64 = 64 << 10;
/// The time limit for the rest of a program's output to arrive after its end.
const DRAINING: Duration = Duration::from_millis(300);

/// The end of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramEnd {
    Code(i32),
    Signal(i32),
    /// Killed at its limit of time.
    TimeLimit,
    /// Killed because the caller closed its end of the socket.
    Stopped,
    /// The program was not started, for this reason.
    NotStarted(String),
}

impl ProgramEnd {
    pub fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

/// The guard process's report of a program's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardReport {
    pub ending: ProgramEnd,
    /// True if the program had ended by itself, and processes that it left had to be killed.
    pub left: bool,
}

/// The reason a program has no [`GuardProcess`].
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("the socket of its guard process cannot be created")]
    Socket(#[source] io::Error),
    #[error("Greenroom's own program `{}` cannot run", program.display())]
    Run {
        program: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// A program and its guard process.
#[derive(Debug)]
pub struct GuardedProgram {
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
    /// Input of the guard process. When it is dropped, the guard process kills the program.
    pub control: OwnedWriteHalf,
    pub guard: GuardProcess,
}

/// A guard process, whose report the caller waits for.
#[derive(Debug)]
pub struct GuardProcess {
    child: Child,
    report: OwnedReadHalf,
}

impl GuardedProgram {
    /// Starts the guard process `guard`, which is Greenroom's own program, and with it the program that `arguments` name.
    pub fn start(
        guard: &Path,
        arguments: Vec<OsString>,
        variables: Vec<(String, OsString)>,
    ) -> Result<Self, SpawnError> {
        let (own, stdin) = socket().map_err(SpawnError::Socket)?;
        let mut command = Command::new(guard);
        command.arg("instance").args(arguments).current_dir("/").env_clear().envs(variables);
        command.stdin(Stdio::from(stdin)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |cause| SpawnError::Run { program: guard.to_owned(), cause };
        let mut child = command.spawn().map_err(failed)?;
        let no_pipe = || failed(io::Error::other("it has no pipe"));
        let stdout = child.stdout.take().ok_or_else(no_pipe)?;
        let stderr = child.stderr.take().ok_or_else(no_pipe)?;
        let (report, control) = own.into_split();
        Ok(Self { stdout, stderr, control, guard: GuardProcess { child, report } })
    }
}

/// The caller's end, and that of the guard process.
fn socket() -> io::Result<(UnixStream, OwnedFd)> {
    let (own, other) = UnixStream::pair()?;
    let other = other.into_std()?;
    other.set_nonblocking(false)?;
    Ok((own, other.into()))
}

impl GuardProcess {
    /// Waits for the program's end, and runs `reading`, which reads its output, until then and for a moment afterwards: a daemon
    /// of the program's may keep the pipes open. `None`: the guard process was killed; `on_loss` gets its session first, in
    /// which the program may still run.
    pub async fn ended(&mut self, reading: impl Future, on_loss: impl FnOnce(i32)) -> Option<GuardReport> {
        let reading = pin!(reading);
        let report = pin!(read_report(&mut self.report));
        // The guard process reports after the program's end: what the program has printed is in the pipes.
        let (report, reading) = match select(report, reading).await {
            Either::Left((report, reading)) => (report, Some(reading)),
            Either::Right((_, report)) => (report.await, None),
        };
        if report.is_none()
            && let Some(session) = self.child.id().and_then(|id| i32::try_from(id).ok())
        {
            // Its pid stays taken until the wait below.
            on_loss(session);
        }
        if let Some(reading) = reading {
            timeout(DRAINING, reading).await.ok();
        }
        self.child.wait().await.ok();
        report
    }
}

async fn read_report(socket: &mut OwnedReadHalf) -> Option<GuardReport> {
    let mut line = String::new();
    BufReader::new(socket.take(MAX_REPORT)).read_line(&mut line).await.ok()?;
    serde_json::from_str(&line).ok()
}
