//! The guard process between Greenroom and a foreign program: it ends the program, and all that the program started.
//!
//! The standard input of a guard process is a socket of its caller's. If the caller closes the socket, is killed, or the time is
//! over, the guard process kills the program and, as the subreaper, whatever the program started, in whichever session that is:
//! what an interrupted launch left running could make a machine later. Its last act is a report, one line.
//!
//! [`main`] is the guard process of one call: the caller writes the request, one line, which becomes the program's standard
//! input. A program that ended by itself may leave daemons: what stays in its session is killed. [`super::child`] is the caller's
//! side.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use greenroom_providers::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, set_child_subreaper, setsid,
    wait, waitpid,
};

use super::child::{GuardReport, ProgramEnd};

/// Name of the guard process of a call among those of the hidden command `instance`.
pub const KIND: &str = "program";
/// Longest request.
const MAX_REQUEST: usize = 4 << 20;

/// Arguments of the guard process of a call, after its kind.
pub fn arguments(limit: Duration, directory: &OsStr, program: &OsStr) -> [OsString; 3] {
    [limit.as_millis().to_string().into(), directory.to_owned(), program.to_owned()]
}

/// The main function: time limit in milliseconds, working directory, program, its arguments.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [limit, directory, program, rest @ ..] = arguments else { return ExitCode::from(2) };
    let Some(limit) = limit.to_str().and_then(|limit| limit.parse().ok()) else { return ExitCode::from(2) };
    let own = getpid().as_raw_nonzero().get();
    report(&match start(directory, program, rest) {
        Ok(Some(mut child)) => {
            let early = watch(&child, Duration::from_millis(limit)).unwrap_or(Some(ProgramEnd::Stopped));
            let is_interrupted = early.is_some();
            finish(&mut child, early, |left| is_interrupted || left.session == own)
        }
        Ok(None) => GuardReport { ending: ProgramEnd::Stopped, left: false },
        Err(error) => GuardReport { ending: ProgramEnd::NotStarted(error.to_string()), left: false },
    })
}

/// `None` if the caller is gone before it has written all of the request.
fn start(directory: &OsStr, program: &OsStr, arguments: &[OsString]) -> io::Result<Option<Child>> {
    begin()?;
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
    let mut request = Vec::new();
    let mut buffer = [0; 16 << 10];
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

/// Makes this process a guard process. The caller may not be the leader of a process group.
pub fn begin() -> io::Result<()> {
    // A signal for the caller's group or terminal must not end this process before the program.
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Waits until the program has exited, its time is over, or the caller is gone. `None`: it has exited.
pub fn watch(child: &Child, limit: Duration) -> io::Result<Option<ProgramEnd>> {
    let until = Instant::now() + limit;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let exit = pidfd_open(pid, PidfdFlags::empty())?;
    let stdin = io::stdin();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Some(ProgramEnd::TimeLimit));
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
            return Ok(Some(ProgramEnd::Stopped));
        }
    }
}

/// Kills what is left of the program: itself, if it was ended early, and those of its processes that `is_ended` selects.
pub fn finish(
    child: &mut Child,
    early: Option<ProgramEnd>,
    is_ended: impl Fn(&Process) -> bool,
) -> GuardReport {
    let is_interrupted = early.is_some();
    if is_interrupted {
        // It may have exited just now.
        child.kill().ok();
    }
    let status = child.wait();
    let killed = end_the_rest(is_ended);
    let ending = match (early, status) {
        (Some(ending), _) => ending,
        (None, Ok(status)) => ProgramEnd::of(status),
        (None, Err(error)) => ProgramEnd::NotStarted(error.to_string()),
    };
    GuardReport { ending, left: killed && !is_interrupted }
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

/// Reports the program's end to the caller.
pub fn report(ended: &GuardReport) -> ExitCode {
    let mut line = serde_json::to_vec(ended).unwrap_or_default();
    line.push(b'\n');
    // A caller that is gone needs no report.
    let _ = rustix::io::write(io::stdin().as_fd(), &line);
    ExitCode::SUCCESS
}
