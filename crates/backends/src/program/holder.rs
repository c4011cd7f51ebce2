//! The process between the keeper and a program: it ends the program, and all that the program started.
//!
//! Its standard input is a socket of the caller's. The caller writes the request, one line; this process writes how the
//! program ended, one line. If the caller closes the socket, is killed or the time is over, this process kills the program
//! and, as the subreaper, whatever it started, in whichever session that is. What an interrupted launch left running could
//! make a machine later. A program that ended by itself may leave daemons: what stays in its session is killed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::Errno;
use rustix::process::getpid;

use crate::held::{self, Ending, Report};

/// The name of this process among those of hidden command `instance`.
pub const KIND: &str = "program";
/// Longest request.
const MAX_REQUEST: usize = 4 << 20;

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
    held::report(&ended)
}

/// `None` if the caller is gone before it has written all of the request.
fn start(directory: &OsStr, program: &OsStr, arguments: &[OsString]) -> io::Result<Option<Child>> {
    held::begin()?;
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
    let early = held::watch(&child, limit).unwrap_or(Some(Ending::Stopped));
    if early.is_some() {
        // It may have exited just now.
        child.kill().ok();
    }
    let status = child.wait();
    let (own, is_interrupted) = (getpid().as_raw_nonzero().get(), early.is_some());
    let killed = held::end_the_rest(|left| is_interrupted || left.session == own);
    let ending = match (early, status) {
        (Some(ending), _) => ending,
        (None, Ok(status)) => Ending::of(status),
        (None, Err(error)) => Ending::NotStarted(error.to_string()),
    };
    Report { ending, left: killed && !is_interrupted }
}
