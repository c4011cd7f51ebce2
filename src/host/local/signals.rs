//! SIGTERM and SIGQUIT are remembered; SIGHUP and SIGINT are swallowed.
//!
//! The runner's graceful stop sends SIGQUIT to the whole cgroup, terminals send SIGHUP and SIGINT: none of them is a
//! wish of the job. After SIGQUIT a keeper goes with the last job. Handlers, not ignored dispositions: those would be inherited by every program we start.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Whether this process has been told to stop. Once told it stays told: every wait, of every pool, ends with it.
#[derive(Debug, Clone)]
pub struct Signals {
    stop: Option<watch::Receiver<bool>>,
    leave: Option<watch::Receiver<bool>>,
}

impl Signals {
    /// Installs the handlers. The first thing a driver call or a keeper does inside its runtime.
    pub fn install() -> io::Result<Self> {
        // A handler stays installed when its stream is dropped.
        for swallowed in [SignalKind::hangup(), SignalKind::interrupt()] {
            drop(signal(swallowed)?);
        }
        Ok(Self {
            stop: Some(remembered(SignalKind::terminate())?),
            leave: Some(remembered(SignalKind::quit())?),
        })
    }

    /// For an operator's command: signals do what they always do.
    pub fn default_actions() -> Self {
        Self { stop: None, leave: None }
    }

    /// Resolves when SIGTERM has come, also long ago.
    pub(super) async fn stop(&self) {
        told(self.stop.clone()).await;
    }

    /// Resolves when SIGQUIT has come, also long ago.
    pub(super) async fn leave(&self) {
        told(self.leave.clone()).await;
    }
}

/// Installs a handler; true from the signal on.
fn remembered(kind: SignalKind) -> io::Result<watch::Receiver<bool>> {
    let mut heard = signal(kind)?;
    let (told, tells) = watch::channel(false);
    tokio::spawn(async move {
        if heard.recv().await.is_some() {
            told.send_replace(true);
            // Keeps the sender, so that the receivers never see it closed.
            told.closed().await;
        }
    });
    Ok(tells)
}

async fn told(signal: Option<watch::Receiver<bool>>) {
    let Some(mut signal) = signal else { return std::future::pending().await };
    if signal.wait_for(|told| *told).await.is_err() {
        // The runtime that heard signals is gone: so is whoever asks.
        std::future::pending::<()>().await;
    }
}
