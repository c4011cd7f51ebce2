//! The standby shell, which waits in the guest for the next stage.
//!
//! When a stage has ended and another one may follow, the next shell is started in advance, so that a stage takes one
//! round trip. Not earlier, because a stage may change the guest's profile and groups. The standby shell is watched, and replaced when it dies.
//!
//! On a host that other jobs use afterwards, a job could take over a standby shell. So each standby shell there leaves
//! a trace for cleaning after the job, and is not replaced when cleaning has stopped it. The first one of a job starts
//! when the job gets the host.
//!
//! A container waits beside it. It starts as soon as no stage uses it, even while a stage runs on the instance, because
//! that changes nothing in it. One that ends is started again only for a stage.

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::time::Duration;

use greenroom_core::execution::Shell;
use greenroom_ports::connector::{ConnectError, Reader};
use greenroom_ports::dialect::{GuestDialect, StopHandle};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::super::guest::Preamble;
use super::super::login_profile::LoginEnvironment;
use super::super::remote::Marked;
use super::super::session::{Session, is_refusal};
use super::super::stage::{self, Begun};
use super::protocol::Interpreter;

/// Delay before a dead standby shell is replaced; doubled after each further death.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_mins(1);

/// A server that refuses a session may still count the stage that has just ended: the delay before each retry, and the
/// time to retry for.
pub(super) const REFUSED_AGAIN: Duration = Duration::from_millis(20);
pub(super) const REFUSED_FOR: Duration = Duration::from_secs(1);

/// A program that is started in the guest and then reads its standard input.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum GuestProgram {
    /// The shell of a stage.
    Interpreter(Interpreter),
    /// A command of Greenroom's own.
    Command(String),
}

impl GuestProgram {
    /// `environment`: that of a login shell, if it is known.
    fn marked(
        &self,
        dialect: &'static dyn GuestDialect,
        environment: Option<&LoginEnvironment>,
    ) -> Result<Marked, ConnectError> {
        match self {
            Self::Interpreter(Interpreter { reader, before }) => {
                Marked::reader(dialect, reader, before, environment)
            }
            Self::Command(text) => Marked::command(dialect, text),
        }
    }

    fn is_container(&self) -> bool {
        matches!(self, Self::Interpreter(Interpreter { reader: Reader::Container(_), .. }))
    }

    /// True if it leaves nothing in the guest, before it has got its input.
    fn leaves_no_trace(&self) -> bool {
        matches!(self, Self::Interpreter(Interpreter { before, .. }) if before.is_empty())
    }
}

/// A shell in the guest that has started and reads its standard input.
pub(super) struct StandbyShell {
    program: GuestProgram,
    pub(super) begun: Begun,
    /// The shell's output so far, which belongs to the stage's output.
    pub(super) preamble: Preamble,
}

impl StandbyShell {
    /// Starts a shell, and waits until it is ready.
    async fn start(
        session: &Session<'_>,
        program: &GuestProgram,
        within: Duration,
        environment: &RefCell<Option<LoginEnvironment>>,
    ) -> Result<Self, NoShell> {
        let patience = Instant::now() + REFUSED_FOR.min(within);
        loop {
            match Self::try_start(session, program, within, environment).await {
                Err(none) if is_refusal(&none.error) && Instant::now() < patience => {
                    sleep(REFUSED_AGAIN).await;
                }
                done => return done,
            }
        }
    }

    async fn try_start(
        session: &Session<'_>,
        program: &GuestProgram,
        within: Duration,
        environment: &RefCell<Option<LoginEnvironment>>,
    ) -> Result<Self, NoShell> {
        let mut preamble = Preamble::default();
        let marked = program.marked(session.dialect(), environment.borrow().as_ref());
        let begun = match marked {
            Ok(marked) => stage::start(session, &marked, within, &mut preamble).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(mut begun) => {
                if let Some(read) = begun.environment.take() {
                    environment.replace(Some(read));
                }
                Ok(Self { program: program.clone(), begun, preamble })
            }
            Err(error) => Err(NoShell { error, preamble }),
        }
    }

    /// The handle that stops it in the guest, if the shell gave it.
    pub(super) fn handle(&self) -> Option<&StopHandle> {
        self.begun.guest.handle()
    }

    /// Resolves when the shell is unusable.
    async fn until_unusable(&mut self) {
        self.begun.guest.until_unusable(&mut self.preamble).await;
    }

    /// Ends the shell by closing its input. Dropping it would send nothing to the guest.
    pub(super) async fn dismiss(self) {
        let _sent = self.begun.to.close().await;
    }
}

/// The error of a [`StandbyShell`] that did not start, and the guest's output.
pub(super) struct NoShell {
    pub(super) error: ConnectError,
    pub(super) preamble: Preamble,
}

/// The shells that may wait for the stages after one.
#[derive(Default)]
pub(super) struct Next {
    /// True if another shell may wait.
    pub(super) followed: bool,
    /// A container that may wait.
    pub(super) ahead: Option<GuestProgram>,
}

