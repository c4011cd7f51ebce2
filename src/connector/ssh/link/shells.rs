//! The shell that waits in the guest for the next stage.
//!
//! When a stage has ended, the next shell is started in advance: a stage is then one round trip. Not earlier, because a
//! stage may change the guest's profile and groups. The shell that waits is watched, and replaced when it dies.
//!
//! On a host that others use afterwards, a job could get hold of a shell that waits. So no shell waits there but one that
//! is noted for the clean after the job, and that one is not replaced when the clean has ended it.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::super::guest::Noise;
use super::super::remote::{Marked, SessionId};
use super::super::session::{Session, is_refusal};
use super::super::stage::{self, Begun};
use super::message::Shell;
use crate::port::connector::ConnectError;

/// From a shell that died while it waited to the next attempt; twice as long after each further one.
const FIRST_REST: Duration = Duration::from_millis(200);
const LONGEST_REST: Duration = Duration::from_mins(1);

/// A server that opens no session may count the stage that has just ended: until it is asked again, and for how long.
pub(super) const REFUSED_AGAIN: Duration = Duration::from_millis(20);
pub(super) const REFUSED_FOR: Duration = Duration::from_secs(1);

/// A shell in the guest that has said its first word and reads its standard input.
pub(super) struct StandbyShell {
    shell: Shell,
    pub(super) begun: Begun,
    /// What it said before; belongs to the stage's output.
    pub(super) noise: Noise,
}

impl StandbyShell {
    /// Starts a shell, and waits until it is there.
    async fn start(session: &Session<'_>, shell: &Shell, within: Duration) -> Result<Self, NoShell> {
        let patience = Instant::now() + REFUSED_FOR.min(within);
        loop {
            match Self::try_start(session, shell, within).await {
                Err(none) if is_refusal(&none.error) && Instant::now() < patience => {
                    sleep(REFUSED_AGAIN).await;
                }
                done => return done,
            }
        }
    }

    async fn try_start(session: &Session<'_>, shell: &Shell, within: Duration) -> Result<Self, NoShell> {
        let mut noise = Noise::default();
        let marked = Marked::interpreter(&shell.name, &shell.before);
        let begun = match marked {
            Ok(marked) => stage::begin(session, &marked, within).await,
            Err(error) => Err(error),
        };
        let mut begun = match begun {
            Ok(begun) => begun,
            Err(error) => return Err(NoShell { error, noise }),
        };
        match begun.guest.start(session, within, &mut noise).await {
            Ok(()) => Ok(Self { shell: shell.clone(), begun, noise }),
            Err(error) => {
                let _sent = begun.to.close().await;
                Err(NoShell { error, noise })
            }
        }
    }

    /// The session in the guest, if it said which.
    pub(super) fn session(&self) -> Option<SessionId> {
        self.begun.guest.sift.session()
    }

    /// Resolves when it is fit for no stage any more.
    async fn spoil(&mut self) {
        self.begun.guest.spoil(&mut self.noise).await;
    }

    /// Ends it: it reads the end of its input. Dropping it would say nothing to the guest.
    pub(super) async fn dismiss(self) {
        let _sent = self.begun.to.close().await;
    }
}

/// A shell that did not come, and what was said in its place.
pub(super) struct NoShell {
    pub(super) error: ConnectError,
    pub(super) noise: Noise,
}

/// A wish for a shell.
struct ShellRequest {
    shell: Shell,
    within: Duration,
    back: oneshot::Sender<Result<StandbyShell, NoShell>>,
}

/// The counter at which stages get their shells.
pub(super) struct Shells {
    wishes: mpsc::Sender<ShellRequest>,
    /// A shell waits.
    pub(super) one_waits: Cell<bool>,
    /// The last one did not come, or died.
    trouble: Cell<bool>,
    /// A stage runs: until it has ended none is started.
    pub(super) stage_runs: Cell<bool>,
    changed: Notify,
}

/// What serves at that counter.
pub(super) struct StandbyLoop {
    wishes: mpsc::Receiver<ShellRequest>,
    /// How long a shell may take to come.
    within: Duration,
}

