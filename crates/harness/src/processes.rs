//! The processes of a place: found in /proc by its path in their arguments, environment or directory, or by a file in
//! it that they hold open, which is all that a QEMU process has of it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use greenroom_system::process::Stat;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The purpose of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `config`, `prepare`, `run`, `cleanup`.
    Call,
    Keeper,
    /// The server of an instance, or the supervisor of a machine.
    Instance,
    /// Holds the connection to an instance.
    Link,
    /// A virtual machine, also before its process has become QEMU.
    Qemu,
    /// Holds the template of virtual machines.
    Holder,
    /// A fleeting plugin of the tests.
    Plugin,
    /// A session on an instance that has not become its program yet.
    Trampoline,
    /// The job's own: shells and what they started.
    Guest,
    /// A played runner in a process of its own.
    Runner,
    /// Another `greenroom` command.
    Other,
}

/// A process, distinguished from later ones of the same number by its start time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    started: u64,
    pub kind: Kind,
    pub arguments: Vec<String>,
}

impl Process {
    /// The start time of a living process; `None`: it is gone, or a zombie.
    fn started(pid: i32) -> Option<u64> {
        Stat::of(pid).ok().filter(|stat| !stat.has_exited()).map(|stat| stat.start)
    }

    pub fn is_alive(&self) -> bool {
        Self::started(self.pid) == Some(self.started)
    }

    /// Signals exactly this process; false if it is gone.
    pub fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        // The handle first: if number and start time match now, the handle is the process.
        self.is_alive() && pidfd_send_signal(&handle, signal).is_ok()
    }

    pub fn kill9(&self) -> bool {
        self.signal(Signal::KILL)
    }

    /// Kills it if it is still of the same kind. A session on an instance becomes the job's own shell without another
    /// number or start time, and killing a job's shell would end the job. Stopped first, so that it cannot become
    /// another program between the check and the kill.
    pub fn kill9_as_found(&self) -> bool {
        if self.kind != Kind::Trampoline {
            return self.kill9();
        }
        if !self.signal(Signal::STOP) {
            return false;
        }
        wait_for("its stop", Duration::from_secs(10), || {
            (is_stopped(self.pid.unsigned_abs()) || !self.is_alive()).then_some(())
        });
        let line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        if kind(&words(&line), true) == Kind::Trampoline {
            return self.kill9();
        }
        self.signal(Signal::CONT);
        false
    }

    /// All of its environment; empty if it cannot be read.
    pub fn environment(&self) -> Vec<u8> {
        std::fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default()
    }

    pub fn arguments_text(&self) -> String {
        self.arguments.join(" ")
    }
}

/// True if a signal has stopped the process.
pub fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.state == 'T')
}

/// True if the process has exited, also as a zombie.
pub fn is_gone(pid: u32) -> bool {
    stat(pid).is_none_or(|stat| stat.has_exited())
}

fn stat(pid: u32) -> Option<Stat> {
    Stat::of(i32::try_from(pid).ok()?).ok()
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// The arguments of a process, from its `cmdline`.
fn words(line: &[u8]) -> Vec<String> {
    let parts = line.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// True if the process holds a file below a path open, even a removed one.
fn holds_open(pid: i32, path: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|file| file.starts_with(path))
}

fn kind(arguments: &[String], guest: bool) -> Kind {
    let program = arguments.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let ours = program == "greenroom" || arguments.first().is_some_and(|first| first == "/proc/self/exe");
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    if arguments.iter().any(|argument| argument.ends_with("a_runner_process_plays_the_job_of_its_work_file"))
    {
        return Kind::Runner;
    }
    match () {
        () if program.as_bytes().starts_with(b"qemu-system") => Kind::Qemu,
        () if program == "fleeting-test-plugin" => Kind::Plugin,
        () if !ours && guest => Kind::Guest,
        () if !ours => Kind::Other,
        () if has("keep") => Kind::Keeper,
        () if has("qemu") && has("exec") => Kind::Qemu,
        () if has("qemu") && has("template") => Kind::Holder,
        () if has("instance") && (has("serve") || has("supervise")) => Kind::Instance,
        () if arguments.last().is_some_and(|last| last == "link") => Kind::Link,
        () if has("instance") && has("session") => Kind::Trampoline,
        () if ["config", "prepare", "run", "cleanup"].iter().any(|call| has(call)) => Kind::Call,
        () => Kind::Other,
    }
}

/// Waits while a process has no kind: one that is just exiting still has its files but no arguments any more, and one
/// that just executes another program has none yet. False: it has exited.
fn is_itself(pid: i32, started: u64) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    let has_arguments = || std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    while !has_arguments() && Process::started(pid) == Some(started) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    Process::started(pid) == Some(started)
}

/// Everything alive that belongs to a path. This process does not count.
pub fn of(path: &Path) -> Vec<Process> {
    let needle = path.as_os_str().as_bytes();
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc can be read").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if pid == own {
            continue;
        }
        let Some(started) = Process::started(pid) else { continue };
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_else(|_| PathBuf::new());
        let inside = contains(&read("cmdline"), needle)
            || contains(&read("environ"), needle)
            || cwd.starts_with(path)
            || holds_open(pid, path);
        if !inside || !is_itself(pid, started) {
            continue;
        }
        let line = read("cmdline");
        let environment = read("environ");
        let arguments = words(&line);
        let guest = contains(&environment, b"GREENROOM_LOCAL_INSTANCE=");
        let kind = kind(&arguments, guest);
        // A child of this process between fork and exec still looks like this test.
        if std::fs::read_link(format!("/proc/{pid}/exe")).ok() == std::env::current_exe().ok()
            && kind != Kind::Runner
        {
            continue;
        }
        found.push(Process { pid, started, kind, arguments });
    }
    found.sort_by_key(|process| process.pid);
    found
}

/// Waits until `look` returns a value; fails the test otherwise.
#[track_caller]
pub fn wait_for<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + within;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < until, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
