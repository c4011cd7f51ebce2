//! A running link: one connection, and the calls that use it one after the other.
//!
//! A stage uses the connection alone, because a stalled reader stalls all of it. Checks run between stages.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::ConnectError;
use greenroom_system::process::watch_exit;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::super::Ssh;
use super::super::session::Session;
use super::metadata::MetadataLog;
use super::protocol::{LinkSpec, LinkStream};
use super::shells::{Shells, StandbyLoop};
use super::slot::{SlotLock, wake_keeper};

/// Time from TERM to KILL, and from KILL to giving up, for processes that a dead link's stage left running.
const LEFT_GRACE: Duration = Duration::from_millis(200);
const LEFT_KILLING: Duration = Duration::from_secs(5);
/// Limit of the wait of a link, whose connection failed, for the call that started it.
const TELL_WITHIN: Duration = Duration::from_secs(1);

/// The runner of the current job.
#[derive(Debug)]
pub(super) struct RunnerWatch {
    pidfd: AsyncFd<OwnedFd>,
    /// The keeper's mailbox.
    wake: PathBuf,
    /// True if the runner's service includes this link, so that both are stopped together.
    same_service: bool,
}

/// State that the calls of a link share.
pub(super) struct Hub<'a> {
    pub(super) spec: &'a LinkSpec,
    pub(super) slot_lock: &'a SlotLock,
    connection: OnceCell<Result<Session<'a>, ConnectError>>,
    connected_at: Cell<Option<Instant>>,
    connected: Notify,
    /// Notified when a call has got the error of the connection.
    told: Notify,
    pub(super) shells: Shells,
    /// No more stages: the link exits when the current one has ended.
    closing: Cell<bool>,
    /// Notified when something that [`over`](Hub::over) or the runner's watch reads has changed.
    pub(super) changed: Notify,
    pub(super) round_trip: Cell<Option<Duration>>,
    pub(super) stages: Cell<u64>,
    pub(super) runner: RefCell<Option<Rc<RunnerWatch>>>,
    /// The announcements of the instance's metadata service.
    pub(super) metadata: MetadataLog,
}

impl<'a> Hub<'a> {
    pub(super) fn new(spec: &'a LinkSpec, slot_lock: &'a SlotLock) -> (Self, StandbyLoop) {
        let (shells, standby) = Shells::new(spec.within);
        let hub = Self {
            spec,
            slot_lock,
            connection: OnceCell::new(),
            connected_at: Cell::new(None),
            connected: Notify::new(),
            told: Notify::new(),
            shells,
            closing: Cell::new(false),
            changed: Notify::new(),
            round_trip: Cell::new(None),
            stages: Cell::new(0),
            runner: RefCell::new(None),
            metadata: MetadataLog::default(),
        };
        (hub, standby)
    }

    /// Connects, stops what a dead link's stage left running, and keeps a shell waiting until the connection ends.
    pub(super) async fn serve(&self, ssh: &'a Ssh, standby: StandbyLoop) {
        let id = InstanceId::new(self.spec.instance.as_str());
        let connection = ssh.connect(&id, &self.spec.at, self.spec.within).await;
        if let Ok(session) = &connection {
            self.stop_left_running(session).await;
        }
        self.connected_at.set(Some(Instant::now()));
        let connection = self.connection.get_or_init(|| connection);
        self.connected.notify_waiters();
        if let Ok(session) = connection {
            let watching = async {
                session.closed().await;
                self.close();
            };
            // Only static hosts, which are not terminated after the job, are logged in to with an operator's key.
            let start_early = self.spec.at.key.is_none();
            // A stage that waits for its shell learns of the end from the shell.
            tokio::join!(watching, self.shells.keep(session, standby, start_early), self.listen(session));
        }
        if connection.is_err() {
            // The call that started this link comes for the error: without it, that call would start another one, and each
            // of them would connect once more.
            let _in_time = timeout(TELL_WITHIN, self.told.notified()).await;
        }
        // The next call starts another link.
        self.close();
    }

    /// Listens to the instance's metadata service, if it has one.
    async fn listen(&self, session: &Session<'_>) {
        let Some(service) = self.spec.at.metadata else { return };
        let wake = || {
            if let Some(mailbox) = &self.spec.wake {
                wake_keeper(mailbox);
            }
        };
        self.metadata.listen(session, service, &wake).await;
    }

    async fn stop_left_running(&self, session: &Session<'_>) {
        let Some(left) = self.slot_lock.left_running() else { return };
        let command = session.dialect().stop(&left, LEFT_GRACE, LEFT_KILLING);
        let within = LEFT_GRACE + LEFT_KILLING * 2;
        // If the connection broke meanwhile, nothing was stopped, and the next link tries again. Processes that survive
        // end with the instance at the latest.
        if !matches!(timeout(within, session.brief(&command)).await, Ok(Err(_))) {
            let _recorded = self.slot_lock.record(None);
        }
    }

    /// The connection, once it is open.
    pub(super) async fn session(&self) -> Result<&Session<'a>, ConnectError> {
        loop {
            match self.connection.get() {
                Some(Ok(session)) => return Ok(session),
                Some(Err(error)) => {
                    self.told.notify_one();
                    return Err(error.clone());
                }
                None => self.connected.notified().await,
            }
        }
    }

    /// True if the login has succeeded.
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.connection.get(), Some(Ok(_)))
    }

    /// Age of the connection.
    pub(super) fn connected_for(&self) -> Option<Duration> {
        self.connected_at.get().map(|at| at.elapsed())
    }

    pub(super) fn close(&self) {
        self.closing.set(true);
        self.changed.notify_waiters();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.shells.stage_runs.get()
    }

    /// Resolves when the link should exit.
    pub(super) async fn over(&self) {
        while !self.closing.get() || self.is_busy() {
            self.changed.notified().await;
        }
    }

    pub(super) async fn ping(&self, session: &Session<'_>) -> Result<(), ConnectError> {
        let begun = Instant::now();
        session.ping().await?;
        self.round_trip.set(Some(begun.elapsed()));
        Ok(())
    }

    /// Takes the runner's pidfd, which follows `others` other descriptors, and watches the runner.
    pub(super) fn watch_runner(&self, line: &mut LinkStream, wake: Option<PathBuf>, others: usize) {
        let (Some(wake), Some(pidfd)) = (wake, line.take_descriptor(others)) else { return };
        let same_service = line.peer().ok().and_then(|peer| peer.pid()).is_some_and(same_control_group);
        let Ok(pidfd) = watch_exit(pidfd) else { return };
        *self.runner.borrow_mut() = Some(Rc::new(RunnerWatch { pidfd, wake, same_service }));
        self.changed.notify_waiters();
    }

    /// Wakes the keeper when the runner of the current job has exited. A link in the runner's service then exits too,
    /// so that the service's stop does not wait for it.
    pub(super) async fn supervise_runner(&self) {
        loop {
            let Some(watch) = self.runner.borrow().clone() else {
                self.changed.notified().await;
                continue;
            };
            tokio::select! {
                gone = watch.pidfd.readable() => {
                    if gone.is_ok() {
                        wake_keeper(&watch.wake);
                        if watch.same_service {
                            self.close();
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

/// True if a call, and so its runner, is in this process's control group.
fn same_control_group(pid: i32) -> bool {
    let of = |process: &str| std::fs::read(format!("/proc/{process}/cgroup")).ok();
    let own = of("self");
    own.is_some() && own == of(&pid.to_string())
}
