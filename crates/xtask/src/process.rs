//! Processes of steps: each in a process group of its own, with a time limit, and stopped with everything that it has started.
//!
//! Invariant: a process of a step receives SIGTERM when this program ends, however it ends.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, kill_process, kill_process_group, pidfd_open,
    set_parent_process_death_signal,
};

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// Clock ticks per second in `/proc`: the kernel's interface has 100 on every machine.
const TICKS_PER_SECOND: u64 = 100;

/// The hidden command of this program that executes another one under [`exec_with_parent`].
pub const EXEC: &str = "exec-with-parent";

/// The reasons for which a process could not be started or waited for.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot run `{program}`: {source}")]
    Start { program: String, source: io::Error },
    #[error("cannot wait for `{program}`: {source}")]
    Wait { program: String, source: io::Error },
    #[error("cannot write output to {}: {source}", path.display())]
    Output { path: PathBuf, source: io::Error },
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    Exited(i32),
    Signaled(i32),
    /// The process was killed at its time limit.
    TimedOut(Duration),
    /// The whole run was stopped.
    Stopped,
}

impl ProcessEnd {
    fn of(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signaled(status.signal().unwrap_or_default()), Self::Exited)
    }

    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }
}

impl std::fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit {code}"),
            Self::Signaled(signal) => write!(f, "signal {signal}"),
            Self::TimedOut(limit) if limit.as_secs() < 60 => {
                write!(f, "killed at its limit of {} s", limit.as_secs())
            }
            Self::TimedOut(limit) => write!(f, "killed at its limit of {} min", limit.as_secs() / 60),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// An ended process and its processor time, with that of the processes it has waited for.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub end: ProcessEnd,
    pub cpu: Duration,
}

/// A program to run, with its output in a file.
#[derive(Debug)]
pub struct Program<'a> {
    pub words: Vec<String>,
    pub dir: &'a Path,
    pub env: Vec<(String, String)>,
    pub limit: Duration,
}

/// Starts processes, until the whole run is stopped.
#[derive(Debug)]
pub struct Processes {
    /// The path of this program, through which processes are executed so that they end with it. Without it, they are
    /// started directly.
    via: Option<PathBuf>,
    /// Readable once the run is being stopped.
    stop: OwnedFd,
}

