//! Everything that happens to a played job is an event; the job's state follows from its events.
//!
//! A runner in a process of its own prints its events, and the test applies them: both sides see the same state.

use std::io::Write as _;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::play::Cause;
use super::record::{Call, CallRecord, Exit, Outcome, Sent};

/// Marks an event in the output of a runner process, whose test harness prints lines of its own.
pub(super) const MARK: &str = "@@event ";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    Out,
    Err,
}

/// The job's position in its life; determines what a cancellation in GitLab's interface affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Serialize, Deserialize)]
pub enum Phase {
    BeforeScript,
    Script,
    AfterScript,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    Began(Box<CallRecord>),
    Output {
        index: usize,
        stream: Stream,
        bytes: Vec<u8>,
    },
    Signalled {
        index: usize,
        sent: Sent,
    },
    Exited {
        index: usize,
        exit: Exit,
        at: Duration,
    },
    Ended {
        index: usize,
        at: Duration,
    },
    Abandoned {
        index: usize,
    },
    /// A line of the runner in the job log.
    Says(String),
    /// A line in the runner's own log.
    Logs(String),
    Phase(Phase),
    Finished {
        outcome: Outcome,
        at: Duration,
    },
    /// The runner's process ended.
    Gone {
        at: Duration,
    },
}

#[derive(Debug)]
pub struct State {
    pub calls: Vec<CallRecord>,
    pub log: Vec<u8>,
    pub runner_log: Vec<u8>,
    pub phase: Phase,
    pub finished: Option<(Outcome, Duration)>,
    pub gone: Option<Duration>,
    /// The end of the whole job, if it was canceled or ran out of time.
    pub job_ended: Option<Cause>,
    /// The end of the script alone, if it was canceled or ran out of time.
    pub script_ended: Option<Cause>,
    /// The moment by which the runner must exit, if it was stopped.
    pub shutdown: Option<Instant>,
}

impl State {
    pub fn interrupted(&self) -> Option<Cause> {
        self.shutdown.map(|_| Cause::Interrupted)
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Began(record) => self.calls.push(*record),
            Event::Output { index, stream, bytes } => self.take_output(index, stream, &bytes),
            Event::Signalled { index, sent } => self.calls[index].signals.push(sent),
            Event::Exited { index, exit, at } => {
                self.calls[index].exit = Some(exit);
                self.calls[index].exited = Some(at);
            }
            Event::Ended { index, at } => self.calls[index].ended = Some(at),
            Event::Abandoned { index } => self.calls[index].abandoned = true,
            Event::Says(line) => self.log.extend(format!("{line}\n").bytes()),
            Event::Logs(line) => self.runner_log.extend(format!("{line}\n").bytes()),
            Event::Phase(phase) => self.phase = phase,
            Event::Finished { outcome, at } => self.finished = Some((outcome, at)),
            Event::Gone { at } => self.gone = Some(at),
        }
    }

    /// Sorts output by where the runner shows it: config's stdout nowhere, cleanup's output in the runner's log.
    fn take_output(&mut self, index: usize, stream: Stream, bytes: &[u8]) {
        let record = &mut self.calls[index];
        match (record.call, stream) {
            (Call::Config, Stream::Out) => {}
            (Call::Cleanup, _) => self.runner_log.extend(bytes),
            _ => self.log.extend(bytes),
        }
        let kept = if stream == Stream::Out { &mut record.stdout } else { &mut record.stderr };
        kept.extend(bytes);
    }
}

#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    began: Instant,
    printed: bool,
}

impl Shared {
    /// The shared state of a job without events. `printed`: events also go to standard output, for the test that
    /// started this process.
    pub fn new(printed: bool) -> Self {
        let state = State {
            calls: Vec::new(),
            log: Vec::new(),
            runner_log: Vec::new(),
            phase: Phase::BeforeScript,
            finished: None,
            gone: None,
            job_ended: None,
            script_ended: None,
            shutdown: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), began: Instant::now(), printed }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the job began.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn emit(&self, event: Event) {
        self.emit_in(&mut self.lock(), event);
    }

    /// Makes an event while the state is locked.
    pub fn emit_with(&self, make: impl FnOnce() -> Event) {
        let mut state = self.lock();
        let event = make();
        self.emit_in(&mut state, event);
    }

    /// Records the start of a call and returns its number.
    pub fn begin(&self, record: CallRecord) -> usize {
        let mut state = self.lock();
        self.emit_in(&mut state, Event::Began(Box::new(record)));
        state.calls.len() - 1
    }

    fn emit_in(&self, state: &mut State, event: Event) {
        if self.printed {
            let line = serde_json::to_string(&event).expect("an event can be written as JSON");
            // The test's end closes the output; the job continues like a real one.
            drop(writeln!(std::io::stdout().lock(), "\n{MARK}{line}"));
        }
        state.apply(event);
        self.changed.notify_all();
    }

    /// Changes the outside requests, and wakes the threads that wait for them.
    pub fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `look` returns a value, or until the deadline; calls it once more at the end.
    pub fn wait<T>(&self, until: Option<Instant>, mut look: impl FnMut(&State) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(seen) = look(&state) {
                return Some(seen);
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// A pause that only the runner's end interrupts.
    pub fn pause(&self, time: Duration) {
        self.wait(Instant::now().checked_add(time), |state| state.gone.map(drop));
    }
}
