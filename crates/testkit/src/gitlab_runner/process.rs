//! One call of the driver as a process: its group, its two pipes, and the runner's way of stopping it.

use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::events::{Event, Shared, State, Stream};
use super::exit_code::Failure;
use super::play::Scope;
use super::record::{CallRecord, Exit, Sent};

/// A started call; it continues if this value is dropped.
#[derive(Debug, Clone)]
pub struct LiveCall {
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
}

/// Starts the call: own process group, `/dev/null` as input, and two pipes that are read to their end.
pub fn spawn(
    shared: &Arc<Shared>,
    mut command: Command,
    mut record: CallRecord,
) -> Result<LiveCall, Failure> {
    if shared.lock().gone.is_some() {
        return Err(Failure::Gone);
    }
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    record.began = shared.now();
    match command.spawn() {
        Ok(child) => {
            record.pid = i32::try_from(child.id()).ok();
            let call = LiveCall { shared: Arc::clone(shared), index: shared.begin(record) };
            call.follow(child);
            Ok(call)
        }
        Err(error) => {
            let index = shared.begin(record);
            shared.emit(Event::Exited { index, exit: Exit::NotStarted(error.to_string()), at: shared.now() });
            shared.emit(Event::Ended { index, at: shared.now() });
            Ok(LiveCall { shared: Arc::clone(shared), index })
        }
    }
}

impl LiveCall {
    /// Threads that read, and one that waits for the process and then for the readers: the order of Go's `cmd.Wait`.
    fn follow(&self, mut child: Child) {
        let readers = [
            child.stdout.take().map(|pipe| self.read(pipe, Stream::Out)),
            child.stderr.take().map(|pipe| self.read(pipe, Stream::Err)),
        ];
        let shared = Arc::clone(&self.shared);
        let index = self.index;
        std::thread::spawn(move || {
            let status = child.wait().expect("a child of ours can be waited for");
            shared.emit(Event::Exited { index, exit: exit_of(status), at: shared.now() });
            for reader in readers.into_iter().flatten() {
                reader.join().expect("a reader only reads");
            }
            shared.emit(Event::Ended { index, at: shared.now() });
        });
    }

