//! The guard process between the keeper and a plugin: it ends the plugin, and all that the plugin started.
//!
//! Its standard input is a socket of the keeper's. If the keeper closes the socket or dies, this process kills the plugin and
//! whatever that started, removes the directory of the plugin's socket, and reports the plugin's end.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use fs_err as fs;
use greenroom_providers::process::{Process, boot_id};
use greenroom_system::remove;
use rustix::fs::Mode;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, getpid, umask, waitid, waitpid};
use serde::{Deserialize, Serialize};

use crate::program::child::{GuardReport, ProgramEnd};
use crate::program::guard;

/// Name of this process among those of the hidden command `instance`.
pub const KIND: &str = "plugin";
/// File in the socket's directory that the guard process locks.
pub const LOCK: &str = "lock";
/// The record of the plugin's process, in the same place.
pub const RECORD: &str = "process.json";
/// The interval at which exited processes that the plugin left are reaped.
const REAP_INTERVAL: Duration = Duration::from_mins(1);

/// A running plugin, for the start that finds its directory after this process was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginRecord {
    pub pid: i32,
    /// The start of the process, as in [`Process`].
    pub started: u64,
    pub session: i32,
    pub boot: String,
}

/// The main function: the directory of the plugin's socket, the plugin.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [directory, plugin] = arguments else { return ExitCode::from(2) };
    let directory = Path::new(directory);
    let ended = match start(directory, Path::new(plugin)) {
        // The lock is held until this process exits.
        Ok((mut child, _lock)) => {
            let ended = hold(&mut child);
            drop(remove::tree(directory));
            ended
        }
        Err(error) => {
            drop(remove::tree(directory));
            GuardReport { ending: ProgramEnd::NotStarted(error.to_string()), left: false }
        }
    };
    guard::report(&ended)
}

fn start(directory: &Path, plugin: &Path) -> io::Result<(Child, fs::File)> {
    guard::begin()?;
    umask(Mode::RWXG | Mode::RWXO);
    let lock = fs::File::create(directory.join(LOCK))?;
    lock.file().try_lock()?;
    let mut command = Command::new(plugin);
    command.current_dir(directory).stdin(Stdio::null());
    let mut child = command.spawn()?;
    if let Err(error) = record(directory, &child) {
        guard::finish(&mut child, Some(ProgramEnd::Stopped), |_| true);
        return Err(error);
    }
    Ok((child, lock))
}

fn record(directory: &Path, child: &Child) -> io::Result<()> {
    let pid = pid(child)?;
    let Some(process) = Process::of(pid) else { return Ok(()) };
    let running = PluginRecord {
        pid,
        started: process.started,
        session: getpid().as_raw_nonzero().get(),
        boot: boot_id()?,
    };
    fs::write(directory.join(RECORD), serde_json::to_vec(&running)?)
}

fn pid(child: &Child) -> io::Result<i32> {
    i32::try_from(child.id()).map_err(io::Error::other)
}

/// Waits for the end of the plugin or of the keeper, and kills what is left.
fn hold(child: &mut Child) -> GuardReport {
    let early = loop {
        match guard::watch(child, REAP_INTERVAL) {
            Ok(Some(ProgramEnd::TimeLimit)) => reap_others(child),
            Ok(early) => break early,
            Err(_) => break Some(ProgramEnd::Stopped),
        }
    };
    guard::finish(child, early, |_| true)
}

/// Waits for exited processes that the plugin left behind, and leaves the plugin itself to [`guard::finish`].
fn reap_others(child: &Child) {
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if !matches!(waitid(WaitId::All, peek), Ok(Some(_))) {
        return;
    }
    let own = getpid().as_raw_nonzero().get();
    let plugin = pid(child).ok();
    let exited = |process: &Process| process.parent == own && process.zombie && Some(process.pid) != plugin;
    for process in Process::all().unwrap_or_default().into_iter().filter(exited) {
        let _ = waitpid(Pid::from_raw(process.pid), WaitOptions::NOHANG);
    }
}
