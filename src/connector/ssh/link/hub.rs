//! A link at work: one connection, and the calls that use it one after the other.
//!
//! A stage has the connection for itself, since a reader that stalls stalls all of it. Checks come in between.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::super::remote::sweep;
use super::super::session::{Session, is_refusal};
use super::super::{Ssh, passed};
use super::figures;
use super::line::Line;
use super::message::{Ask, LinkSpec, PROTOCOL, Reply, Request};
use super::shells::{REFUSED_AGAIN, REFUSED_FOR, Shells, StandbyLoop};
use super::slot::SlotLock;
use crate::core::endpoint::Endpoint;
use crate::core::ids::InstanceId;
use crate::port::connector::ConnectError;

/// A call says what it wants at once.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// For what a dead link's stage left running: TERM, then KILL, then it is given up.
const SWEEP_GRACE: Duration = Duration::from_millis(200);
const SWEEP_KILLING: Duration = Duration::from_secs(5);

/// The runner that the present job belongs to.
#[derive(Debug)]
pub(super) struct RunnerWatch {
    pub(super) pidfd: AsyncFd<OwnedFd>,
    /// The directory of the keeper's mailbox.
    pub(super) wake: PathBuf,
    /// It is stopped together with us.
    pub(super) is_ours: bool,
}

/// What the calls of a link share.
pub(super) struct Hub<'a> {
    pub(super) order: &'a LinkSpec,
    pub(super) seat: &'a SlotLock,
    connection: OnceCell<Result<Session<'a>, ConnectError>>,
    connected_at: Cell<Option<Instant>>,
    connected: Notify,
    pub(super) shells: Shells,
    /// No more stages: it ends when the present one has.
    leaving: Cell<bool>,
    /// Something that `over` and the runner's watch look at has changed.
    pub(super) changed: Notify,
    pub(super) round_trip: Cell<Option<Duration>>,
    pub(super) stages: Cell<u64>,
    pub(super) runner: RefCell<Option<Rc<RunnerWatch>>>,
}

impl<'a> Hub<'a> {
    pub(super) fn new(order: &'a LinkSpec, seat: &'a SlotLock) -> (Self, StandbyLoop) {
        let (shells, keeper) = Shells::new(order.within);
        let hub = Self {
            order,
            seat,
            connection: OnceCell::new(),
            connected_at: Cell::new(None),
            connected: Notify::new(),
            shells,
            leaving: Cell::new(false),
            changed: Notify::new(),
            round_trip: Cell::new(None),
            stages: Cell::new(0),
            runner: RefCell::new(None),
        };
        (hub, keeper)
    }

    /// Connects, stops what a dead link's stage left, and keeps a shell waiting until the connection ends.
    pub(super) async fn serve(&self, ssh: &'a Ssh, keeper: StandbyLoop) {
        let id = InstanceId::new(self.order.instance.as_str());
        let connection = ssh.connect(&id, &self.order.at, self.order.within).await;
        if let Ok(session) = &connection {
            self.sweep(session).await;
        }
        self.connected_at.set(Some(Instant::now()));
        let connection = self.connection.get_or_init(|| connection);
        self.connected.notify_waiters();
        if let Ok(session) = connection {
            let closing = async {
                session.closed().await;
                self.leave();
            };
            // The operator's hosts, which are not ours to throw away, are those that their key opens.
            let at_once = self.order.at.key.is_none();
            // A stage that waits for its shell hears of the end from there.
            tokio::join!(closing, self.shells.keep(session, keeper, at_once));
        }
        // Whoever waits is told; the next call starts another link.
        self.leave();
    }

    async fn sweep(&self, session: &Session<'_>) {
        let Some(left) = self.seat.left_running() else { return };
        let command = sweep(left, SWEEP_GRACE, SWEEP_KILLING);
        let within = SWEEP_GRACE + SWEEP_KILLING * 2;
        // On a connection that breaks meanwhile nothing was stopped: the next link's turn. What does not go is the
        // instance's end at the latest.
        if !matches!(timeout(within, session.brief(&command)).await, Ok(Err(_))) {
            let _noted = self.seat.note(None);
        }
    }

