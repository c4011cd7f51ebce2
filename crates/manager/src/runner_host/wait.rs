//! Waits for wake-ups, signals, the runner's exit and the clock, whichever comes first.
//!
//! SIGTERM and SIGQUIT are remembered; SIGHUP and SIGINT are ignored. The runner's graceful stop sends SIGQUIT to the whole
//! cgroup, and terminals send SIGHUP and SIGINT: none of them is meant for the job. After SIGQUIT, a keeper exits with the last job.
//! Handlers are used because every started program would inherit ignored dispositions.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_ports::host_error::HostError;
use greenroom_ports::wakeups::{MailboxName, WakeReason};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::files::cannot;
use super::host::LocalHost;
use super::mailboxes::{Address, Bound};

/// Interval at which a keeper that is to exit checks whether the last job has ended.
const OPEN_POLL_INTERVAL: Duration = Duration::from_millis(500);

impl LocalHost {
    pub(super) async fn wait_at(
        &self,
        inbox: MailboxName<'_>,
        within: Duration,
    ) -> Result<WakeReason, HostError> {
        match inbox {
            MailboxName::Keeper(pool) => self.wait_as_keeper(pool, within).await,
            MailboxName::Attempt(name) => self.wait_as_attempt(name, within).await,
        }
    }

    async fn wait_as_keeper(&self, pool: &PoolName, within: Duration) -> Result<WakeReason, HostError> {
        let watch = self.replacement_watch.borrow().clone();
        let received = async {
            match self.keeper_box(pool) {
                Ok(bound) => message(bound.mailbox.wake_up().await, self.state.root()),
                Err(error) => watch.as_ref().and_then(|watch| watch.notice()).ok_or(error),
            }
        };
        let noticed = async {
            match &watch {
                Some(watch) => watch.noticed(self.times.self_check_interval).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.signals.stop() => Ok(WakeReason::Stop),
            notice = noticed => Ok(notice),
            () = self.service_stopped() => Ok(WakeReason::Unneeded),
            // After the signals: a keeper without its socket is still told to stop.
            received = received => received,
            () = tokio::time::sleep(within) => Ok(WakeReason::Timeout),
        }
    }

    /// Resolves when the service that started this keeper stops and its last job has ended.
    async fn service_stopped(&self) {
        self.signals.leave().await;
        while self.has_open_attempt() {
            tokio::time::sleep(OPEN_POLL_INTERVAL).await;
        }
    }

    async fn wait_as_attempt(&self, name: &AttemptName, within: Duration) -> Result<WakeReason, HostError> {
        let bound = self.attempt_box(name)?;
        tokio::select! {
            biased;
            () = self.signals.stop() => Ok(WakeReason::Stop),
            () = self.runner_gone() => Ok(WakeReason::RunnerGone),
            received = bound.mailbox.wake_up() => message(received, self.state.root()),
            never = self.touch_lease(name) => match never {},
            () = tokio::time::sleep(within) => Ok(WakeReason::Timeout),
        }
    }

    pub(super) async fn until_stopped(&self, name: &AttemptName) -> WakeReason {
        let closed = async {
            // Without its socket, a call is still stopped by the runner; it only misses a concurrent `cleanup`.
            let Some(bound) = self.stop_box(name) else { return pending().await };
            if self.find_closed(name).is_ok_and(|closed| closed.is_some())
                || bound.mailbox.wake_up().await.is_ok()
            {
                return;
            }
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = self.signals.stop() => WakeReason::Stop,
            () = self.runner_gone() => WakeReason::RunnerGone,
            () = closed => WakeReason::Message,
            never = self.touch_lease(name) => match never {},
        }
    }

    async fn runner_gone(&self) {
        match self.runner() {
            Some(runner) => runner.gone().await,
            None => pending().await,
        }
    }

    /// Renews the lease's time, so that a stage of hours that is killed does not appear to have ended hours ago.
    async fn touch_lease(&self, name: &AttemptName) -> Infallible {
        loop {
            tokio::time::sleep(self.times.lease_renew_interval).await;
            if let Some(lease) = self.leases.borrow().get(name).and_then(std::rc::Weak::upgrade) {
                lease.touch();
            }
        }
    }

    fn keeper_box(&self, pool: &PoolName) -> Result<Rc<Bound>, HostError> {
        let address = Address::Keeper(pool.clone());
        if let Some(bound) = self.boxes.get(&address) {
            return Ok(bound);
        }
        let dir = self.state.ensure_pool(pool)?;
        self.boxes.bind_keeper(pool, &dir).map_err(|e| cannot("bind a socket in", &dir, e))?;
        Ok(self.boxes.get(&address).expect("it has just been bound"))
    }

    fn attempt_box(&self, name: &AttemptName) -> Result<Rc<Bound>, HostError> {
        let address = Address::Inbox(name.clone());
        if let Some(bound) = self.boxes.get(&address) {
            return Ok(bound);
        }
        self.bind_inbox(name, &self.state.attempt(name)?)?;
        Ok(self.boxes.get(&address).expect("it has just been bound"))
    }

    fn stop_box(&self, name: &AttemptName) -> Option<Rc<Bound>> {
        let dir = self.state.attempt(name).ok()?;
        self.boxes.bind_stop(name, &dir).ok()?;
        self.boxes.get(&Address::Stop(name.clone()))
    }
}

fn message(received: io::Result<()>, at: &std::path::Path) -> Result<WakeReason, HostError> {
    received.map(|()| WakeReason::Message).map_err(|e| cannot("receive from the socket in", at, e))
}

/// The signals that have told this process to stop. A stop never changes back: every wait of every pool ends with it.
#[derive(Debug, Clone)]
pub struct Signals {
    stop: Option<watch::Receiver<bool>>,
    leave: Option<watch::Receiver<bool>>,
}

impl Signals {
    /// Installs the handlers. A driver call or a keeper does this first inside its runtime.
    pub fn install() -> io::Result<Self> {
        // A handler stays installed when its stream is dropped.
        for ignored in [SignalKind::hangup(), SignalKind::interrupt()] {
            drop(signal(ignored)?);
        }
        Ok(Self {
            stop: Some(remembered(SignalKind::terminate())?),
            leave: Some(remembered(SignalKind::quit())?),
        })
    }

    /// Signals for an operator's command: they keep their default actions.
    pub fn default_actions() -> Self {
        Self { stop: None, leave: None }
    }

    /// Resolves when SIGTERM has arrived, now or earlier.
    pub(super) async fn stop(&self) {
        arrival(self.stop.clone()).await;
    }

    /// Resolves when SIGQUIT has arrived, now or earlier.
    async fn leave(&self) {
        arrival(self.leave.clone()).await;
    }
}

/// Installs a handler; the value is true from the signal on.
fn remembered(kind: SignalKind) -> io::Result<watch::Receiver<bool>> {
    let mut signals = signal(kind)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        if signals.recv().await.is_some() {
            sender.send_replace(true);
            // Keeps the sender, so that the receivers never see it closed.
            sender.closed().await;
        }
    });
    Ok(receiver)
}

async fn arrival(signal: Option<watch::Receiver<bool>>) {
    let Some(mut signal) = signal else { return std::future::pending().await };
    if signal.wait_for(|arrived| *arrived).await.is_err() {
        // The runtime that receives signals is gone, and so is the waiting task.
        std::future::pending::<()>().await;
    }
}
