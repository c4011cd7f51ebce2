//! The local host against real processes.
//!
//! This test binary re-executes itself as runners, calls and keepers (`child`, `keeper_child`); they write one message
//! per line to stderr.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking, in helpers too")]

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use greenroom_core::attempt::{AttemptSeen, End, Presence};
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::{Execution, Shell};
use greenroom_core::ids::{AttemptName, InstanceId, JobKey, PoolName};
use greenroom_core::job::JobFacts;
use greenroom_core::order::LaunchOrder;
use greenroom_core::report::Report;
use greenroom_manager::runner_host::{KeeperCommand, LocalHost, Role, Signals, StateDir, Times, detach};
use greenroom_ports::attempts::{Assignment, AttemptRecord, Attempts as _, StageTimeouts};
use greenroom_ports::clock::Clock;
use greenroom_ports::host_error::HostError;
use greenroom_ports::leadership::Leadership as _;
use greenroom_ports::reports::Reports as _;
use greenroom_ports::wakeups::{MailboxName, WakeReason, WakeUps as _};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

mod attempts;
mod builds;
mod deaths;
mod directory;
mod failing_writes;
mod leadership;
mod refusals;
mod wakeups;

const DEADLINE: Duration = Duration::from_secs(30);
const ROLE: &str = "GREENROOM_TEST_ROLE";
const DIR: &str = "GREENROOM_TEST_DIR";

fn home() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn name() -> AttemptName {
    AttemptName::new("custom-executor1")
}

fn pool() -> PoolName {
    PoolName::new("linux")
}

fn no_keeper() -> KeeperCommand {
    KeeperCommand::new("/bin/false", [""; 0], Vec::new)
}

fn host(root: &Path, role: Role) -> LocalHost {
    let state = StateDir::open(root).unwrap_or_else(|error| panic!("{error}"));
    LocalHost::open(state, role, no_keeper(), Signals::default_actions()).unwrap()
}

/// A driver call without a watched runner of its own, because tests run as children of any process.
fn operator(root: &Path) -> LocalHost {
    host(root, Role::Operator)
}

fn record(host: &LocalHost) -> AttemptRecord {
    let key = JobKey::new("https://gitlab.example", 7);
    AttemptRecord {
        builds_dir: None,
        job: JobFacts {
            pipeline: Some(99),
            stage: JobFacts::text("test"),
            name: JobFacts::text("rspec 1/5"),
            git_ref: JobFacts::text("main"),
            protected: true,
            ..JobFacts::new(key, "group/project", Duration::from_hours(1))
        },
        pool: pool(),
        execution: Execution::Machine { shell: Shell::Bash.into() },
        begun: host.now(),
        assignment: None,
        order: None,
    }
}

async fn seen(host: &LocalHost) -> Option<AttemptSeen> {
    host.attempts_of(&pool()).await.unwrap().remove(&name())
}

/// Polls until `good`; panics with the last observation after a timeout.
async fn until_seen(host: &LocalHost, what: &str, good: impl Fn(&AttemptSeen) -> bool) -> AttemptSeen {
    let end = Instant::now() + DEADLINE;
    loop {
        let found = seen(host).await;
        if let Some(found) = &found
            && good(found)
        {
            return found.clone();
        }
        assert!(Instant::now() < end, "not seen: {what}; last {found:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Each side with its own host, on its own thread, like a process of its own.
fn on_own_thread<T: Send + 'static>(
    root: &Path,
    play: impl AsyncFnOnce(LocalHost) -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    let root = root.to_owned();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { play(operator(&root)).await })
    })
}

fn say(word: impl std::fmt::Display) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "{word}").unwrap();
}

