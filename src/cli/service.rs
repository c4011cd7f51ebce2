//! The keeper as a service of systemd: readiness, watchdog, reload. Without systemd, all of it does nothing.

use std::convert::Infallible;
use std::future::pending;
use std::io;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Reports that the keeper works, after its start or a reload, and what `systemctl status` shows.
pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that a reload has begun; `ready` ends it, also in the process that this one re-executes as.
pub(super) fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now());
    notify(&states);
}

/// Changes what `systemctl status` shows.
pub(super) fn status(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Pings the watchdog three times in its period, if the unit has one. The pings come from the keeper's only thread: a
/// keeper that hangs sends none.
pub(super) async fn ping() -> Infallible {
    let Some(period) = sd_notify::watchdog_enabled() else { return pending().await };
    loop {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(period / 3).await;
    }
}

fn notify(states: &[NotifyState<'_>]) {
    // A service manager that is gone cannot be told.
    sd_notify::notify(states).ok();
}

/// Requests to read the configuration now: SIGHUP.
#[derive(Debug)]
pub(super) struct Reloads(Option<Signal>);

impl Reloads {
    pub(super) fn install() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(|hangups| Self(Some(hangups)))
    }

    /// For a keeper in the background: the runner's process group gets SIGHUP for reasons of its own.
    pub(super) fn none() -> Self {
        Self(None)
    }

    pub(super) async fn requested(&mut self) {
        let arrived = match &mut self.0 {
            Some(hangups) => hangups.recv().await,
            None => None,
        };
        if arrived.is_none() {
            pending::<()>().await;
        }
    }
}
