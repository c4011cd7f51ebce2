//! Creates a session and executes a program in it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use super::note;

/// The exit status of shells for a program that does not exist.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// Returns only if the program cannot be started.
pub(crate) fn run(program: &OsString, arguments: &[OsString]) -> ExitCode {
    let shown = program.display();
    if let Err(error) = rustix::process::setsid() {
        note(&format!("cannot create a session for {shown}: {error}"));
        return ExitCode::from(NOT_STARTED);
    }
    let error = Command::new(program).args(arguments).exec();
    if error.kind() == ErrorKind::NotFound {
        note(&format!("the image cannot run jobs: it has no {shown}"));
        return ExitCode::from(NOT_FOUND);
    }
    note(&format!("cannot run {shown}: {error}"));
    ExitCode::from(NOT_STARTED)
}
