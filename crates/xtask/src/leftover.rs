//! Processes of this checkout's builds: a test leaves none behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The program of which pods have a copy, outside of this checkout.
const SERVER: &str = "greenroom-server";

/// Time that processes have to see that their test has ended.
const PATIENCE: Duration = Duration::from_mins(1);

/// The processes that run a program of a checkout's builds.
#[derive(Debug)]
pub struct OwnProcesses {
    target: PathBuf,
    /// The processes that ran before the first step.
    before: BTreeSet<u32>,
}

impl OwnProcesses {
    /// Notes the processes that run already: no test has left them.
    pub fn new(target: &Path) -> Self {
        let mut own = Self { target: target.to_owned(), before: BTreeSet::new() };
        own.before = own.list();
        own
    }

    fn list(&self) -> BTreeSet<u32> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| self.is_own(*pid)).collect()
    }

    /// True for a program in the directory of the builds, and for a copy of this checkout's SSH server. An installation beside the tests
    /// has another one.
    fn is_own(&self, pid: u32) -> bool {
        let exe = format!("/proc/{pid}/exe");
        let Ok(program) = fs::read_link(&exe) else { return false };
        program.starts_with(&self.target)
            || program.file_name().is_some_and(|name| name == SERVER)
                && fs::read(&exe).is_ok_and(|copy| {
                    self.servers().iter().any(|server| fs::read(server).is_ok_and(|built| built == copy))
                })
    }

    /// The SSH servers of all builds: `TRIPLE/debug` below the directory of the builds, or below a build's own one.
    fn servers(&self) -> Vec<PathBuf> {
        let below = |dir: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
        };
        let first = below(&self.target);
        let second = first.iter().flat_map(|dir| below(dir));
        let servers = first.iter().cloned().chain(second).map(|dir| dir.join("debug").join(SERVER));
        servers.filter(|path| path.is_file()).collect()
    }

    /// Waits until no further process runs, or for a minute. Returns a line for each process that is left.
    pub fn left(&self, is_stopping: impl Fn() -> bool) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left: Vec<u32> = self.list().difference(&self.before).copied().collect();
            if left.is_empty() || is_stopping() || Instant::now() >= until {
                return left.into_iter().map(line).collect();
            }
            thread::sleep(Duration::from_millis(500));
        }
    }
}

fn line(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid}: {}", String::from_utf8_lossy(&command).replace('\0', " "))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Copies a program by another process: an open file cannot be executed, and programs that other tests start at the same time
    /// would inherit it.
    fn copy(program: &str, to: &Path) {
        assert!(Command::new("cp").arg(program).arg(to).status().unwrap().success());
    }

    #[test]
    fn programs_of_the_builds_and_copies_of_the_server_are_found() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("target");
        let debug = target.join("triple/debug");
        fs::create_dir_all(&debug).unwrap();
        let elsewhere = place.path().join(SERVER);
        let sleep = "/bin/sleep";
        for path in [debug.join("job"), debug.join(SERVER), elsewhere.clone()] {
            copy(sleep, &path);
        }
        let mut before = Command::new(debug.join("job")).arg("1000").spawn().unwrap();
        let own = OwnProcesses::new(&target);
        assert_eq!(own.list(), BTreeSet::from([before.id()]));

        let mut program = Command::new(debug.join("job")).arg("1000").spawn().unwrap();
        let mut copy = Command::new(&elsewhere).arg("1000").spawn().unwrap();
        let mut other = Command::new(sleep).arg("1000").spawn().unwrap();
        // A program has its arguments a moment after it has begun.
        for child in [&program, &copy] {
            while line(child.id()).ends_with(": ") {
                thread::sleep(Duration::from_millis(10));
            }
        }
        let left = own.left(|| true);
        for child in [&mut before, &mut program, &mut copy, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let expected = BTreeSet::from([program.id(), copy.id()]);
        let pids = left.iter().map(|line| line.split(':').next().unwrap().parse().unwrap());
        assert_eq!(pids.collect::<BTreeSet<u32>>(), expected, "{left:?}");
        assert!(left.iter().all(|line| line.ends_with(" 1000 ")), "{left:?}");
    }

    #[test]
    fn nothing_is_left_once_the_processes_have_ended() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("job");
        copy("/bin/sleep", &program);
        let own = OwnProcesses::new(place.path());
        let mut child = Command::new(&program).arg("0.3").spawn().unwrap();
        let reaps = thread::spawn(move || child.wait());
        assert_eq!(own.left(|| false), [""; 0]);
        reaps.join().unwrap().unwrap();
    }
}
