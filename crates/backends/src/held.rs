//! A process that holds a foreign program for its caller: what the holders of programs and of plugins have in common.
//!
//! The holder's standard input is a socket of the caller's. When the caller closes it, or dies, the holder ends the program
//! and, as the subreaper, what the program started. Its last act is a report, one line.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{self, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use greenroom_providers::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, set_child_subreaper, setsid,
    wait, waitpid,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::process::{Child, Command};

/// Longest report, in bytes.
const MAX_REPORT: u64 = 64 << 10;

/// How the program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    Code(i32),
    Signal(i32),
    /// Killed at its limit of time.
    TimeLimit,
    /// Killed because the caller closed its end.
    Stopped,
    /// It did not start: why.
    NotStarted(String),
}

/// What the holder reports of the program's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub ending: Ending,
    /// True if the program had ended by itself, and processes that it left had to be killed.
    pub left: bool,
}

/// Starts the holder of a program, with pipes for the program's output. The socket is the other end of the holder's input.
pub fn spawn(
    holder: &Path,
    arguments: Vec<OsString>,
    variables: Vec<(String, OsString)>,
) -> Result<(Child, UnixStream), String> {
    let wrong = |error: io::Error| error.to_string();
    let (own, other) = UnixStream::pair().map_err(wrong)?;
    let other = other.into_std().map_err(wrong)?;
    other.set_nonblocking(false).map_err(wrong)?;
    let mut command = Command::new(holder);
    command.arg("instance").args(arguments).current_dir("/").env_clear().envs(variables);
    command.stdin(Stdio::from(OwnedFd::from(other))).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command
        .spawn()
        .map_err(|error| format!("Greenroom's own program `{}` cannot run: {error}", holder.display()))?;
    Ok((child, own))
}

/// Prepares this process to hold a program. The caller may not be the leader of a process group.
pub fn begin() -> io::Result<()> {
    // A signal for the caller's group or terminal must not end this process before the program.
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Waits until the program has exited, its time is over, or the caller is gone. `None`: it has exited.
pub fn watch(child: &process::Child, limit: Duration) -> io::Result<Option<Ending>> {
    let until = Instant::now() + limit;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let exit = pidfd_open(pid, PidfdFlags::empty())?;
    let stdin = io::stdin();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Some(Ending::TimeLimit));
        }
        let mut watched = [PollFd::new(&exit, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut watched, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !watched[0].revents().is_empty() {
            return Ok(None);
        }
        // The caller writes nothing more: it has closed its end.
        if !watched[1].revents().is_empty() {
            return Ok(Some(Ending::Stopped));
        }
    }
}

impl Ending {
    pub fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

/// Kills every process that this one is the parent of and that `is_ended` selects; true if there was one. What those leave is
/// this one's, and ends next.
pub fn end_the_rest(is_ended: impl Fn(&Process) -> bool) -> bool {
    let own = getpid().as_raw_nonzero().get();
    let mut any = false;
    // Most programs leave nothing.
    while !matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
        let all = Process::all().unwrap_or_default();
        let children = all.iter().filter(|child| child.parent == own && is_ended(child));
        let killed: Vec<Pid> = children.filter_map(|child| kill(child.pid)).collect();
        if killed.is_empty() {
            return any;
        }
        any = true;
        for pid in killed {
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
    any
}

/// `None` if it belongs to another user: a wait for its end might never return.
fn kill(pid: i32) -> Option<Pid> {
    let pid = Pid::from_raw(pid)?;
    (kill_process(pid, Signal::KILL) != Err(Errno::PERM)).then_some(pid)
}

/// Reports the program's end to the caller.
pub fn report(ended: &Report) -> ExitCode {
    let mut line = serde_json::to_vec(ended).unwrap_or_default();
    line.push(b'\n');
    // A caller that is gone needs no report.
    let _ = rustix::io::write(io::stdin().as_fd(), &line);
    ExitCode::SUCCESS
}

/// The holder's report, at the caller's end; `None`: the holder was killed.
pub async fn reported(control: OwnedReadHalf) -> Option<Report> {
    let mut report = String::new();
    BufReader::new(control.take(MAX_REPORT)).read_line(&mut report).await.ok()?;
    serde_json::from_str(&report).ok()
}
