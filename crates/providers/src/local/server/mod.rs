//! The instance's own process: serves SSH until it ends.
//!
//! A launch starts it, and it detaches immediately: a session of its own, a minimal environment, its streams on the
//! console's file. `terminate` marks its directory and sends SIGTERM; then the process removes the instance.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use super::dir::Spec;
use super::login;
use super::processes;
use crate::instance_dir::InstanceDir;
use crate::process;
use crate::supervisor::{self, ExitReason, Seized, note};

mod guest;
mod life;
mod openssh;
mod ssh;
mod trampoline;

use guest::Guest;

/// The hidden subcommands `instance serve --dir DIR` and `instance session DIR PROGRAM ARGUMENT…`; `arguments` follow
/// `instance`.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let texts: Vec<&str> = arguments.iter().map_while(|argument| argument.to_str()).collect();
    match (texts.as_slice(), arguments) {
        (["serve", "--dir", ..], [_, _, dir]) => serve(Path::new(dir)),
        (["session", ..], [_, dir, program, rest @ ..]) => trampoline::session(Path::new(dir), program, rest),
        _ => {
            note("usage: greenroom instance serve --dir DIR");
            ExitCode::from(2)
        }
    }
}

/// Serves or removes the instance in a directory; returns when that is done.
pub fn serve(path: &Path) -> ExitCode {
    supervisor::detach();
    let dir = InstanceDir::at(path);
    match begin(&dir) {
        Ok(Some(begun)) => begun.run(),
        Ok(None) => {
            supervisor::answer();
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&format!("cannot serve: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The state of a process that has seized its instance.
struct Begun {
    guest: Arc<Guest>,
    seized: Seized,
    pulse: life::Pulse,
}

/// `None`: this process has nothing to do.
fn begin(dir: &InstanceDir) -> std::io::Result<Option<Begun>> {
    let pulse = life::Pulse::new()?;
    let Some(seized) = supervisor::seize(dir)? else { return Ok(None) };
    let Some(spec) = dir.read::<Spec>("spec.json")? else { return Ok(None) };
    let boot = process::boot_id()?;
    // Pids recorded in another boot are meaningless.
    let same_boot = seized.before.as_ref().is_none_or(|served| served.boot == boot);
    let recorded = processes::Session::recorded(&dir.file("sessions"));
    let sessions = if same_boot { recorded } else { std::collections::BTreeSet::default() };
    let guest = Guest { dir: dir.clone(), spec, user: login::name(), sessions: Mutex::new(sessions) };
    Ok(Some(Begun { guest: Arc::new(guest), seized, pulse }))
}

impl Begun {
    fn run(self) -> ExitCode {
        let Self { guest, seized: Seized { lock, before: _, removing }, pulse } = self;
        supervisor::answer();
        let end = if removing { ExitReason::Terminated } else { pulse.live(&guest, &lock) };
        note(&format!("stopping: {end}"));
        let left = guest.end_all();
        if left > 0 {
            note(&format!("cannot stop {left} processes"));
            return ExitCode::FAILURE;
        }
        let removed = match end {
            ExitReason::Terminated => supervisor::remove_dir(&guest.dir),
            ExitReason::Died(_) | ExitReason::Orphaned => Ok(()),
        };
        drop(lock);
        match removed {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                note(&format!("cannot remove the instance: {error}"));
                ExitCode::FAILURE
            }
        }
    }
}

/// This process's executable, even if it has been replaced on disk.
fn own_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}
