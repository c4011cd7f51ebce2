//! A running played job: what the test can do to it, and how it waits.

use std::path::Path;
use std::process::{Child, ChildStdin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::build::Build;
use super::events::{Event, Phase, Shared, State};
use super::job::Job;
use super::outside;
use super::play::play;
use super::process::LiveCall;
use super::record::{CallRecord, JobResult, Outcome, story};
use super::runner::Runner;
use super::scope::Cause;

/// Dropping it before `finish` kills the calls that are still running.
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
        let (patience, shutdown) = (runner.patience, runner.pace.shutdown);
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
        let mut child: Child = outside::start(runner, job);
        let orders = child.stdin.take();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process has an id");
        outside::follow(child, &shared);
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
            Place::Process { orders, .. } => outside::send(orders.as_mut(), order.name()),
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

    /// The same for its second, third … time.
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

    /// The same with another deadline.
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
        let (log, runner_log) = (state.log.clone(), state.runner_log.clone());
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
    /// Whether the process of this call is alive: its working directory distinguishes it from a reused process ID.
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
