//! Finds and ends what runs on an instance.
//!
//! A process belongs to an instance if its session is recorded, or if the instance's cookie is in its environment.
//! Together they find a job that started a session of its own as well as one that wiped its environment.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use fs_err as fs;
use rustix::process::{Pid, PidfdFlags, Signal};

/// The variable that carries an instance's cookie.
pub(super) const COOKIE: &str = "GREENROOM_LOCAL_INSTANCE";

/// How long everything is killed again and again before we give up: unkillable, or another user's.
const PATIENCE: Duration = Duration::from_secs(5);

/// A session that was started on an instance, by its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Session {
    pub(super) leader: i32,
    /// Clock ticks since boot: tells the leader from a later process of the same number.
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

    /// The records of an instance. No directory: none.
    pub(super) fn recorded(sessions: &Path) -> BTreeSet<Self> {
        let Ok(entries) = fs::read_dir(sessions) else { return BTreeSet::new() };
        entries.flatten().filter_map(|entry| Self::parse(entry.file_name().to_str()?)).collect()
    }
}

/// One line of the process table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) session: i32,
    pub(super) started: u64,
    /// Dead, only not yet waited for.
    pub(super) zombie: bool,
}

impl Process {
    /// Field numbers as in proc(5); the name in brackets may contain anything, brackets included.
    fn parse(stat: &str) -> Option<Self> {
        let pid = stat.split(' ').next()?.parse().ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        let zombie = matches!(*fields.first()?, "Z" | "X");
        let session = fields.get(3)?.parse().ok()?;
        let started = fields.get(19)?.parse().ok()?;
        Some(Self { pid, session, started, zombie })
    }

    /// `None`: there is no such process.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn all() -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            found.extend(pid.and_then(Self::of));
        }
        Ok(found)
    }

    fn carries(&self, cookie: &str) -> bool {
        // Another user's, or gone: not ours to judge.
        let Ok(environment) = std::fs::read(format!("/proc/{}/environ", self.pid)) else { return false };
        let wanted = format!("{COOKIE}={cookie}");
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    }

    fn kill(&self) {
        signal(self, Signal::KILL);
    }
}

/// Signals exactly this process, not one that took its number meanwhile.
pub(super) fn signal(process: &Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    // RACE: the handle is taken first; if number and start time match now, the handle is the process.
    if Process::of(process.pid).is_some_and(|now| now.started == process.started) {
        // Gone meanwhile is what was wanted; refused (another user's) is seen by whoever looks again.
        let _ = rustix::process::pidfd_send_signal(&handle, signal);
    }
}

/// Are there processes left in a session?
pub(super) fn is_empty(session: Session, table: &[Process]) -> bool {
    !table.iter().any(|process| process.session == session.leader && !process.zombie)
}

/// The recorded sessions that have nobody left.
pub(super) fn ended(sessions: &BTreeSet<Session>) -> Vec<Session> {
    let Ok(table) = Process::all() else { return Vec::new() };
    sessions.iter().copied().filter(|session| is_empty(*session, &table)).collect()
}

/// Everything alive that belongs to an instance.
fn members(cookie: &str, sessions: &BTreeSet<Session>) -> io::Result<Vec<Process>> {
    let table = Process::all()?;
    // A number whose present owner began at another time is no longer that session.
    let stale = |session: &Session| {
        table.iter().any(|process| process.pid == session.leader && process.started != session.started)
    };
    let living: BTreeSet<i32> = sessions.iter().filter(|s| !stale(s)).map(|s| s.leader).collect();
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let is_member = |process: &Process| {
        !process.zombie
            && process.pid != own
            && (living.contains(&process.session) || process.carries(cookie))
    };
    Ok(table.iter().filter(|process| is_member(process)).cloned().collect())
}

/// Kills everything that belongs to an instance, as a power cut would. Blocks, 5 s at most; the number of processes
/// that would not go.
pub(super) fn end_all(cookie: &str, sessions: &BTreeSet<Session>) -> io::Result<usize> {
    let begun = Instant::now();
    let mut clean = 0;
    loop {
        let left = members(cookie, sessions)?;
        left.iter().for_each(Process::kill);
        // RACE: a process that is just starting a program shows no environment: two looks must agree.
        clean = if left.is_empty() { clean + 1 } else { 0 };
        if clean == 2 {
            return Ok(0);
        }
        if begun.elapsed() > PATIENCE {
            return Ok(left.len());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Which boot of the machine, in the kernel's words.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_brackets_confuses_nobody() {
        let rest = "S 1 41 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987 1 2 3";
        let process = Process::parse(&format!("42 (a) b (c) {rest}")).unwrap();
        assert_eq!(process, Process { pid: 42, session: 40, started: 987, zombie: false });
        assert_eq!(Process::parse("42 (a"), None);
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(!own.zombie && own.started > 0);
    }

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
        signal(&Process { pid, session: 0, started: started - 1, zombie: false }, Signal::KILL);
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