fn nanoseconds() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// A child process, killed by its pid when the test ends.
struct Proc {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Proc {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn hear_word(&mut self, word: &str) {
        assert_eq!(self.hear(), word);
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A command that runs this binary in another role, leading a process group as the runner's calls do.
fn child_command(role: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env(ROLE, role)
        .env(DIR, dir)
        .stdin(Stdio::null())
        .process_group(0);
    command
}

fn start(role: &str, dir: &Path) -> Proc {
    Proc::start(child_command(role, dir))
}

#[test]
#[ignore = "other tests start it in a process of its own"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(&role, &dir));
}

async fn play(role: &str, dir: &Path) {
    if role == "open" {
        let owner = operator(&dir.join("state")).identity().await.unwrap().owner;
        return say(owner);
    }
    if let Some(wrapped) = role.strip_prefix("runner-of-") {
        return play_runner(wrapped, dir);
    }
    let signals = Signals::install().unwrap();
    let state = StateDir::open(&dir.join("state")).unwrap();
    let tmpdir = dir.join("custom-executor1");
    let driver = Role::Driver { tmpdir: Some(tmpdir) };
    let host = LocalHost::open(state, driver, no_keeper(), signals).unwrap();
    match role {
        "call" => {
            let _lease = host.begin_attempt(&name(), &record(&host)).await.unwrap();
            say(format_args!("begun {}", std::process::id()));
            let woken = host.wait(MailboxName::Attempt(&name()), DEADLINE).await.unwrap();
            say(format_args!("{woken:?}"));
        }
        "echo" => {
            let _lease = host.begin_attempt(&name(), &record(&host)).await.unwrap();
            say("begun");
            loop {
                let woken = host.wait(MailboxName::Attempt(&name()), DEADLINE).await.unwrap();
                assert_eq!(woken, WakeReason::Message);
                say(nanoseconds());
            }
        }
        "run" => {
            let _lease = host.enter_attempt(&name()).await.unwrap().unwrap();
            say("entered");
            say(format_args!("{:?}", host.stopped(&name()).await));
            // Stopping a stage takes a while.
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
        }
        "deaf" => {
            let _lease = host.begin_attempt(&name(), &record(&host)).await.unwrap();
            say("begun");
            // The test signals this process and then writes a line: all signals arrive before the wait.
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            say(format_args!("{:?}", host.wait(MailboxName::Attempt(&name()), DEADLINE).await.unwrap()));
            say(format_args!("{:?}", host.stopped(&name()).await));
        }
        other => panic!("no role `{other}`"),
    }
}

/// Starts a call as the runner does, and waits without end.
fn play_runner(call: &str, dir: &Path) {
    let mut command = match call.strip_prefix("wrapped-") {
        None => child_command(call, dir),
        Some(call) => {
            let inner = child_command(call, dir);
            let mut shell = Command::new("sh");
            // A command after it keeps the shell from becoming the program itself.
            shell.args(["-c", "\"$0\" \"$@\"; exit"]).arg(inner.get_program()).args(inner.get_args());
            shell.env(ROLE, call).env(DIR, dir).stdin(Stdio::null()).process_group(0);
            shell
        }
    };
    let mut call = command.stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(DEADLINE * 2);
    call.kill().unwrap();
    call.wait().unwrap();
}

/// The process that `start_keeper` starts in these tests: its environment is bare, so the directory is the last
/// argument.
#[test]
#[ignore = "other tests start it in a process of its own"]
fn keeper_child() {
    let dir = PathBuf::from(std::env::args_os().next_back().unwrap());
    if !dir.is_absolute() {
        return;
    }
    detach().unwrap();
    fs::write(dir.join(format!("keeper-{}", std::process::id())), "").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let signals = Signals::install().unwrap();
        let state = StateDir::open(&dir.join("state")).unwrap();
        let host = LocalHost::open(state, Role::Keeper, no_keeper(), signals).unwrap();
        let _lock = host.lock_keeper(DEADLINE).await.unwrap().unwrap();
        fs::copy("/proc/self/environ", dir.join("environ")).unwrap();
        let session = rustix::process::getsid(None).unwrap().as_raw_pid();
        let cwd = std::env::current_dir().unwrap();
        let facts = format!("{}\n{session}\n{}\n", std::process::id(), cwd.display());
        fs::write(dir.join("facts.new"), facts).unwrap();
        fs::rename(dir.join("facts.new"), dir.join("facts")).unwrap();
        let woken = host.wait(MailboxName::Keeper(&pool()), DEADLINE).await.unwrap();
        fs::write(dir.join("woken"), format!("{woken:?}")).unwrap();
    });
}