/// A stage's request for a shell, which [`Shells::take`] sends.
struct ShellRequest {
    program: GuestProgram,
    next: Next,
    within: Duration,
    back: oneshot::Sender<Result<StandbyShell, NoShell>>,
}

/// Provides stages with their shells.
pub(super) struct Shells {
    requests: mpsc::Sender<ShellRequest>,
    /// True if a shell waits.
    pub(super) one_waits: Cell<bool>,
    /// True if the last shell did not start, or died, or none is to wait.
    failed: Cell<bool>,
    /// The shell of a job's first stage, to be started if no other one waits.
    coming: RefCell<Option<GuestProgram>>,
    /// The environment of a login shell, which the first shell of a job has read.
    environment: RefCell<Option<LoginEnvironment>>,
    /// True while a stage runs; no shell is started until it has ended.
    pub(super) stage_runs: Cell<bool>,
    changed: Notify,
}

/// Receives the requests for shells; see [`Shells::keep`].
pub(super) struct StandbyLoop {
    requests: mpsc::Receiver<ShellRequest>,
    /// Limit for the start of a shell.
    within: Duration,
}

impl Shells {
    pub(super) fn new(within: Duration) -> (Self, StandbyLoop) {
        let (requests, served) = mpsc::channel(1);
        let one_waits = Cell::new(false);
        let failed = Cell::new(false);
        let stage_runs = Cell::new(false);
        let coming = RefCell::default();
        let environment = RefCell::default();
        let shells =
            Self { requests, one_waits, failed, coming, environment, stage_runs, changed: Notify::new() };
        (shells, StandbyLoop { requests: served, within })
    }

    /// The waiting shell, if it is of this kind, or a new one. `None` if requests are no longer served.
    pub(super) async fn take(
        &self,
        program: GuestProgram,
        next: Next,
        within: Duration,
    ) -> Option<Result<StandbyShell, NoShell>> {
        let (back, answer) = oneshot::channel();
        self.requests.send(ShellRequest { program, next, within, back }).await.ok()?;
        answer.await.ok()
    }

    /// Lets [`keep`](Self::keep) start the shell of a job's first stage, unless a shell waits.
    pub(super) fn start_early(&self, program: GuestProgram) {
        if !self.one_waits.get() {
            // The profile may have changed since the last job.
            self.environment.replace(None);
            self.coming.replace(Some(program));
            self.failed.set(false);
            self.changed.notify_waiters();
        }
    }

    /// Notes that a stage has ended, so that [`keep`](Self::keep) may start the next shell.
    pub(super) fn stage_ended(&self) {
        self.stage_runs.set(false);
        self.changed.notify_waiters();
    }

    /// Resolves when a shell waits; false if there is none for now.
    pub(super) async fn settled(&self) -> bool {
        loop {
            if self.one_waits.get() || self.failed.get() {
                return self.one_waits.get();
            }
            self.changed.notified().await;
        }
    }

