//! The process of an instance on this machine, seen from inside: how it begins, what it listens to, how it is buried.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fs_err as fs;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::halt::halt_point;
use super::instance_dir::{InstanceDir, Served};
use super::process;
use super::remove;

/// How often we look whether our lock file is still the one that is named.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What goes last, in this order: as long as there is a spec, there is an instance to terminate.
const LAST: [&str; 2] = ["spec.json", "lock"];

/// Why it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// Somebody asked for it: what is left is removed.
    Terminated,
    /// It broke, or was told to die: the directory stays, as a dead machine stays in its provider's list.
    Died(String),
    /// The directory is gone or was replaced: whoever did that has nothing left to ask us.
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

/// An instance that is this process's own.
#[derive(Debug)]
pub struct Seized {
    /// Held to the end; never opened a second time, or closing that would unlock it.
    pub lock: fs::File,
    /// What recorded itself before us; `None`: we are the first.
    pub before: Option<Served>,
    /// It shall be buried, not served.
    pub bury: bool,
}

/// Becomes a process on its own: a session of its own, in no directory.
pub fn detach() {
    // A leader of a process group cannot start a session, but then it was started by hand.
    let _ = rustix::process::setsid();
    drop(std::env::set_current_dir("/"));
}

/// Becomes the instance's process. `None`: another process serves it, or one has served it: nothing is served twice.
pub fn seize(dir: &InstanceDir) -> io::Result<Option<Seized>> {
    let Some(lock) = dir.seize()? else { return Ok(None) };
    halt_point("supervisor.seized");
    if dir.launched()?.is_none() {
        return Ok(None);
    }
    let bury = dir.has("terminating");
    let before = dir.served()?;
    if before.is_some() && !bury {
        return Ok(None);
    }
    if !bury {
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        // CRASH: before this line the instance is half-made and the same token starts another process; after it,
        // dead.
        dir.put("server.json", &Served { pid, boot: process::boot_id()? })?;
        halt_point("supervisor.recorded");
    }
    Ok(Some(Seized { lock, before, bury }))
}

/// Tells the launch that waits for it, and lets go of its pipe.
pub fn answer() {
    let mut stdout = io::stdout();
    // A launch that was cut off listens no more; the instance goes on and is listed.
    drop(stdout.write_all(b"+").and_then(|()| stdout.flush()));
    if let Ok(null) = fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// A line on the instance's console.
pub fn note(text: &str) {
    let now = jiff::Timestamp::now().round(jiff::Unit::Millisecond).unwrap_or_default();
    drop(writeln!(io::stderr(), "{now} greenroom: {text}"));
}

/// A handler for each, not "ignore": that would be inherited by the jobs. From their making on no signal but SIGKILL
/// ends this process by itself: a burial is not cut off by the next `terminate`.
#[derive(Debug)]
pub struct Signals {
    stop: Signal,
    _others: Vec<Signal>,
}

impl Signals {
    /// Inside a runtime.
    pub fn new() -> io::Result<Self> {
        let others = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()];
        let others: io::Result<Vec<Signal>> = others.into_iter().map(signal).collect();
        Ok(Self { stop: signal(SignalKind::terminate())?, _others: others? })
    }

    /// Returns when the instance shall end: by `terminate`, by a signal from elsewhere, or with its directory.
    pub async fn end(&mut self, dir: &InstanceDir, lock: &fs::File, look: impl Fn()) -> ExitReason {
        tokio::select! {
            _ = self.stop.recv() => {
                let asked = dir.has("terminating");
                if asked { ExitReason::Terminated } else { ExitReason::Died("killed by SIGTERM".to_owned()) }
            }
            () = orphaned(dir, lock, look) => ExitReason::Orphaned,
        }
    }
}

/// Returns when the path of a lock names another file, or none. Calls `look` each time that it does not.
pub async fn orphaned(dir: &InstanceDir, lock: &fs::File, look: impl Fn()) {
    let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
    let own = lock.metadata().ok().map(inode);
    let mut tick = tokio::time::interval(LOOK_EVERY);
    loop {
        tick.tick().await;
        match fs::metadata(dir.file("lock")).map(inode) {
            Ok(named) if Some(named) == own => look(),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                note(&format!("cannot check the directory: {error}"));
            }
            _ => return,
        }
    }
}

/// Removes the directory of an instance on which nothing runs any more; its lock is held by the caller.
///
/// CRASH: cut off anywhere, the instance is still listed, or (after its spec) the rest goes with the next `terminate`.
pub fn bury(dir: &InstanceDir) -> io::Result<()> {
    let entries = match fs::read_dir(&dir.path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        // The mark goes with the directory: without it a cut-off burial would look like an instance.
        let name = entry.file_name();
        if !LAST.iter().chain(&["terminating"]).any(|last| name == *last) {
            remove::tree(&entry.path())?;
        }
    }
    let [spec, lock] = LAST;
    halt_point("burial.emptied");
    remove::tree(&dir.file(spec))?;
    halt_point("burial.unlisted");
    remove::tree(&dir.file(lock))?;
    halt_point("burial.unlocked");
    remove::tree(&dir.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_and_a_second_burial_is_fine() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = InstanceDir::at(temporary.path().join("one"));
        fs::create_dir_all(dir.file("work/deep")).unwrap();
        for file in ["spec.json", "lock", "terminating", "work/deep/file"] {
            fs::write(dir.file(file), "").unwrap();
        }
        bury(&dir).unwrap();
        bury(&dir).unwrap();
        assert!(!dir.path.exists());
    }
}
