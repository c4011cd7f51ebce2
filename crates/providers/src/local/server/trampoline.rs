//! Creates a session, records it, executes the program.
//!
//! Invariant: a program runs on an instance only if its session was recorded while the instance's process lived.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

use super::{note, processes};
use crate::instance_dir::InstanceDir;
use crate::process::Process;

/// Returns only if the program cannot be started.
pub(super) fn session(dir: &Path, program: &OsString, arguments: &[OsString]) -> ExitCode {
    let problem = match begin(&InstanceDir::at(dir)) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    };
    note(&format!("cannot run {}: {problem}", program.display()));
    ExitCode::from(127)
}

fn begin(dir: &InstanceDir) -> io::Result<()> {
    setsid()?;
    // The leader is killed when the instance's process exits for any reason; the record finds its descendants.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    let own = Process::of(pid).ok_or_else(|| io::Error::other("/proc does not show this process"))?;
    let session = processes::Session { leader: pid, started: own.started };
    fs_err::File::create(dir.file("sessions").join(session.name()))?;
    // RACE: the records are read after the instance's process is gone. This process first records itself, then checks
    // the holder: either its record is read, or the check finds the instance's process gone.
    let parent = getppid();
    if parent.is_none() || dir.holder()? != parent {
        return Err(io::Error::other("the instance has been terminated"));
    }
    Ok(())
}
