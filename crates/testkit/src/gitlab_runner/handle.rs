//! A running played job: what the test can do to it, and how it waits.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::attempt::Build;
use super::events::{Event, MARK, Phase, Shared, State};
use super::job::Job;
use super::play::{Cause, play};
use super::process::LiveCall;
use super::record::{CallRecord, JobResult, Outcome, story};
use super::runner::Runner;

/// A running played job. Dropping it before [`finish`](Self::finish) kills the calls that are still running.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    place: Place,
    patience: Duration,
    shutdown: Duration,
    finished: bool,
}

#[derive(Debug)]
enum Place {
    Thread,
    Process { child: Pid, orders: Option<ChildStdin> },
}

/// External events of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Cancel,
    Abort,
    JobTimeout,
    ScriptTimeout,
}

impl Order {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Cancel, "cancel"),
        (Self::Abort, "abort"),
        (Self::JobTimeout, "job-timeout"),
        (Self::ScriptTimeout, "script-timeout"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(order, _)| *order == self).map_or("", |(_, name)| name)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, other)| *other == name).map(|(order, _)| *order)
    }

    pub(super) fn apply(self, state: &mut State) {
        match (self, state.phase) {
            (Self::Cancel, Phase::BeforeScript) | (Self::Abort, _) => {
                state.job_ended.get_or_insert(Cause::Canceled);
            }
            (Self::Cancel, Phase::Script) => {
                state.script_ended.get_or_insert(Cause::Canceled);
            }
            // Too late: the job finishes with its result.
            (Self::Cancel, Phase::AfterScript) => {}
            (Self::JobTimeout, _) => {
                state.job_ended.get_or_insert(Cause::JobTimeout);
            }
            (Self::ScriptTimeout, _) => {
                state.script_ended.get_or_insert(Cause::ScriptTimeout);
            }
        }
    }
}

impl Handle {
    fn new(runner: &Runner, shared: Arc<Shared>, place: Place) -> Self {
        let patience = runner.patience;
        let shutdown = runner.pace.shutdown;
        Self { shared, place, patience, shutdown, finished: false }
    }

    pub(super) fn in_thread(runner: &Runner, job: &Job) -> Self {
        let shared = Arc::new(Shared::new(false));
        let build = Arc::new(Build::new(runner, job, Arc::clone(&shared)));
        std::thread::spawn(move || play(&build));
        Self::new(runner, shared, Place::Thread)
    }

    pub(super) fn in_process(runner: &Runner, job: &Job) -> Self {
        let shared = Arc::new(Shared::new(false));
        let mut child: Child = start_process(runner, job);
        let orders = child.stdin.take();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process has an id");
        follow_process(child, &shared);
        Self::new(runner, shared, Place::Process { child: pid, orders })
    }

    /// Cancelled in GitLab's interface: before the script the whole job, in it only the script, after it nothing.
    pub fn cancel(&mut self) {
        self.order(Order::Cancel);
    }

    /// The server reports `canceled` or `failed`, or refuses the job's token: the whole job ends, in any state.
    pub fn abort(&mut self) {
        self.order(Order::Abort);
    }

    /// The job's timeout has expired.
    pub fn job_timeout(&mut self) {
        self.order(Order::JobTimeout);
    }

    /// `RUNNER_SCRIPT_TIMEOUT` has expired.
    pub fn script_timeout(&mut self) {
        self.order(Order::ScriptTimeout);
    }

    fn order(&mut self, order: Order) {
        match &mut self.place {
            Place::Thread => self.shared.tell(|state| order.apply(state)),
            Place::Process { orders, .. } => send_to_process(orders.as_mut(), order.name()),
        }
    }

    /// SIGTERM to the runner: ends the run stages, but not a prepare; it exits after `pace.shutdown` at the latest.
    pub fn terminate_runner(&self) {
        match &self.place {
            Place::Thread => {
                let until = Instant::now() + self.shutdown;
                self.shared.tell(|state| state.shutdown = Some(until));
            }
            Place::Process { child, .. } => self.signal_runner(*child, Signal::TERM),
        }
    }

    /// SIGKILL to the runner's own process; nothing else is signalled.
    #[track_caller]
    pub fn kill_runner(&self) {
        self.signal_runner(self.runner_pid(), Signal::KILL);
    }