impl Processes {
    /// Processes that are started directly.
    pub fn new() -> io::Result<Self> {
        Ok(Self { via: None, stop: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    /// Processes that end with this program, which must have the command [`EXEC`].
    pub fn of_this_program() -> io::Result<Self> {
        // Also after a build has replaced the file.
        Ok(Self { via: Some("/proc/self/exe".into()), ..Self::new()? })
    }

    /// Stops all processes, and starts no further one.
    pub fn stop(&self) -> io::Result<()> {
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    pub fn is_stopping(&self) -> bool {
        let mut stop = [PollFd::new(&self.stop, PollFlags::IN)];
        poll(&mut stop, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Runs a program until it ends.
    pub fn run(&self, program: &Program<'_>, out: File, err: File) -> Result<Ended, ProcessError> {
        if self.is_stopping() {
            return Ok(Ended { end: ProcessEnd::Stopped, cpu: Duration::ZERO });
        }
        let name = program.words.first().cloned().unwrap_or_default();
        let mut words: Vec<&OsStr> = program.words.iter().map(OsStr::new).collect();
        let own_pid = std::process::id().to_string();
        if let Some(via) = &self.via {
            words.splice(0..0, [via.as_os_str(), EXEC.as_ref(), own_pid.as_ref()]);
        }
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(program.dir).envs(program.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|source| ProcessError::Start { program: name.clone(), source })?;
        let pid = Pid::from_child(&child);
        let early_end = self.wait(pid, program.limit);
        let cpu = processor_time(pid);
        let ended = early_end.and_then(|early_end| {
            let status = child.wait()?;
            Ok(early_end.unwrap_or_else(|| ProcessEnd::of(status)))
        });
        let end = ended.map_err(|source| ProcessError::Wait { program: name, source })?;
        Ok(Ended { end, cpu })
    }

    /// Waits until a child has ended, without reaping it. At its limit, or if the run is stopped, kills it, and returns why.
    fn wait(&self, pid: Pid, limit: Duration) -> io::Result<Option<ProcessEnd>> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let until = Instant::now() + limit;
        let early_end = loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut events = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut events, Some(&timeout)) {
                Ok(0) => break ProcessEnd::TimedOut(limit),
                Ok(_) if !events[0].revents().is_empty() => return Ok(None),
                Ok(_) => break ProcessEnd::Stopped,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        kill_with_descendants(pid);
        Ok(Some(early_end))
    }
}

/// Sends SIGTERM to a child's process group and to its descendants, which may have groups of their own, and SIGKILL to those that
/// remain.
fn kill_with_descendants(pid: Pid) {
    let mut started = Vec::new();
    collect_descendants(pid, &mut started);
    let send = |signal| {
        // A process that is gone needs no signal.
        kill_process_group(pid, signal).ok();
        for (descendant, born) in &started {
            if birth(*descendant) == *born {
                kill_process(*descendant, signal).ok();
            }
        }
    };
    send(Signal::TERM);
    let until = Instant::now() + GRACE;
    let lives = |(pid, born): &(Pid, Option<u64>)| born.is_some() && birth(*pid) == *born;
    let own = (pid, birth(pid));
    while Instant::now() < until && (lives(&own) || started.iter().any(lives)) {
        thread::sleep(Duration::from_millis(50));
    }
    if lives(&own) || started.iter().any(lives) {
        send(Signal::KILL);
    }
}

fn collect_descendants(pid: Pid, found: &mut Vec<(Pid, Option<u64>)>) {
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            found.push((child, birth(child)));
            collect_descendants(child, found);
        }
    }
}

/// The fields of `/proc/PID/stat` after the name of the program.
fn stat(pid: Pid) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// The start of a process, in ticks since the boot; `None` if it has ended.
fn birth(pid: Pid) -> Option<u64> {
    let fields = stat(pid)?;
    let has_ended = matches!(fields.first()?.as_str(), "Z" | "X");
    if has_ended { None } else { fields.get(19)?.parse().ok() }
}

/// The processor time of a process that has ended and was not reaped, with that of its children.
fn processor_time(pid: Pid) -> Duration {
    let fields = stat(pid).unwrap_or_default();
    let ticks: u64 = fields.iter().skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Becomes a program that receives SIGTERM when its parent ends. Returns only if the program cannot be executed.
pub fn exec_with_parent(parent: i32, words: &[String]) -> ExitCode {
    let Some((program, arguments)) = words.split_first() else { return ExitCode::from(127) };
    let problem = match set_parent_process_death_signal(Some(Signal::TERM)) {
        // RACE: the parent may have ended before the call.
        Ok(()) if getppid() != Pid::from_raw(parent) => return ExitCode::from(143),
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error.into(),
    };
    writeln!(io::stderr(), "cannot run `{program}`: {problem}").ok();
    ExitCode::from(127)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(text: &str, limit: Duration) -> Program<'static> {
        let words = ["sh", "-c", text].map(str::to_owned).into();
        Program { words, dir: Path::new("/"), env: vec![("WORD".to_owned(), "said".to_owned())], limit }
    }

    fn run(processes: &Processes, program: &Program<'_>) -> (Ended, String) {
        let out = tempfile::NamedTempFile::new().unwrap();
        let ended = processes.run(program, out.reopen().unwrap(), out.reopen().unwrap()).unwrap();
        (ended, fs::read_to_string(out.path()).unwrap())
    }

    fn lives(pid: &str) -> bool {
        birth(Pid::from_raw(pid.trim().parse().unwrap()).unwrap()).is_some()
    }

    #[test]
    fn a_process_ends_with_its_status_and_its_output() {
        let minute = Duration::from_mins(1);
        for (text, expected, output) in [
            ("echo $WORD", ProcessEnd::Exited(0), "said\n"),
            ("exit 3", ProcessEnd::Exited(3), ""),
            ("kill -ABRT $$", ProcessEnd::Signaled(6), ""),
        ] {
            let (ended, printed) = run(&Processes::new().unwrap(), &sh(text, minute));
            assert_eq!((ended.end, printed.as_str()), (expected, output), "{text}");
        }
    }

    #[test]
    fn processor_time_counts_children() {
        let burn =
            sh("sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; true", Duration::from_mins(5));
        let (ended, _) = run(&Processes::new().unwrap(), &burn);
        assert!(ended.cpu >= Duration::from_millis(50), "{:?}", ended.cpu);
    }

    #[test]
    fn at_its_limit_a_process_is_killed_with_what_it_has_started() {
        let (ended, printed) = run(
            &Processes::new().unwrap(),
            &sh("setsid sleep 1000 & echo $!; sleep 1000", Duration::from_secs(2)),
        );
        assert_eq!(ended.end, ProcessEnd::TimedOut(Duration::from_secs(2)));
        assert!(!lives(&printed), "{printed}");
    }

    #[test]
    fn a_stop_ends_what_runs_and_starts_nothing_more() {
        let processes = Processes::new().unwrap();
        let place = tempfile::tempdir().unwrap();
        let begun = place.path().join("begun");
        let text = format!("setsid sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait", begun.display());
        thread::scope(|scope| {
            let lane = scope.spawn(|| run(&processes, &sh(&text, Duration::from_mins(10))));
            while !begun.exists() {
                thread::sleep(Duration::from_millis(10));
            }
            processes.stop().unwrap();
            assert_eq!(lane.join().unwrap().0.end, ProcessEnd::Stopped);
        });
        assert!(!lives(&fs::read_to_string(&begun).unwrap()));
        assert_eq!(run(&processes, &sh("echo no", Duration::from_mins(1))).0.end, ProcessEnd::Stopped);
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let program =
            Program { words: vec!["/nowhere/program".to_owned()], ..sh("", Duration::from_secs(1)) };
        let file = || tempfile::tempfile().unwrap();
        let error = Processes::new().unwrap().run(&program, file(), file()).unwrap_err().to_string();
        assert!(error.starts_with("cannot run `/nowhere/program`: No such file"), "{error}");
    }
}