    /// Starts shells and hands them out, for as long as the link runs. `start_early`: a shell may wait before the first
    /// stage.
    ///
    /// One loop does both, so that a shell is never started for a stage and in advance at the same time: some servers allow
    /// one session. The order within a round is part of the contract: what a job's check has asked for (`coming`)
    /// replaces the program of the last stage, then the container of a later stage starts, then the standby shell, and
    /// only then the loop waits. A start blocks the loop. A request that arrives meanwhile waits for it, because it most
    /// likely wants that shell. If the start fails, such a request gets the error instead of a second try (`early`).
    pub(super) async fn keep(&self, session: &Session<'_>, mut standby: StandbyLoop, start_early: bool) {
        let bash = Interpreter { reader: Reader::Shell(Shell::Bash.into()), before: String::new() };
        let mut program = GuestProgram::Interpreter(bash);
        let mut ahead = Ahead::default();
        let mut waiting: Option<StandbyShell> = None;
        let mut delay = FIRST_DELAY;
        let mut not_before = Instant::now();
        let mut early: Option<ShellRequest> = None;
        let mut wanted = start_early;
        if !wanted {
            self.set_waiting(false);
        }
        loop {
            if let Some(coming) = self.coming.take() {
                program = coming;
                // A job has come: the failures of earlier shells must not delay its shell.
                wanted = true;
                delay = FIRST_DELAY;
                not_before = Instant::now();
            }
            ahead.start(session, self.stage_runs.get(), standby.within).await;
            let may_start = || wanted && !self.stage_runs.get();
            if waiting.is_none() && may_start() && Instant::now() >= not_before {
                match StandbyShell::start(session, &program, standby.within, &self.environment).await {
                    Ok(started) => waiting = Some(started),
                    Err(none) => {
                        // The growing delay spares a server that refuses sessions.
                        not_before = Instant::now() + delay;
                        delay = (delay * 2).min(LONGEST_DELAY);
                        early = standby.requests.try_recv().ok();
                        // The request has waited for this shell.
                        if let Some(request) = early.take_if(|request| request.program == program) {
                            let _gone = request.back.send(Err(none));
                        }
                    }
                }
                self.set_waiting(waiting.is_some());
            }
            let may_start = waiting.is_none() && may_start();
            tokio::select! {
                biased;
                // First, so that a shell known to be dead is not given to a stage.
                () = until_unusable(&mut waiting) => {
                    if let Some(unusable) = waiting.take() {
                        unusable.dismiss().await;
                    }
                    // A server that ends idle sessions would end the next one, too, so the delay grows here as well.
                    not_before = Instant::now() + delay;
                    delay = (delay * 2).min(LONGEST_DELAY);
                    // A shell that acts in the guest before it gets a script is not started again until a stage needs it.
                    wanted = program.leaves_no_trace();
                    self.set_waiting(false);
                }
                () = until_unusable(&mut ahead.waiting) => ahead.replace(None).await,
                request = next(&mut early, &mut standby.requests) => {
                    let Some(ShellRequest { program: kind, next, within, back }) = request else { return };
                    // On a host that is cleaned, a shell would wait for nothing.
                    let found = if matches!(kind, GuestProgram::Command(_)) && program.leaves_no_trace() {
                        self.beside(session, &kind, within, &mut waiting).await
                    } else {
                        let standby = if kind.is_container() { &mut ahead.waiting } else { &mut waiting };
                        let found = match standby.take() {
                            Some(fitting) if fitting.program == kind => Ok(fitting),
                            other => {
                                if let Some(other) = other {
                                    other.dismiss().await;
                                }
                                StandbyShell::start(session, &kind, within, &self.environment).await
                            }
                        };
                        ahead.request(next.ahead, &kind);
                        if !kind.is_container() {
                            program = kind;
                            delay = FIRST_DELAY;
                            not_before = Instant::now();
                            wanted = next.followed;
                            self.set_waiting(false);
                            self.failed.set(!wanted);
                        }
                        found
                    };
                    // The stage has given up meanwhile; its shell must not stay in the guest.
                    if let Err(Ok(unwanted)) = back.send(found) {
                        unwanted.dismiss().await;
                    }
                }
                () = sleep_until(not_before), if may_start => {}
                () = self.changed.notified(), if waiting.is_none() || ahead.wanted.is_some() => {}
                // Last, because the container's start, at the top of the loop, would delay a request that has arrived.
                () = ready(()), if ahead.may_start(self.stage_runs.get()) => {}
            }
        }
    }

    /// Starts a command. The shell that waits for a job's stage stays, unless the instance allows one session at a time.
    async fn beside(
        &self,
        session: &Session<'_>,
        command: &GuestProgram,
        within: Duration,
        waiting: &mut Option<StandbyShell>,
    ) -> Result<StandbyShell, NoShell> {
        if waiting.is_some() {
            match StandbyShell::try_start(session, command, within, &self.environment).await {
                Err(none) if is_refusal(&none.error) => {}
                begun => return begun,
            }
        }
        if let Some(in_the_way) = waiting.take() {
            in_the_way.dismiss().await;
            self.set_waiting(false);
        }
        StandbyShell::start(session, command, within, &self.environment).await
    }

    fn set_waiting(&self, one_waits: bool) {
        self.one_waits.set(one_waits);
        self.failed.set(!one_waits);
        self.changed.notify_waiters();
    }
}

/// A container that waits for its stage, or is to do so.
#[derive(Default)]
struct Ahead {
    wanted: Option<GuestProgram>,
    /// True if the running stage is in that container.
    in_use: bool,
    waiting: Option<StandbyShell>,
}

impl Ahead {
    /// Notes what a stage, which runs `program`, wants started.
    fn request(&mut self, wanted: Option<GuestProgram>, program: &GuestProgram) {
        self.in_use = wanted.as_ref() == Some(program);
        let waits =
            |program: &GuestProgram| self.waiting.as_ref().is_some_and(|waiting| waiting.program == *program);
        self.wanted = wanted.filter(|wanted| !waits(wanted));
    }

    fn may_start(&self, stage_runs: bool) -> bool {
        self.wanted.is_some() && !(self.in_use && stage_runs)
    }

    /// Starts what is wanted, once: its stage reports a failure.
    async fn start(&mut self, session: &Session<'_>, stage_runs: bool, within: Duration) {
        if self.may_start(stage_runs)
            && let Some(program) = self.wanted.take()
        {
            // A container's environment is its own.
            let none = RefCell::new(None);
            let started = StandbyShell::try_start(session, &program, within, &none).await;
            self.replace(started.ok()).await;
        }
    }

    async fn replace(&mut self, waiting: Option<StandbyShell>) {
        if let Some(other) = std::mem::replace(&mut self.waiting, waiting) {
            other.dismiss().await;
        }
    }
}

async fn next(
    early: &mut Option<ShellRequest>,
    requests: &mut mpsc::Receiver<ShellRequest>,
) -> Option<ShellRequest> {
    match early.take() {
        Some(request) => Some(request),
        None => requests.recv().await,
    }
}

async fn until_unusable(waiting: &mut Option<StandbyShell>) {
    match waiting {
        Some(waiting) => waiting.until_unusable().await,
        None => std::future::pending().await,
    }
}