    /// The process that is the parent of all calls.
    #[track_caller]
    pub fn runner_pid(&self) -> Pid {
        match &self.place {
            Place::Thread => panic!("this runner is a thread of the test: use `start_in_own_process`"),
            Place::Process { child, .. } => *child,
        }
    }

    #[track_caller]
    fn signal_runner(&self, child: Pid, signal: Signal) {
        // The waiting thread reports the exit under the same lock, so the ID still belongs to this process.
        let state = self.shared.lock();
        assert!(state.gone.is_none(), "the runner had ended before it was signalled");
        kill_process(child, signal).unwrap_or_else(|error| panic!("signalling the runner: {error}"));
    }

    /// Waits until `look` returns a value; after the deadline, fails the test with all events.
    #[track_caller]
    fn wait<T>(&self, what: &str, look: impl FnMut(&State) -> Option<T>) -> T {
        let seen = self.shared.wait(Instant::now().checked_add(self.patience), look);
        seen.unwrap_or_else(|| {
            let state = self.shared.lock();
            let story = story(&state.calls, &state.log);
            panic!("{what}: not within {:?}; finished: {:?}\n{story}", self.patience, state.finished)
        })
    }

    fn live(&self, index: usize) -> LiveCall {
        LiveCall { shared: Arc::clone(&self.shared), index }
    }

    /// Waits until a call of this name (`config`, `prepare`, `cleanup` or a stage) was started.
    #[track_caller]
    pub fn wait_for_stage(&self, name: &str) -> LiveCall {
        self.wait_for_nth(name, 1)
    }

    /// Waits for the `nth` call of a stage.
    #[track_caller]
    pub fn wait_for_nth(&self, name: &str, nth: usize) -> LiveCall {
        let index = self.wait(&format!("call {nth} of `{name}`"), |state| {
            let mut calls = state.calls.iter().enumerate().filter(|(_, call)| call.name() == name);
            calls.nth(nth.saturating_sub(1)).map(|(index, _)| index)
        });
        self.live(index)
    }

    /// Waits until this text is in the job log.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        let holds = |log: &[u8]| log.windows(text.len()).any(|window| window == text.as_bytes());
        self.wait(&format!("`{text}` in the job log"), |state| holds(&state.log).then_some(()));
    }

    pub fn calls(&self) -> Vec<CallRecord> {
        self.shared.lock().calls.clone()
    }

    /// Waits until the runner has reported or is gone, and returns the record.
    #[track_caller]
    pub fn finish(self) -> JobResult {
        let patience = self.patience;
        self.finish_within(patience)
    }

    /// Waits for the end of the job, with another deadline.
    #[track_caller]
    pub fn finish_within(mut self, patience: Duration) -> JobResult {
        self.patience = patience;
        if let Place::Thread = self.place {
            self.end_thread();
        } else {
            self.wait("the end of the runner process", |state| state.gone);
        }
        self.finished = true;
        let state = self.shared.lock();
        let (outcome, took) =
            state.finished.clone().unwrap_or((Outcome::None, state.gone.unwrap_or_default()));
        let log = state.log.clone();
        let runner_log = state.runner_log.clone();
        JobResult { outcome, log, runner_log, calls: state.calls.clone(), took }
    }

    /// A runner in a thread cannot exit: it is declared gone when its shutdown time is over.
    #[track_caller]
    fn end_thread(&self) {
        let over = |state: &State| (state.finished.is_some() || state.gone.is_some()).then_some(());
        let shutdown = self.wait("the end of the job, or of the runner", |state| {
            over(state).map(|()| None).or_else(|| state.shutdown.map(Some))
        });
        let Some(shutdown) = shutdown else { return };
        if self.shared.wait(Some(shutdown), over).is_none() {
            self.shared.emit(Event::Gone { at: self.shared.now() });
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let (calls, gone) = {
            let state = self.shared.lock();
            (state.calls.clone(), state.gone.is_some())
        };
        match &self.place {
            Place::Process { child, .. } if !gone => {
                let _ = kill_process(*child, Signal::KILL);
            }
            Place::Process { .. } => {}
            Place::Thread => self.shared.emit(Event::Gone { at: self.shared.now() }),
        }
        for call in calls {
            call.kill_leftover();
        }
    }
}

impl CallRecord {
    /// True if the process of this call is alive: its working directory distinguishes it from a reused process ID.
    pub fn is_running(&self) -> bool {
        let Some(pid) = self.pid.filter(|_| self.exited.is_none()) else { return false };
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        let deleted = format!("{} (deleted)", self.tmpdir.display());
        cwd == self.tmpdir || cwd == Path::new(&deleted)
    }

