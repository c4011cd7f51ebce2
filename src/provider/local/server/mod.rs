//! The instance's own process: serves SSH until it ends.
//!
//! Started by a launch, it is on its own at once: own session, nothing of the caller's environment, streams on the
//! console's file. Whoever wants it gone marks its directory and sends SIGTERM; then it buries itself.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use super::dir::{InstanceDir, Served, Spec};
use super::login;
use super::processes::{self, Process};

mod bury;
mod guest;
mod life;
mod openssh;
mod session;
mod spool;
mod ssh;
mod trampoline;

use guest::Guest;

/// The hidden subcommands `instance serve --dir DIR` and `instance session DIR PROGRAM ARGUMENT…`, by what follows
/// `instance`. Not for people.
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

/// Serves or buries the instance in a directory; returns when it is over.
pub fn serve(path: &Path) -> ExitCode {
    // A leader of a process group cannot start a session, but then it was started by hand.
    let _ = rustix::process::setsid();
    drop(std::env::set_current_dir("/"));
    let dir = InstanceDir::at(path);
    match begin(&dir) {
        Ok(Some(begun)) => begun.run(),
        Ok(None) => {
            answer();
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&format!("cannot serve: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// What a process has in hand when the instance is its own.
struct Begun {
    guest: Arc<Guest>,
    /// Held to the end; never opened a second time, or closing that would unlock it.
    lock: fs_err::File,
    pulse: life::Pulse,
    bury: bool,
}

/// `None`: another process serves it, or one has served it: nothing is served twice.
fn begin(dir: &InstanceDir) -> std::io::Result<Option<Begun>> {
    let pulse = life::Pulse::new()?;
    let Some(lock) = dir.seize()? else { return Ok(None) };
    let Some(spec) = dir.spec()? else { return Ok(None) };
    let bury = dir.has("terminating");
    let served = dir.served()?;
    if served.is_some() && !bury {
        return Ok(None);
    }
    let boot = processes::boot_id()?;
    // Process numbers recorded in another boot mean nothing.
    let same_boot = served.as_ref().is_none_or(|served| served.boot == boot);
    let recorded = processes::Session::recorded(&dir.file("sessions"));
    let sessions = if same_boot { recorded } else { std::collections::BTreeSet::default() };
    if !bury {
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        // CRASH: before this line the instance is half-made and the same token starts another process; after it,
        // dead.
        dir.put("server.json", &Served { pid, boot })?;
    }
    let guest = Guest { dir: dir.clone(), spec, user: login::name(), sessions: Mutex::new(sessions) };
    Ok(Some(Begun { guest: Arc::new(guest), lock, pulse, bury }))
}

impl Begun {
    fn run(self) -> ExitCode {
        let Self { guest, lock, pulse, bury } = self;
        answer();
        let end = if bury { life::End::Terminated } else { pulse.live(&guest, &lock) };
        note(&format!("over: {end}"));
        let left = guest.end_all();
        if left > 0 {
            note(&format!("{left} processes would not go"));
            return ExitCode::FAILURE;
        }
        let buried = match end {
            life::End::Terminated => bury::bury(&guest.dir),
            life::End::Died(_) | life::End::Orphaned => Ok(()),
        };
        drop(lock);
        match buried {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                note(&format!("cannot remove the instance: {error}"));
                ExitCode::FAILURE
            }
        }
    }
}

/// Tells the launch that waits for it, and lets go of its pipe.
fn answer() {
    let mut stdout = std::io::stdout();
    // A launch that was cut off listens no more; the instance goes on and is listed.
    drop(stdout.write_all(b"+").and_then(|()| stdout.flush()));
    if let Ok(null) = fs_err::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// A line on the instance's console.
fn note(text: &str) {
    let now = jiff::Timestamp::now().round(jiff::Unit::Millisecond).unwrap_or_default();
    drop(writeln!(std::io::stderr(), "{now} greenroom: {text}"));
}

/// Our own executable, also when it was replaced on disk meanwhile.
fn own_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}
