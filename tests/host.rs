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

use greenroom::core::attempt::{AttemptSeen, End, Presence};
use greenroom::core::endpoint::Endpoint;
use greenroom::core::execution::{Execution, Shell};
use greenroom::core::ids::{AttemptName, InstanceId, JobKey, PoolName};
use greenroom::core::job::JobFacts;
use greenroom::core::report::Report;
use greenroom::host::local::{KeeperCommand, LocalHost, Role, Signals, StateDir, Times, detach};
use greenroom::port::attempts::{Assignment, AttemptRecord, Attempts as _, StageTimeouts};
use greenroom::port::clock::Clock;
use greenroom::port::host::HostError;
use greenroom::port::leadership::Leadership as _;
use greenroom::port::reports::Reports as _;
use greenroom::port::wakeups::{MailboxName, WakeReason, WakeUps as _};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use pace::Pace;
use skipped::skipped;

#[path = "support/pace.rs"]
mod pace;
#[path = "support/skipped.rs"]
mod skipped;

const DEADLINE: Duration = Duration::from_secs(30);
const ROLE: &str = "GREENROOM_TEST_ROLE";
const DIR: &str = "GREENROOM_TEST_DIR";

// ---- shared pieces -------------------------------------------------------------------------------------------

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
    let state = StateDir::open(root).unwrap();
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
        execution: Execution::Machine { shell: Shell::Bash },
        begun: host.now(),
        assignment: None,
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

/// This binary in another role, leading a process group as the runner's calls do.
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

// ---- the other roles -----------------------------------------------------------------------------------------

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

/// What `start_keeper` starts in these tests: its environment is bare, so the directory is the last argument.
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

// ---- the directory and its owner -----------------------------------------------------------------------------