    fn read(&self, mut pipe: impl Read + Send + 'static, stream: Stream) -> std::thread::JoinHandle<()> {
        let shared = Arc::clone(&self.shared);
        let index = self.index;
        std::thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                shared.emit(Event::Output { index, stream, bytes: buffer[..count].to_vec() });
            }
        })
    }

    fn look<T>(&self, state: &State, field: impl FnOnce(&CallRecord) -> Option<T>) -> Option<T> {
        field(&state.calls[self.index])
    }

    pub fn record(&self) -> CallRecord {
        self.shared.lock().calls[self.index].clone()
    }

    /// The process id, which is also the id of its group.
    #[track_caller]
    pub fn pid(&self) -> Pid {
        let pid = self.record().pid.and_then(Pid::from_raw);
        pid.unwrap_or_else(|| panic!("the call did not start\n{}", self.record().describe()))
    }

    /// Sends a signal to the process alone.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid();
        let exited = self.record().exited;
        // The ID may belong to another process once this one was reaped.
        assert!(exited.is_none(), "the call had ended before it was signalled\n{}", self.record().describe());
        kill_process(pid, signal).unwrap_or_else(|error| panic!("signalling the call: {error}"));
    }

    /// Sends a signal to its whole group, the way the runner does.
    #[track_caller]
    pub fn signal_group(&self, signal: Signal) {
        self.send(signal).unwrap_or_else(|error| panic!("signalling the call's group: {error}"));
    }

    /// Kills the process alone; its children live on.
    #[track_caller]
    pub fn kill9(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits until the process has exited and its pipes are closed; fails the test after the deadline.
    #[track_caller]
    pub fn wait(&self, deadline: Duration) -> CallRecord {
        let done = |state: &State| self.look(state, |call| call.ended.map(|_| call.clone()));
        let seen = self.shared.wait(Instant::now().checked_add(deadline), done);
        seen.unwrap_or_else(|| {
            panic!("the call did not end within {deadline:?}\n{}", self.record().describe())
        })
    }

    /// Waits until the process itself has exited, even if others still hold its pipes.
    #[track_caller]
    pub fn wait_exit(&self, deadline: Duration) -> CallRecord {
        let done = |state: &State| self.look(state, |call| call.exited.map(|_| call.clone()));
        let seen = self.shared.wait(Instant::now().checked_add(deadline), done);
        seen.unwrap_or_else(|| {
            panic!("the process did not end within {deadline:?}\n{}", self.record().describe())
        })
    }

    /// Waits for this text in either pipe.
    #[track_caller]
    pub fn wait_for_output(&self, text: &str, deadline: Duration) {
        let seen = |state: &State| {
            let holds = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            self.look(state, |call| (holds(&call.stdout) || holds(&call.stderr)).then_some(()))
        };
        let found = self.shared.wait(Instant::now().checked_add(deadline), seen);
        assert!(found.is_some(), "no `{text}` within {deadline:?}\n{}", self.record().describe());
    }

    /// Waits like the runner: until the call ended, or its scope did and the kill sequence was completed.
    pub(super) fn wait_in(
        &self,
        scope: &Scope,
        graceful: Duration,
        force: Duration,
    ) -> Result<Exit, Failure> {
        enum Seen {
            Ended(Exit),
            ScopeEnded,
            Gone,
        }
        let look = |state: &State| {
            let call = &state.calls[self.index];
            match (&call.exit, call.ended, state.gone, scope.ended_in(state)) {
                (_, _, Some(_), _) => Some(Seen::Gone),
                (Some(exit), Some(_), ..) => Some(Seen::Ended(exit.clone())),
                (.., Some(_)) => Some(Seen::ScopeEnded),
                _ => None,
            }
        };
        loop {
            match self.shared.wait(scope.next_deadline(), look) {
                Some(Seen::Ended(exit)) => return Ok(exit),
                Some(Seen::Gone) => return Err(Failure::Gone),
                Some(Seen::ScopeEnded) => return self.stop(graceful, force),
                None => {}
            }
        }
    }

    /// SIGTERM, wait, SIGKILL, wait, give up.
    fn stop(&self, graceful: Duration, force: Duration) -> Result<Exit, Failure> {
        if self.send(Signal::TERM).is_err() {
            // After a failed SIGTERM, the runner kills, and then waits all the same.
            let _ = self.send(Signal::KILL);
        }
        if let Some(ended) = self.ended_within(graceful) {
            return ended;
        }
        let _ = self.send(Signal::KILL);
        if let Some(ended) = self.ended_within(force) {
            return ended;
        }
        self.shared.emit(Event::Abandoned { index: self.index });
        let pid = self.record().pid.unwrap_or_default();
        Err(Failure::System(format!("failed to kill process PID={pid}, likely process is dormant")))
    }

    fn ended_within(&self, time: Duration) -> Option<Result<Exit, Failure>> {
        self.shared.wait(Instant::now().checked_add(time), |state| {
            let call = &state.calls[self.index];
            let ended = call.ended.and_then(|_| call.exit.clone()).map(Ok);
            ended.or_else(|| state.gone.map(|_| Err(Failure::Gone)))
        })
    }

    /// Signals the group and records that; a group without processes is a warning in the job log.
    fn send(&self, signal: Signal) -> rustix::io::Result<()> {
        let Some(pid) = self.record().pid.and_then(Pid::from_raw) else {
            return Err(rustix::io::Errno::SRCH);
        };
        let answer = kill_process_group(pid, signal);
        let sent = Sent { signal: signal.as_raw(), at: self.shared.now(), delivered: answer.is_ok() };
        self.shared.emit(Event::Signalled { index: self.index, sent });
        if let Err(error) = answer {
            self.shared.emit(Event::Says(format!("WARNING: Failed to terminate process: {error}")));
        }
        answer
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    status.code().map_or_else(|| Exit::Signal(status.signal().unwrap_or_default()), Exit::Code)
}
