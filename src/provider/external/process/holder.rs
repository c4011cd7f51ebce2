//! The process between the keeper and the program: it ends the program, and all that the program started.
//!
//! Its standard input is a socket of the caller's. The caller writes the request, one line; this process writes how the
//! program ended, one line. If the caller closes the socket, is killed or the time is over, this process kills the program
//! and, as the subreaper, whatever it started, in whichever session that is. What an interrupted launch left running could
//! make a machine later. A program that ended by itself may leave daemons: what stays in its session is killed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, set_child_subreaper, setsid,
    wait, waitpid,
};
use serde::{Deserialize, Serialize};

use crate::provider::process::Process;

/// The name of this process among those of hidden command `instance`.
pub const KIND: &str = "external";
/// Longest request.
const MAX_REQUEST: usize = 4 << 20;

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

/// What this process reports of the program's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub ending: Ending,
    /// True if the program had ended by itself, and processes of its session had to be killed.
    pub left: bool,
}

/// The arguments of this process, after its kind.
pub fn arguments(limit: Duration, directory: &OsStr, program: &OsStr) -> [OsString; 3] {
    [limit.as_millis().to_string().into(), directory.to_owned(), program.to_owned()]
}

/// The main function: time limit in milliseconds, working directory, program, its arguments.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [limit, directory, program, rest @ ..] = arguments else { return ExitCode::from(2) };
    let Some(limit) = limit.to_str().and_then(|limit| limit.parse().ok()) else { return ExitCode::from(2) };
    let without = |ending| Report { ending, left: false };
    let ended = match start(directory, program, rest) {
        Ok(Some(child)) => hold(child, Duration::from_millis(limit)),
        Ok(None) => without(Ending::Stopped),
        Err(error) => without(Ending::NotStarted(error.to_string())),
    };
    report(&ended)
}

/// `None` if the caller is gone before it has written all of the request.
fn start(directory: &OsStr, program: &OsStr, arguments: &[OsString]) -> io::Result<Option<Child>> {
    // A signal for the caller's group or terminal must not end this process before the program.
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    let Some(request) = request()? else { return Ok(None) };
    let input = memfd_create("request", MemfdFlags::CLOEXEC)?;
    write_all(&input, &request)?;
    seek(&input, SeekFrom::Start(0))?;
    if !std::fs::metadata(directory).is_ok_and(|known| known.is_dir()) {
        let why = format!("its directory `{}` does not exist", directory.display());
        return Err(io::Error::other(why));
    }
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).stdin(Stdio::from(input));
    command.spawn().map(Some)
}

fn request() -> io::Result<Option<Vec<u8>>> {
    let (mut request, mut buffer) = (Vec::new(), [0; 16 << 10]);
    while request.last() != Some(&b'\n') {
        match rustix::io::read(io::stdin().as_fd(), &mut buffer) {
            Ok(0) => return Ok(None),
            Ok(length) => request.extend_from_slice(&buffer[..length]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if request.len() > MAX_REQUEST {
            return Err(io::Error::other("the request is too long"));
        }
    }
    Ok(Some(request))
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::write(file, bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Waits until the program has exited, its time is over, or the caller is gone. Then kills what is left of it.
fn hold(mut child: Child, limit: Duration) -> Report {
    let early = watch(&child, limit).unwrap_or(Some(Ending::Stopped));
    if early.is_some() {
        // It may have exited just now.
        child.kill().ok();
    }
    let status = child.wait();
    let (own, is_interrupted) = (getpid().as_raw_nonzero().get(), early.is_some());
    let killed = end_the_rest(|left| is_interrupted || left.session == own);
    let ending = match (early, status) {
        (Some(ending), _) => ending,
        (None, Ok(status)) => of_status(status),
        (None, Err(error)) => Ending::NotStarted(error.to_string()),
    };
    Report { ending, left: killed && !is_interrupted }
}

/// `None`: it has exited.
fn watch(child: &Child, limit: Duration) -> io::Result<Option<Ending>> {
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

fn of_status(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Code(code),
        (None, signal) => Ending::Signal(signal.unwrap_or_default()),
    }
}

/// Kills every process that this one is the parent of and that `is_ended` selects; true if there was one. What those leave is
/// this one's, and ends next.
fn end_the_rest(is_ended: impl Fn(&Process) -> bool) -> bool {
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

fn report(ended: &Report) -> ExitCode {
    let mut line = serde_json::to_vec(ended).unwrap_or_default();
    line.push(b'\n');
    // A caller that is gone needs no report.
    let _ = rustix::io::write(io::stdin().as_fd(), &line);
    ExitCode::SUCCESS
}