#[test]
fn twenty_processes_that_open_a_new_directory_agree_on_one_owner() {
    let home = home();
    let procs: Vec<Proc> = (0..20).map(|_| start("open", home.path())).collect();
    let owners: Vec<String> = procs.into_iter().map(|mut proc| proc.hear()).collect();
    assert_eq!(owners[0].len(), 16);
    assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
    let litter: Vec<_> =
        fs::read_dir(home.path().join("state")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(litter, ["owner"]);
}

#[tokio::test]
async fn a_copied_directory_says_so_and_a_renamed_one_does_not() {
    let home = home();
    let original = home.path().join("state");
    let owner = operator(&original).identity().await.unwrap().owner;
    let copy = home.path().join("copy");
    let copied = Command::new("cp").arg("-a").args([&original, &copy]).status().unwrap();
    assert!(copied.success());
    let identity = operator(&copy).identity().await.unwrap();
    assert_eq!(identity.owner, owner);
    let message = identity.moved.unwrap();
    assert!(message.contains("inode") && message.contains("greenroom doctor --take-over"), "{message}");
    let renamed = home.path().join("renamed");
    fs::rename(&original, &renamed).unwrap();
    assert_eq!(operator(&renamed).identity().await.unwrap().moved, None);
}

#[test]
fn a_read_only_and_a_full_file_system_are_named_as_such() {
    for (options, then, expected) in [
        ("size=1m", "mount -o remount,ro \"$0\"", "read-only"),
        ("size=4k", "dd if=/dev/zero of=\"$0/fill\" bs=4k count=1 status=none", "is full"),
    ] {
        let home = home();
        let script = format!("mount -t tmpfs -o {options} none \"$0\" && {{ {then}; \"$@\"; }}");
        let mut command = Command::new("unshare");
        let inner = child_command("open", home.path());
        command.args(["-r", "-m", "sh", "-c", &script]).arg(home.path()).arg(inner.get_program());
        command.args(inner.get_args()).env(ROLE, "open").env(DIR, home.path());
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if stderr.contains("unshare failed") || stderr.contains("mount: ") {
            skipped("user and mount namespaces cannot be made (`unshare -r -m`)");
            return;
        }
        assert!(stderr.contains(expected), "{options}: {stderr}");
    }
}

// ---- attempts ------------------------------------------------------------------------------------------------

#[tokio::test]
async fn an_attempt_goes_from_begin_to_forget() {
    let home = home();
    let host = operator(&home.path().join("state"));
    let begun = record(&host);
    let (lease, first) = host.begin_attempt(&name(), &begun).await.unwrap();
    assert_eq!(first, begun);
    let endpoint = Endpoint {
        address: "192.0.2.1".into(),
        port: 22,
        user: "ci".into(),
        host_key: "ssh-ed25519 A".into(),
        key: None,
        jump: None,
    };
    let assignment = Assignment {
        instance: InstanceId::new("linux-1"),
        endpoint,
        is_static: false,
        timeouts: StageTimeouts::default(),
    };
    for now in [Some(&assignment), None, Some(&assignment)] {
        host.assign(&name(), now).await.unwrap();
        let (_call, found) = host.enter_attempt(&name()).await.unwrap().unwrap();
        assert_eq!(found.assignment.as_ref(), now);
    }
    drop(lease);
    let (run, found) = host.enter_attempt(&name()).await.unwrap().unwrap();
    assert_eq!(found.assignment.as_ref(), Some(&assignment));
    assert!(host.seize_attempt(&name()).await.unwrap().is_none(), "a call holds it");
    let open = seen(&host).await.unwrap();
    assert!(open.lease_held && !open.used && open.closed.is_none());
    assert_eq!(open.instance.as_ref(), Some(&assignment.instance));
    host.mark_used(&name()).await.unwrap();
    drop(run);
    let closing = host.close_attempt(&name(), End::CleanedUp).await.unwrap();
    assert_eq!((closing.used, closing.record.unwrap()), (true, found));
    drop(closing.lease);
    assert!(matches!(host.mark_used(&name()).await, Err(HostError::Closed { .. })));
    assert!(matches!(host.enter_attempt(&name()).await, Err(HostError::Closed { .. })));
    assert!(matches!(host.begin_attempt(&name(), &begun).await, Err(HostError::Closed { .. })));
    // A process that another test has just forked holds this test's descriptors until it executes its own program.
    let closed = until_seen(&host, "a free lease", |a| !a.lease_held).await;
    assert!(closed.closed.is_some() && closed.used);
    assert_eq!(seen(&host).await.unwrap(), closed, "a settled attempt stays as it is");
    host.forget_attempt(&name()).await.unwrap();
    assert!(seen(&host).await.is_none() && host.enter_attempt(&name()).await.unwrap().is_none());
    assert_eq!(fs::read_dir(home.path().join("state/attempts")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_cleanup_that_comes_first_keeps_the_prepare_out() {
    let home = home();
    let host = operator(&home.path().join("state"));
    let closing = host.close_attempt(&name(), End::CleanedUp).await.unwrap();
    assert!(closing.record.is_none() && !closing.used && !closing.calls_remain);
    assert_eq!(host.closed(&name()).await.unwrap().and_then(|closed| closed.how), Some(End::CleanedUp));
    let begun = host.begin_attempt(&name(), &record(&host)).await;
    assert!(matches!(begun, Err(HostError::Closed { .. })));
    assert!(host.attempts_of(&pool()).await.unwrap().is_empty(), "it belongs to no pool");
}

#[tokio::test]
async fn the_mark_keeps_its_first_reason_and_every_later_call_gets_it() {
    let home = home();
    let host = operator(&home.path().join("state"));
    let begun = record(&host);
    drop(host.begin_attempt(&name(), &begun).await.unwrap());
    assert_eq!(host.closed(&name()).await.unwrap(), None);
    drop(host.close_attempt(&name(), End::Superseded).await.unwrap());
    let closed = host.closed(&name()).await.unwrap().unwrap();
    assert_eq!(closed.how, Some(End::Superseded));
    drop(host.close_attempt(&name(), End::CleanedUp).await.unwrap());
    host.mark_closed(&name(), End::RunnerGone).await.unwrap();
    assert_eq!(host.closed(&name()).await.unwrap(), Some(closed));
    let reason = |refused: Option<HostError>| match refused {
        Some(HostError::Closed { closed, .. }) => Some(closed),
        _ => None,
    };
    assert_eq!(reason(host.begin_attempt(&name(), &begun).await.err()), Some(closed));
    assert_eq!(reason(host.enter_attempt(&name()).await.err()), Some(closed));
    assert_eq!(reason(host.mark_used(&name()).await.err()), Some(closed));
    assert_eq!(seen(&host).await.unwrap().closed, Some(closed));
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

#[test]
fn of_prepare_and_cleanup_one_always_sees_the_other() {
    let home = home();
    let root = home.path().join("state");
    let mut both = (0, 0);
    for round in 0..300 {
        let attempt = AttemptName::new(format!("custom-executor{round}"));
        let committed = Arc::new(AtomicBool::new(false));
        let barrier = Arc::new(Barrier::new(2));
        let (a, b, at) = (attempt.clone(), Arc::clone(&committed), Arc::clone(&barrier));
        let prepare = on_own_thread(&root, async move |host| {
            let record = record(&host);
            at.wait();
            let Ok((_lease, _)) = host.begin_attempt(&a, &record).await else { return true };
            b.store(true, Ordering::SeqCst);
            host.closed(&a).await.unwrap().is_some()
        });
        let cleanup = on_own_thread(&root, async move |host| {
            barrier.wait();
            let _closing = host.close_attempt(&attempt, End::CleanedUp).await.unwrap();
            committed.load(Ordering::SeqCst)
        });
        let (gave_back, released) = (prepare.join().unwrap(), cleanup.join().unwrap());
        assert!(gave_back || released, "round {round}: a grant that nobody gives back");
        both.0 += u32::from(gave_back);
        both.1 += u32::from(released);
    }
    println!("of 300: prepare saw the end {} times, cleanup saw the grant {} times", both.0, both.1);
}

#[test]
fn a_run_that_sends_is_never_called_unused() {
    let home = home();
    let root = home.path().join("state");
    let mut sent = 0;
    for round in 0..200 {
        let attempt = AttemptName::new(format!("custom-executor{round}"));
        let barrier = Arc::new(Barrier::new(2));
        let (a, at) = (attempt.clone(), Arc::clone(&barrier));
        let run = on_own_thread(&root, async move |host| {
            let (_lease, _) = host.begin_attempt(&a, &record(&host)).await.unwrap();
            at.wait();
            host.mark_used(&a).await.is_ok()
        });
        let cleanup = on_own_thread(&root, async move |host| {
            barrier.wait();
            host.close_attempt(&attempt, End::CleanedUp).await.unwrap().used
        });
        let (sends, used) = (run.join().unwrap(), cleanup.join().unwrap());
        assert!(!sends || used, "round {round}: sent, and given back as unused");
        sent += u32::from(sends);
    }
    println!("of 200: {sent} sent");
}

#[tokio::test]
async fn a_damaged_job_file_is_no_attempt_unless_a_call_lives() {
    let home = home();
    let root = home.path().join("state");
    let host = operator(&root);
    let (lease, _) = host.begin_attempt(&name(), &record(&host)).await.unwrap();
    fs::write(root.join("attempts/custom-executor1/job"), "{\"for").unwrap();
    let error = host.attempts_of(&pool()).await.unwrap_err().to_string();
    assert!(error.contains("is damaged"), "{error}");
    drop(lease);
    assert!(host.attempts_of(&pool()).await.unwrap().is_empty());
    let closing = host.close_attempt(&name(), End::CleanedUp).await.unwrap();
    assert!(closing.record.is_none());
}

#[tokio::test]
async fn litter_of_killed_calls_goes_when_it_is_old_and_not_before() {
    let home = home();
    let root = home.path().join("state");
    let host = operator(&root);
    drop(host.close_attempt(&name(), End::CleanedUp).await.unwrap());
    let attempts = root.join("attempts");
    let half = attempts.join(".custom-executor2.0123abcd");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("lease"), "").unwrap();
    host.attempts_of(&pool()).await.unwrap();
    assert!(half.exists());
    let ago = |dir: &Path, hours| {
        let then = std::time::SystemTime::now() - Duration::from_hours(hours);
        fs::File::open(dir).unwrap().set_modified(then).unwrap();
    };
    ago(&half, 2);
    ago(&attempts.join("custom-executor1"), 2);
    host.attempts_of(&pool()).await.unwrap();
    assert!(!half.exists() && attempts.join("custom-executor1").exists());
    ago(&attempts.join("custom-executor1"), 25);
    host.attempts_of(&pool()).await.unwrap();
    assert_eq!(fs::read_dir(&attempts).unwrap().count(), 0);
}

#[tokio::test]
async fn a_very_long_state_path_works_throughout() {
    let home = home();
    let root = home.path().join("x".repeat(120)).join("y".repeat(120)).join("state");
    assert!(root.as_os_str().len() > 250);
    let host = operator(&root);
    let (_lease, _) = host.begin_attempt(&name(), &record(&host)).await.unwrap();
    host.wake_attempt(&name()).await;
    assert_eq!(host.wait(MailboxName::Attempt(&name()), DEADLINE).await.unwrap(), WakeReason::Message);
    let _keeper = host.lock_keeper(Duration::ZERO).await.unwrap().unwrap();
    let timeout = host.wait(MailboxName::Keeper(&pool()), Duration::ZERO).await.unwrap();
    assert_eq!(timeout, WakeReason::Timeout);
    host.wake_keeper(&pool()).await;
    assert_eq!(host.wait(MailboxName::Keeper(&pool()), DEADLINE).await.unwrap(), WakeReason::Message);
    assert!(
        host.close_attempt(&name(), End::CleanedUp).await.unwrap().calls_remain,
        "the call that began it still lives"
    );
}

#[tokio::test]
async fn a_cleanup_and_a_pass_over_many_ended_attempts_cost_little() {
    let home = home();
    let root = home.path().join("state");
    let keeper = host(&root, Role::Keeper);
    let (mut taken, pace) = (Vec::new(), Pace::watch());
    for round in 0..400 {
        let attempt = AttemptName::new(format!("custom-executor{round}"));
        drop(keeper.begin_attempt(&attempt, &record(&keeper)).await.unwrap());
        let begun = Instant::now();
        let cleanup = operator(&root);
        drop(cleanup.close_attempt(&attempt, End::CleanedUp).await.unwrap());
        taken.push(begun.elapsed());
    }
    taken.sort();
    let first = Instant::now();
    assert_eq!(keeper.attempts_of(&pool()).await.unwrap().len(), 400);
    let first = first.elapsed();
    let again = Instant::now();
    assert_eq!(keeper.attempts_of(&pool()).await.unwrap().len(), 400);
    println!(
        "close_attempt: median {:?}; 400 ended: first look {first:?}, next {:?}",
        taken[200],
        again.elapsed()
    );
    let bound = pace.stretched(Duration::from_millis(3));
    assert!(taken[200] < bound, "at most {bound:?}: {taken:?}");
}

// ---- processes that die --------------------------------------------------------------------------------------

#[tokio::test]
async fn kill_minus_nine_frees_the_lease_and_the_runner_is_still_there() {
    let home = home();
    fs::create_dir(home.path().join("custom-executor1")).unwrap();
    let mut call = start("call", home.path());
    call.hear_word(&format!("begun {}", call.pid()));
    let host = host(&home.path().join("state"), Role::Keeper);
    let held = seen(&host).await.unwrap();
    assert!(held.lease_held);
    assert_eq!((held.runner, held.tmpdir), (Presence::There, Presence::There));
    call.kill();
    let freed = seen(&host).await.unwrap();
    assert!(!freed.lease_held && freed.runner == Presence::There);
    fs::remove_dir(home.path().join("custom-executor1")).unwrap();
    assert_eq!(seen(&host).await.unwrap().tmpdir, Presence::Gone);
    let seized = host.seize_attempt(&name()).await.unwrap();
    assert!(seized.is_some());
    assert!(!seen(&host).await.unwrap().lease_held, "the keeper's own hold is no call");
}

async fn a_runners_death_is_noticed(role: &str) {
    let home = home();
    let tmpdir = home.path().join("custom-executor1");
    fs::create_dir_all(tmpdir.join("script1")).unwrap();
    fs::write(tmpdir.join("script1/script"), "secret").unwrap();
    fs::create_dir(home.path().join("treasure")).unwrap();
    fs::write(home.path().join("treasure/gold"), "keep").unwrap();
    std::os::unix::fs::symlink(home.path().join("treasure"), tmpdir.join("link")).unwrap();
    let mut runner = start(role, home.path());
    assert!(runner.hear().starts_with("begun "));
    let host = host(&home.path().join("state"), Role::Keeper);
    let alive = seen(&host).await.unwrap();
    assert!(alive.lease_held && alive.runner == Presence::There);
    host.remove_tmpdir(&name()).await.unwrap();
    assert!(tmpdir.exists(), "a living runner still needs it");
    runner.kill();
    runner.hear_word("RunnerGone");
    let gone = until_seen(&host, "a free lease and no runner", |a| !a.lease_held).await;
    assert_eq!((gone.runner, gone.tmpdir), (Presence::Gone, Presence::There));
    let _seized = host.seize_attempt(&name()).await.unwrap().unwrap();
    assert!(!host.mark_closed(&name(), End::RunnerGone).await.unwrap());
    host.remove_tmpdir(&name()).await.unwrap();
    assert!(!tmpdir.exists());
    assert_eq!(fs::read_to_string(home.path().join("treasure/gold")).unwrap(), "keep");
}

#[tokio::test]
async fn a_call_stops_by_itself_when_its_runner_dies() {
    a_runners_death_is_noticed("runner-of-call").await;
}

#[tokio::test]
async fn a_call_inside_a_script_knows_the_runner_behind_the_script() {
    a_runners_death_is_noticed("runner-of-wrapped-call").await;
}

#[tokio::test]
async fn from_another_namespace_the_lease_is_seen_and_nothing_else_is_judged() {
    for proc in ["--mount-proc", "--mount"] {
        seen_from_outside(proc).await;
    }
}

/// `--mount-proc`: as in a container. `--mount`: with the outer namespace's /proc, which names other processes.
async fn seen_from_outside(proc: &str) {
    let home = home();
    fs::create_dir(home.path().join("custom-executor1")).unwrap();
    let inner = child_command("call", home.path());
    let mut command = Command::new("unshare");
    command.args(["-r", "-p", "-f", "--kill-child", proc]).arg(inner.get_program()).args(inner.get_args());
    command.env(ROLE, "call").env(DIR, home.path()).stdin(Stdio::null());
    let mut call = Proc::start(command);
    let word = call.hear();
    if !word.starts_with("begun ") {
        skipped("user and process namespaces cannot be made (`unshare -r -p`)");
        return;
    }
    let host = host(&home.path().join("state"), Role::Keeper);
    let held = seen(&host).await.unwrap();
    assert!(held.lease_held);
    assert_eq!((held.runner, held.tmpdir), (Presence::Unknown, Presence::Unknown));
    call.kill();
    until_seen(&host, "a free lease", |a| !a.lease_held).await;
}

#[tokio::test]
async fn a_cleanup_beside_a_living_run_stops_it_and_knows_of_it() {
    let home = home();
    let root = home.path().join("state");
    let host = operator(&root);
    {
        let preparing = operator(&root);
        drop(preparing.begin_attempt(&name(), &record(&preparing)).await.unwrap());
    }
    let mut killed = start("run", home.path());
    killed.hear_word("entered");
    killed.kill();
    let mut command = child_command("run", home.path());
    command.stdin(Stdio::piped());
    let mut run = Proc::start(command);
    run.hear_word("entered");
    let closing = host.close_attempt(&name(), End::CleanedUp).await.unwrap();
    assert!(closing.calls_remain);
    run.hear_word("Message");
    assert!(host.close_attempt(&name(), End::CleanedUp).await.unwrap().calls_remain, "until it ends");
    drop(run.child.stdin.take());
    run.child.wait().unwrap();
    assert!(!host.close_attempt(&name(), End::CleanedUp).await.unwrap().calls_remain);
    let sockets = fs::read_dir(root.join("attempts/custom-executor1")).unwrap();
    let sockets: Vec<_> = sockets.map(|e| e.unwrap().file_name()).collect();
    assert!(!sockets.iter().any(|s| s.to_str().unwrap().starts_with("run.")), "{sockets:?}");
}

// ---- signals -------------------------------------------------------------------------------------------------

fn deaf(home: &Path) -> (Proc, std::process::ChildStdin) {
    let mut command = child_command("deaf", home);
    command.stdin(Stdio::piped());
    let mut call = Proc::start(command);
    call.hear_word("begun");
    let stdin = call.child.stdin.take().unwrap();
    (call, stdin)
}

#[test]
fn a_sigterm_before_the_wait_is_not_lost_and_stays() {
    let home = home();
    let (mut call, mut stdin) = deaf(home.path());
    signal(call.pid(), Signal::TERM);
    stdin.write_all(b"\n").unwrap();
    call.hear_word("Stop");
    call.hear_word("Stop");
}

#[tokio::test]
async fn hangup_interrupt_and_quit_do_not_stop_a_call() {
    let home = home();
    let (mut call, mut stdin) = deaf(home.path());
    for swallowed in [Signal::HUP, Signal::INT, Signal::QUIT] {
        signal(call.pid(), swallowed);
    }
    let host = operator(&home.path().join("state"));
    host.wake_attempt(&name()).await;
    stdin.write_all(b"\n").unwrap();
    call.hear_word("Message");
    signal(call.pid(), Signal::TERM);
    call.hear_word("Stop");
}

// ---- the keeper ----------------------------------------------------------------------------------------------

#[tokio::test]
async fn there_is_one_keeper_and_a_look_turns_no_starting_one_away() {
    let home = home();
    let root = home.path().join("state");
    let (one, two) = (host(&root, Role::Keeper), host(&root, Role::Keeper));
    assert!(!two.keeper_lives().await.unwrap());
    let lock = one.lock_keeper(Duration::ZERO).await.unwrap().unwrap();
    assert!(two.keeper_lives().await.unwrap());
    assert!(two.lock_keeper(Duration::from_millis(50)).await.unwrap().is_none());
    let waits = two.lock_keeper(DEADLINE);
    let goes = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(lock);
    };
    let (taken, ()) = tokio::join!(waits, goes);
    drop(taken.unwrap().unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&done);
    let looker = on_own_thread(&root, async move |host| {
        while !stop.load(Ordering::Relaxed) {
            host.keeper_lives().await.unwrap();
        }
    });
    for _ in 0..200 {
        assert!(one.lock_keeper(DEADLINE).await.unwrap().is_some());
    }
    done.store(true, Ordering::Relaxed);
    looker.join().unwrap();
}

#[tokio::test]
async fn a_keeper_ends_when_its_state_directory_is_gone_and_does_not_bring_it_back() {
    let home = home();
    let root = home.path().join("state");
    let times = Times { self_check_interval: Duration::from_millis(20), ..Times::default() };
    let host = host(&root, Role::Keeper).with_times(times);
    let _lock = host.lock_keeper(Duration::ZERO).await.unwrap().unwrap();
    let (pool, other) = (pool(), PoolName::new("other"));
    assert_eq!(
        host.wait(MailboxName::Keeper(&pool), Duration::from_millis(60)).await.unwrap(),
        WakeReason::Timeout
    );
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(host.wait(MailboxName::Keeper(&pool), DEADLINE).await.unwrap(), WakeReason::Evicted);
    assert_eq!(host.wait(MailboxName::Keeper(&other), DEADLINE).await.unwrap(), WakeReason::Evicted);
    let report = Report::new(host.now(), 1);
    assert!(host.write_report(&pool, &report).await.is_err());
    assert!(!root.exists());
    StateDir::open(&root).unwrap();
    assert_eq!(host.read_report(&pool).await.unwrap(), None);
    host.write_report(&pool, &report).await.unwrap();
    assert_eq!(host.read_report(&pool).await.unwrap(), Some(report));
    assert_eq!(
        host.wait(MailboxName::Keeper(&pool), DEADLINE).await.unwrap(),
        WakeReason::Evicted,
        "another directory"
    );
}

#[tokio::test]
async fn a_wake_up_crosses_processes_within_milliseconds() {
    let home = home();
    let mut call = start("echo", home.path());
    call.hear_word("begun");
    let host = operator(&home.path().join("state"));
    let mut taken: Vec<i64> = Vec::new();
    for _ in 0..100 {
        let sent = nanoseconds();
        host.wake_attempt(&name()).await;
        let woken: i64 = call.hear().parse().unwrap();
        taken.push((woken - sent) / 1000);
    }
    taken.sort_unstable();
    println!("wake-up across processes: median {} us, worst of 100 {} us", taken[50], taken[99]);
    assert!(taken[50] <= 5_000, "{taken:?}");
}

/// A host whose `start_keeper` starts `keeper_child`, with an environment as the runner makes it.
fn starter(home: &Path) -> LocalHost {
    let args = ["keeper_child", "--exact", "--ignored", "--nocapture"].map(OsString::from);
    let args = args.into_iter().chain([home.as_os_str().to_owned()]);
    let command = KeeperCommand::new(std::env::current_exe().unwrap(), args, || {
        let jobs =
            [("CUSTOM_ENV_CI_JOB_TOKEN", "x"), ("CI_JOB_ID", "7"), ("TMPDIR", "/tmp/custom-executor1")];
        std::env::vars_os().chain(jobs.map(|(name, value)| (name.into(), value.into()))).collect()
    });
    let state = StateDir::open(&home.join("state")).unwrap();
    LocalHost::open(state, Role::Operator, command, Signals::default_actions()).unwrap()
}

/// Starts a keeper and exits immediately, like `prepare`.
#[test]
#[ignore = "other tests start it in a process of its own"]
fn starter_child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { starter(Path::new(&dir)).start_keeper().await.unwrap() });
}

/// The whole life of a background keeper that a call started, directly or inside a script.
async fn a_started_keeper_holds_nothing_of_its_starters(starting: &mut Command) {
    let home = home();
    let begun = Instant::now();
    let mut starting = starting
        .args(["starter_child", "--exact", "--ignored", "--nocapture"])
        .env(DIR, home.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    // The runner reads both pipes to their end before it considers the call finished.
    let mut output = String::new();
    starting.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    starting.stderr.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(starting.wait().unwrap().success(), "{output}");
    say(format_args!("start_keeper and both pipes' ends: {:?}", begun.elapsed()));
    let host = operator(&home.path().join("state"));
    let facts = loop {
        if let Ok(facts) = fs::read_to_string(home.path().join("facts")) {
            break facts;
        }
        assert!(begun.elapsed() < DEADLINE, "no keeper");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(host.keeper_lives().await.unwrap(), "it outlives its starter");
    let facts: Vec<&str> = facts.lines().collect();
    assert_eq!((facts[0], facts[2]), (facts[1], "/"), "it leads a session, in the root directory");
    for stream in 0..=2 {
        let target = fs::read_link(format!("/proc/{}/fd/{stream}", facts[0])).unwrap();
        assert_eq!(target, Path::new("/dev/null"), "descriptor {stream}");
    }
    let environment = fs::read(home.path().join("environ")).unwrap();
    let names: Vec<_> = environment.split(|b| *b == 0).filter(|v| !v.is_empty()).collect();
    for variable in &names {
        let name = String::from_utf8_lossy(variable.split(|b| *b == b'=').next().unwrap()).into_owned();
        let stranger =
            ["CUSTOM_ENV_", "CI_", "TMPDIR", "GREENROOM_", "CARGO"].iter().any(|p| name.starts_with(p));
        assert!(!stranger, "{name} got through");
    }
    assert!(names.iter().any(|v| v.starts_with(b"PATH=")));
    starter(home.path()).start_keeper().await.unwrap();
    assert_eq!(
        fs::read_to_string(home.path().join("facts")).unwrap().lines().next(),
        Some(facts[0]),
        "no second one"
    );
    let started = Instant::now();
    while !home.path().join("woken").exists() {
        host.wake_keeper(&pool()).await;
        assert!(started.elapsed() < DEADLINE, "it does not wake");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_started_keeper_is_on_its_own() {
    let mut direct = Command::new(std::env::current_exe().unwrap());
    a_started_keeper_holds_nothing_of_its_starters(&mut direct).await;
}

#[tokio::test]
async fn a_script_that_copies_the_runners_pipes_does_not_hang_the_stage() {
    let mut script = Command::new("sh");
    script.args(["-c", "exec 3>&1 4>&2; \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    a_started_keeper_holds_nothing_of_its_starters(&mut script).await;
}

#[tokio::test]
async fn many_that_start_a_keeper_at_once_start_one() {
    let home = home();
    let (root, barrier) = (home.path().to_owned(), Arc::new(Barrier::new(12)));
    let starts: Vec<_> = (0..12)
        .map(|_| {
            let (root, barrier) = (root.clone(), Arc::clone(&barrier));
            on_own_thread(&home.path().join("state"), async move |_| {
                let starter = starter(&root);
                barrier.wait();
                let end = Instant::now() + DEADLINE;
                while !starter.keeper_lives().await.unwrap() {
                    starter.start_keeper().await.unwrap();
                    assert!(Instant::now() < end, "no keeper");
                }
            })
        })
        .collect();
    for start in starts {
        start.join().unwrap();
    }
    let host = operator(&home.path().join("state"));
    let end = Instant::now() + DEADLINE;
    while host.keeper_lives().await.unwrap() {
        host.wake_keeper(&pool()).await;
        assert!(Instant::now() < end, "it does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let keepers = fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(keepers.filter(|name| name.starts_with("keeper-")).count(), 1);
}

#[tokio::test]
async fn a_program_that_never_becomes_a_keeper_is_reported() {
    let home = home();
    // The starter times out only for a keeper that starts and keeps running.
    let open = |program: &str, arg: &str, within: Duration| {
        // One each: a child that hangs keeps `spawn.lock`.
        let state = StateDir::open(&home.path().join(program.replace('/', "-"))).unwrap();
        let command = KeeperCommand::new(program, [arg], Vec::new);
        let times = Times { keeper_start_timeout: within, ..Times::default() };
        let host = LocalHost::open(state, Role::Operator, command, Signals::default_actions());
        host.unwrap().with_times(times)
    };
    for (program, arg, within, expected) in [
        ("/bin/true", "", DEADLINE, "exited before it became a keeper"),
        ("/bin/sleep", "1", Duration::from_millis(200), "did not become a keeper within 200 ms"),
        ("/nowhere/greenroom", "", DEADLINE, "cannot start `/nowhere/greenroom`"),
    ] {
        let error = open(program, arg, within).start_keeper().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