    /// The connection, once it stands.
    pub(super) async fn session(&self) -> Result<&Session<'a>, ConnectError> {
        loop {
            match self.connection.get() {
                Some(Ok(session)) => return Ok(session),
                Some(Err(error)) => return Err(error.clone()),
                None => self.connected.notified().await,
            }
        }
    }

    /// How long the connection has stood.
    pub(super) fn connected_for(&self) -> Option<Duration> {
        self.connected_at.get().map(|at| at.elapsed())
    }

    pub(super) fn leave(&self) {
        self.leaving.set(true);
        self.changed.notify_waiters();
    }

    pub(super) fn is_busy(&self) -> bool {
        self.shells.stage_runs.get()
    }

    /// Resolves when it is time to end.
    pub(super) async fn over(&self) {
        while !self.leaving.get() || self.is_busy() {
            self.changed.notified().await;
        }
    }

    /// One call, from its request to its end.
    pub(super) async fn converse(&self, stream: UnixStream) {
        let mut line = Line::new(stream);
        let heard = timeout(REQUEST_WITHIN, line.hear::<Value>()).await;
        let Ok(Ok(Some(request))) = heard else { return };
        // The only part of a request that every version understands.
        let protocol =
            request.get("protocol").and_then(Value::as_u64).and_then(|number| number.try_into().ok());
        let Some::<u32>(protocol) = protocol else { return };
        let request = match serde_json::from_value::<Request>(request) {
            Ok(request) if protocol == PROTOCOL => request,
            _ => return self.turn_away(&line).await,
        };
        // A call that has gone hears no answer.
        let _heard = match request.ask {
            Ask::End => {
                // No link comes after this one.
                let _noted = self.seat.note(None);
                self.leave();
                let said = line.say(&Reply::Closing, &[]).await;
                self.over().await;
                said
            }
            Ask::Show => line.say(&Reply::Shown(figures::of(self).await), &[]).await,
            Ask::Check { at, .. } | Ask::Stage { at, .. } if self.leaving.get() || at != self.order.at => {
                return self.turn_away(&line).await;
            }
            Ask::Check { .. } | Ask::Stage { .. } if self.is_busy() => line.say(&Reply::Busy, &[]).await,
            Ask::Check { at, within } => {
                self.watch_runner(&mut line, request.wake, 0);
                self.answer_check(&line, &at, within).await
            }
            Ask::Stage { shell, start_within, stop_grace, .. } => {
                self.watch_runner(&mut line, request.wake, super::stage::GIVEN);
                self.run_stage(line, shell, start_within, stop_grace).await
            }
        };
    }

    /// It wants another link than this one: which makes room as soon as it can.
    async fn turn_away(&self, line: &Line) {
        let reply = if self.is_busy() { Reply::Busy } else { Reply::Closing };
        self.leave();
        let _heard = line.say(&reply, &[]).await;
    }

    async fn answer_check(&self, line: &Line, at: &Endpoint, within: Duration) -> std::io::Result<()> {
        line.say(&Reply::Accepted, &[]).await?;
        let answer = timeout(within, self.check(at)).await.unwrap_or_else(|_| {
            // Whoever asks next gets a new connection.
            self.leave();
            Err(self.late(within))
        });
        let reply = answer.map_or_else(Reply::Failed, |()| Reply::Answers);
        line.say(&reply, &[]).await
    }

    /// A shell that waits shows that the guest can start processes; the question, that it is there now.
    async fn check(&self, at: &Endpoint) -> Result<(), ConnectError> {
        let session = self.session().await?;
        let patience = Instant::now() + REFUSED_FOR;
        while !self.shells.settled().await {
            match session.brief("true").await {
                // A shell that has come meanwhile may have the only session.
                Err(error) if is_refusal(&error) && Instant::now() < patience => sleep(REFUSED_AGAIN).await,
                answer => return passed(session, &at.user, answer?),
            }
        }
        self.ping(session).await
    }

    pub(super) async fn ping(&self, session: &Session<'_>) -> Result<(), ConnectError> {
        let asked = Instant::now();
        session.ping().await?;
        self.round_trip.set(Some(asked.elapsed()));
        Ok(())
    }

    /// Takes the runner's pidfd, which comes after so many other descriptors.
    fn watch_runner(&self, line: &mut Line, wake: Option<PathBuf>, others: usize) {
        let (Some(wake), Some(pidfd)) = (wake, line.take_given(others)) else { return };
        let is_ours = line.peer().ok().and_then(|peer| peer.pid()).is_some_and(same_control_group);
        let Ok(pidfd) = watchable(pidfd) else { return };
        *self.runner.borrow_mut() = Some(Rc::new(RunnerWatch { pidfd, wake, is_ours }));
        self.changed.notify_waiters();
    }

    /// Tells the keeper when the runner of the present job is gone; ends where the runner's service is what we are
    /// part of: its stop shall not wait for us.
    pub(super) async fn mind_runner(&self) {
        loop {
            let Some(watch) = self.runner.borrow().clone() else {
                self.changed.notified().await;
                continue;
            };
            tokio::select! {
                gone = watch.pidfd.readable() => {
                    if gone.is_ok() {
                        super::slot::hint(&watch.wake);
                        if watch.is_ours {
                            self.leave();
                        }
                    }
                    let mut present = self.runner.borrow_mut();
                    if present.as_ref().is_some_and(|present| Rc::ptr_eq(present, &watch)) {
                        *present = None;
                    }
                }
                () = self.changed.notified() => {}
            }
        }
    }
}

/// Is a call, and so its runner, in the control group that we are in?
fn same_control_group(pid: i32) -> bool {
    let of = |who: &str| std::fs::read(format!("/proc/{who}/cgroup")).ok();
    let own = of("self");
    own.is_some() && own == of(&pid.to_string())
}

#[expect(deprecated, reason = "its successor is unsafe; what it asks for, an OwnedFd always keeps")]
fn watchable(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}