impl Shells {
    pub(super) fn new(within: Duration) -> (Self, StandbyLoop) {
        let (wishes, served) = mpsc::channel(1);
        let one_waits = Cell::new(false);
        let (trouble, stage_runs) = (Cell::new(false), Cell::new(false));
        let shells = Self { wishes, one_waits, trouble, stage_runs, changed: Notify::new() };
        (shells, StandbyLoop { wishes: served, within })
    }

    /// The shell that waits, if it is of this kind, or a new one. `None`: nobody serves any more.
    pub(super) async fn take(&self, shell: Shell, within: Duration) -> Option<Result<StandbyShell, NoShell>> {
        let (back, answer) = oneshot::channel();
        self.wishes.send(ShellRequest { shell, within, back }).await.ok()?;
        answer.await.ok()
    }

    /// A stage has ended: the next shell may be started.
    pub(super) fn stage_ended(&self) {
        self.stage_runs.set(false);
        self.changed.notify_waiters();
    }

    /// Resolves when a shell waits; false when there will be none for now.
    pub(super) async fn settled(&self) -> bool {
        loop {
            if self.one_waits.get() || self.trouble.get() {
                return self.one_waits.get();
            }
            self.changed.notified().await;
        }
    }

    /// Starts shells and hands them out, for as long as the link lives. `at_once`: one may wait before the first stage.
    pub(super) async fn keep(&self, session: &Session<'_>, mut keeper: StandbyLoop, at_once: bool) {
        let mut shell = Shell { name: "bash".to_owned(), before: String::new() };
        let mut waiting: Option<StandbyShell> = None;
        let mut rest = FIRST_REST;
        let mut not_before = Instant::now();
        let mut early: Option<ShellRequest> = None;
        let mut wanted = at_once;
        if !wanted {
            self.tell(false);
        }
        loop {
            let may_start = || wanted && !self.stage_runs.get();
            if waiting.is_none() && may_start() && Instant::now() >= not_before {
                match StandbyShell::start(session, &shell, keeper.within).await {
                    Ok(started) => waiting = Some(started),
                    Err(none) => {
                        not_before = Instant::now() + rest;
                        rest = (rest * 2).min(LONGEST_REST);
                        early = keeper.wishes.try_recv().ok();
                        // It has waited for this very shell.
                        if let Some(wish) = early.take_if(|wish| wish.shell == shell) {
                            let _gone = wish.back.send(Err(none));
                        }
                    }
                }
                self.tell(waiting.is_some());
            }
            let may_start = waiting.is_none() && may_start();
            tokio::select! {
                biased;
                // First: a shell that is known to be dead is given to no stage.
                () = spoil(&mut waiting) => {
                    if let Some(spoilt) = waiting.take() {
                        spoilt.dismiss().await;
                    }
                    not_before = Instant::now() + rest;
                    rest = (rest * 2).min(LONGEST_REST);
                    wanted = shell.before.is_empty();
                    self.tell(false);
                }
                wish = next(&mut early, &mut keeper.wishes) => {
                    let Some(ShellRequest { shell: kind, within, back }) = wish else { return };
                    let found = match waiting.take() {
                        Some(fitting) if fitting.shell == kind => Ok(fitting),
                        other => {
                            if let Some(other) = other {
                                other.dismiss().await;
                            }
                            StandbyShell::start(session, &kind, within).await
                        }
                    };
                    (shell, rest, not_before) = (kind, FIRST_REST, Instant::now());
                    wanted = true;
                    self.tell(false);
                    self.trouble.set(false);
                    if let Err(Ok(unwanted)) = back.send(found) {
                        unwanted.dismiss().await;
                    }
                }
                () = sleep_until(not_before), if may_start => {}
                () = self.changed.notified(), if waiting.is_none() => {}
            }
        }
    }

    fn tell(&self, one_waits: bool) {
        self.one_waits.set(one_waits);
        self.trouble.set(!one_waits);
        self.changed.notify_waiters();
    }
}

async fn next(
    early: &mut Option<ShellRequest>,
    wishes: &mut mpsc::Receiver<ShellRequest>,
) -> Option<ShellRequest> {
    match early.take() {
        Some(wish) => Some(wish),
        None => wishes.recv().await,
    }
}

async fn spoil(waiting: &mut Option<StandbyShell>) {
    match waiting {
        Some(waiting) => waiting.spoil().await,
        None => std::future::pending().await,
    }
}
