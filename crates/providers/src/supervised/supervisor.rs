//! The process of an instance on the runner host, seen from inside: its start, its signals, its removal.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fs_err as fs;
use greenroom_system::remove;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::instance_dir::{InstanceDir, ServerRecord};
use crate::process;

/// Interval at which the process checks that the lock's path still names the file that it has locked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The files that are removed last, in this order: as long as the spec exists, there is an instance to terminate.
const LAST: [&str; 2] = ["spec.json", "lock"];

/// The reason the process of an instance exits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// Termination was requested: the directory is removed.
    Terminated,
    /// The instance failed, or was killed by SIGTERM: the directory stays, as a dead machine stays in its provider's list.
    Died(String),
    /// The directory was removed or replaced, so no caller needs this process any more.
    Orphaned,
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Terminated => f.write_str("terminated"),
            Self::Died(why) => f.write_str(why),
            Self::Orphaned => f.write_str("the directory no longer exists"),
        }
    }
}

/// An instance whose lock this process holds.
#[derive(Debug)]
pub struct Seized {
    /// The instance's lock, held until the process exits. Its file is never opened a second time: closing that descriptor would
    /// release the lock.
    pub lock: fs::File,
    /// The process that served the instance before this one; `None`: this is the first.
    pub before: Option<ServerRecord>,
    /// True if the instance is to be removed, not served.
    pub removing: bool,
}

/// Detaches this process: a session of its own, `/` as its working directory.
pub fn detach() {
    // Fails for the leader of a process group, which was then started by hand.
    let _ = rustix::process::setsid();
    drop(std::env::set_current_dir("/"));
}

/// Makes this process the instance's. `None`: another process serves it or has served it; no instance is served twice.
pub fn seize(dir: &InstanceDir) -> io::Result<Option<Seized>> {
    let Some(lock) = dir.seize()? else { return Ok(None) };
    failpoint("supervisor.seized");
    if dir.launched()?.is_none() {
        return Ok(None);
    }
    let removing = dir.has("terminating");
    let before = dir.served()?;
    if before.is_some() && !removing {
        return Ok(None);
    }
    if !removing {
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        // CRASH: before this line the instance is half-made and the same token starts another process; after it,
        // dead.
        dir.put("server.json", &ServerRecord { pid, boot: process::boot_id()? })?;
        failpoint("supervisor.recorded");
    }
    Ok(Some(Seized { lock, before, removing }))
}

/// Answers the launch that waits for this process, and closes its pipe.
pub fn answer() {
    let mut stdout = io::stdout();
    // An interrupted launch no longer listens; the instance keeps running and is listed.
    drop(stdout.write_all(b"+").and_then(|()| stdout.flush()));
    if let Ok(null) = fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Writes a line to the instance's console.
pub fn note(text: &str) {
    let now = jiff::Timestamp::now().round(jiff::Unit::Millisecond).unwrap_or_default();
    drop(writeln!(io::stderr(), "{now} greenroom: {text}"));
}

/// Handlers of signals; jobs would inherit ignored signals. With the handlers, only SIGKILL ends this process by
/// itself: the next `terminate` does not interrupt a removal.
#[derive(Debug)]
pub struct Signals {
    stop: Signal,
    _others: Vec<Signal>,
}

impl Signals {
    /// Must be called inside a runtime.
    pub fn new() -> io::Result<Self> {
        let others = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()];
        let others: io::Result<Vec<Signal>> = others.into_iter().map(signal).collect();
        Ok(Self { stop: signal(SignalKind::terminate())?, _others: others? })
    }

    /// Returns when the instance has to end: by `terminate`, by a signal from elsewhere, or with its directory.
    /// `on_check` as in [`orphaned`].
    pub async fn end(&mut self, dir: &InstanceDir, lock: &fs::File, on_check: impl Fn()) -> ExitReason {
        tokio::select! {
            _ = self.stop.recv() => {
                let requested = dir.has("terminating");
                if requested { ExitReason::Terminated } else { ExitReason::Died("killed by SIGTERM".to_owned()) }
            }
            () = orphaned(dir, lock, on_check) => ExitReason::Orphaned,
        }
    }
}

/// Returns when the path of a lock names another file, or none. Calls `on_check` whenever it still names the same file.
pub async fn orphaned(dir: &InstanceDir, lock: &fs::File, on_check: impl Fn()) {
    let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
    let own = lock.metadata().ok().map(inode);
    let mut tick = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tick.tick().await;
        match fs::metadata(dir.file("lock")).map(inode) {
            Ok(named) if Some(named) == own => on_check(),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                note(&format!("cannot check the directory: {error}"));
            }
            _ => return,
        }
    }
}

/// Removes the directory of an instance on which nothing runs any more. The caller holds its lock.
///
/// CRASH: after an interruption the instance is still listed, or (without its spec) the next `terminate` removes the
/// rest.
pub fn remove_dir(dir: &InstanceDir) -> io::Result<()> {
    let entries = match fs::read_dir(&dir.path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        // The mark is removed with the directory: without it, an interrupted removal would be taken for an instance.
        let name = entry.file_name();
        if !LAST.iter().chain(&["terminating"]).any(|last| name == *last) {
            remove::tree(&entry.path())?;
        }
    }
    let [spec, lock] = LAST;
    failpoint("removal.emptied");
    remove::tree(&dir.file(spec))?;
    failpoint("removal.unlisted");
    remove::tree(&dir.file(lock))?;
    failpoint("removal.unlocked");
    remove::tree(&dir.path)
}

/// Environment variables that long-lived processes inherit in addition to the usual ones.
#[cfg(feature = "crash-points")]
pub const FAILPOINT_VARIABLES: &[&str] = &[FAILPOINT_VARIABLE];
#[cfg(not(feature = "crash-points"))]
pub const FAILPOINT_VARIABLES: &[&str] = &[];

/// The variable with the path of a file that is named like a failpoint.
#[cfg(feature = "crash-points")]
const FAILPOINT_VARIABLE: &str = "GREENROOM_HALT";

/// Stops this process (SIGSTOP) if `GREENROOM_HALT` is the path of a file with this name. Removes the file first, so
/// that one process stops, once.
#[cfg(feature = "crash-points")]
pub fn failpoint(name: &str) {
    let Some(file) = std::env::var_os(FAILPOINT_VARIABLE).map(std::path::PathBuf::from) else { return };
    if file.file_name().is_some_and(|file_name| file_name == name) && std::fs::remove_file(&file).is_ok() {
        let stopped = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
        debug_assert!(stopped.is_ok(), "{stopped:?}");
    }
}

/// Does nothing without the feature.
#[cfg(not(feature = "crash-points"))]
pub fn failpoint(_name: &str) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_and_a_second_removal_is_fine() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = InstanceDir::at(temporary.path().join("one"));
        fs::create_dir_all(dir.file("work/deep")).unwrap();
        for file in ["spec.json", "lock", "terminating", "work/deep/file"] {
            fs::write(dir.file(file), "").unwrap();
        }
        remove_dir(&dir).unwrap();
        remove_dir(&dir).unwrap();
        assert!(!dir.path.exists());
    }
}