    /// Kills its group if it is still running.
    pub fn kill_leftover(&self) {
        if let Some(pid) = self.pid.and_then(Pid::from_raw).filter(|_| self.is_running()) {
            // It may exit at this very moment, which is fine.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

// The runner as a process of its own: the test executable, started again with a job in a file.
//
// The root of a test program that uses it has the line `greenroom_testkit::runner_process!();`.
// Commands (`cancel`, …) go in by standard input, events come out by standard output; SIGTERM and SIGKILL are real.

/// Path of the file with the job. Without it, the test of [`runner_process!`](crate::runner_process) does nothing.
const WORK: &str = "RUNNER_PROCESS_WORK";

#[derive(Debug, Serialize, Deserialize)]
struct Work {
    runner: Runner,
    job: Job,
}

/// The name of the test that [`runner_process!`](crate::runner_process) adds to a test program.
const TEST: &str = "a_runner_process_plays_the_job_of_its_work_file";

/// Adds the test to a test program that [`Runner::start_in_own_process`] starts again to play one job.
#[macro_export]
macro_rules! runner_process {
    () => {
        #[test]
        fn a_runner_process_plays_the_job_of_its_work_file() {
            greenroom_testkit::gitlab_runner::handle::play_work_file();
        }
    };
}

/// Starts this test executable with nothing but that test.
fn start_process(runner: &Runner, job: &Job) -> Child {
    let work = Work { runner: runner.clone(), job: job.clone() };
    let file =
        runner.temp_dir.join(format!("work-{}-{:?}.json", job.id, Instant::now()).replace([' ', ':'], ""));
    let bytes = serde_json::to_vec(&work).expect("a job can be written as JSON");
    std::fs::write(&file, bytes).expect("the work file can be written");
    Command::new(std::env::current_exe().expect("this executable has a path"))
        .args(["--exact", TEST, "--nocapture", "--quiet"])
        .env_clear()
        .envs(runner.environment.iter().cloned())
        .env(WORK, &file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this executable starts")
}

/// Takes over the events of the process until it ends.
fn follow_process(mut child: Child, shared: &Arc<Shared>) {
    let output = child.stdout.take().expect("its output is a pipe");
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let Ok(line) = line else { break };
            if let Some(json) = line.strip_prefix(MARK.as_bytes()) {
                // Skips a line that was cut by the kill of its writer.
                if let Ok(event) = serde_json::from_slice(json) {
                    shared.emit(event);
                }
            }
        }
        shared.emit_with(|| {
            drop(child.wait());
            Event::Gone { at: shared.now() }
        });
    });
}

fn send_to_process(orders: Option<&mut ChildStdin>, order: &str) {
    let orders = orders.expect("the process takes orders");
    writeln!(orders, "{order}").expect("the runner process is alive");
}

/// Plays the job of the work file, if this process was started for one.
pub fn play_work_file() {
    let Some(file) = std::env::var_os(WORK) else { return };
    let bytes = std::fs::read(file).expect("the work file can be read");
    let work: Work = serde_json::from_slice(&bytes).expect("the work file is ours");
    let shared = Arc::new(Shared::new(true));
    let build = Arc::new(Build::new(&work.runner, &work.job, Arc::clone(&shared)));
    let for_orders = Arc::clone(&shared);
    let for_signals = Arc::clone(&shared);
    std::thread::spawn(move || take_orders(&for_orders));
    let grace = work.runner.pace.shutdown;
    let (ready, listening) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be caught");
            ready.send(()).expect("the test waits for this");
            terminate.recv().await;
            for_signals.tell(|state| state.shutdown = Some(Instant::now() + grace));
        });
    });
    listening.recv().expect("the signal handler is there before the first call");
    std::thread::spawn(move || play(&build));
    exit_when_over(&shared);
}

/// Returns when the job is reported or the shutdown time is over; the process ends with this test.
fn exit_when_over(shared: &Shared) {
    let over = |state: &State| state.finished.is_some().then_some(None);
    let shutdown = shared.wait(None, |state| over(state).or_else(|| state.shutdown.map(Some)));
    if let Some(Some(until)) = shutdown {
        shared.wait(Some(until), over);
    }
}

fn take_orders(shared: &Shared) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if let Some(order) = Order::named(&line) {
            shared.tell(|state| order.apply(state));
        }
    }
}
