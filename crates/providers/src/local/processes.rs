//! The sessions and processes of an instance: records them, finds them and kills them.
//!
//! A process belongs to an instance if its session is recorded, or if the instance's cookie is in its environment.
//! Together, these checks find a job that started a session of its own as well as one that cleared its environment.
//!
//! Invariant: a program runs on an instance only if its session was recorded while the instance's process lived.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use fs_err as fs;
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

use crate::process::{Process, signal};
use crate::supervised::instance_dir::InstanceDir;
use crate::supervised::supervisor::note;

/// The variable that carries an instance's cookie.
pub(super) const COOKIE: &str = "GREENROOM_LOCAL_INSTANCE";

/// The time for which processes are killed repeatedly before the rest counts as unkillable or another user's.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A session on an instance, identified by its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Session {
    pub(super) leader: i32,
    /// Start time in clock ticks since boot; distinguishes the leader from a later process with the same pid.
    pub(super) started: u64,
}

impl Session {
    /// The name of its record in `sessions/`.
    pub(super) fn name(self) -> String {
        format!("{}.{}", self.leader, self.started)
    }

    fn parse(name: &str) -> Option<Self> {
        let (leader, started) = name.split_once('.')?;
        Some(Self { leader: leader.parse().ok()?, started: started.parse().ok()? })
    }

    /// The recorded sessions of an instance; empty if the directory is missing.
    pub(super) fn recorded(sessions: &Path) -> BTreeSet<Self> {
        let Ok(entries) = fs::read_dir(sessions) else { return BTreeSet::new() };
        entries.flatten().filter_map(|entry| Self::parse(entry.file_name().to_str()?)).collect()
    }
}

/// True if no process is left in a session.
pub(super) fn is_empty(session: Session, table: &[Process]) -> bool {
    !table.iter().any(|process| process.session == session.leader && !process.zombie)
}

/// The recorded sessions in which no process is left.
pub(super) fn ended(sessions: &BTreeSet<Session>) -> Vec<Session> {
    let Ok(table) = Process::all() else { return Vec::new() };
    sessions.iter().copied().filter(|session| is_empty(*session, &table)).collect()
}

fn carries(process: &Process, cookie: &str) -> bool {
    // Unreadable: another user's process, or one that has exited.
    let Ok(environment) = std::fs::read(format!("/proc/{}/environ", process.pid)) else { return false };
    let wanted = format!("{COOKIE}={cookie}");
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
}

/// All living processes of an instance.
fn members(cookie: &str, sessions: &BTreeSet<Session>) -> io::Result<Vec<Process>> {
    let table = Process::all()?;
    // If the process with the leader's pid started at another time, the session no longer exists.
    let stale = |session: &Session| {
        table.iter().any(|process| process.pid == session.leader && process.started != session.started)
    };
    let living: BTreeSet<i32> = sessions.iter().filter(|s| !stale(s)).map(|s| s.leader).collect();
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let is_member = |process: &Process| {
        !process.zombie
            && process.pid != own
            && (living.contains(&process.session) || carries(process, cookie))
    };
    Ok(table.iter().filter(|process| is_member(process)).cloned().collect())
}

/// Kills all processes of an instance, as a power cut would. Blocks for at most 5 s; returns the number of processes
/// that are left.
pub(super) fn end_all(cookie: &str, sessions: &BTreeSet<Session>) -> io::Result<usize> {
    let begun = Instant::now();
    let mut clean = 0;
    loop {
        let left = members(cookie, sessions)?;
        for process in &left {
            signal(process, Signal::KILL);
        }
        // RACE: a process that is starting a program shows no environment, so two checks must agree.
        clean = if left.is_empty() { clean + 1 } else { 0 };
        if clean == 2 {
            return Ok(0);
        }
        if begun.elapsed() > KILL_TIMEOUT {
            return Ok(left.len());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `instance session DIR PROGRAM ARGUMENT…`: creates a session, records it and executes the program. Returns only if the
/// program cannot be started.
pub(super) fn run_in_session(dir: &Path, program: &OsString, arguments: &[OsString]) -> ExitCode {
    let problem = match begin_session(&InstanceDir::at(dir)) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    };
    note(&format!("cannot run {}: {problem}", program.display()));
    ExitCode::from(127)
}

fn begin_session(dir: &InstanceDir) -> io::Result<()> {
    setsid()?;
    // The leader is killed when the instance's process exits for any reason; the record finds its descendants.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    let own = Process::of(pid).ok_or_else(|| io::Error::other("/proc does not show this process"))?;
    let session = Session { leader: pid, started: own.started };
    fs_err::File::create(dir.file("sessions").join(session.name()))?;
    // RACE: the records are read after the instance's process is gone. This process first records itself, then checks
    // the holder: either its record is read, or the check finds the instance's process gone.
    let parent = getppid();
    if parent.is_none() || dir.holder()? != parent {
        return Err(io::Error::other("the instance has been terminated"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_record_is_its_name() {
        let session = Session { leader: 7, started: 99 };
        assert_eq!(Session::parse(&session.name()), Some(session));
        assert_eq!(Session::parse("7"), None);
    }

    #[test]
    fn a_number_that_was_given_again_is_spared() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(other.id()).unwrap();
        let started = Process::of(pid).unwrap().started;
        let taken = BTreeSet::from([Session { leader: pid, started: started - 1 }]);
        assert_eq!(end_all("no such cookie", &taken).unwrap(), 0);
        signal(&Process { pid, parent: 0, session: 0, started: started - 1, zombie: false }, Signal::KILL);
        assert!(other.try_wait().unwrap().is_none(), "an innocent process was killed");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_cookie_finds_a_process_in_a_session_of_its_own() {
        let cookie = format!("test-{}", std::process::id());
        let mut hidden =
            std::process::Command::new("setsid").args(["sleep", "60"]).env(COOKIE, &cookie).spawn().unwrap();
        assert_eq!(end_all(&cookie, &BTreeSet::new()).unwrap(), 0);
        let end = hidden.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&end), Some(9));
    }
}
