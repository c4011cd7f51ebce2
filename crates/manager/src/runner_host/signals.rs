//! SIGTERM and SIGQUIT are remembered; SIGHUP and SIGINT are ignored.
//!
//! The runner's graceful stop sends SIGQUIT to the whole cgroup, and terminals send SIGHUP and SIGINT: none of them is
//! meant for the job. After SIGQUIT, a keeper exits with the last job. Handlers are used because every started program
//! would inherit ignored dispositions.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Whether this process has been told to stop. That never changes back: every wait of every pool ends with it.
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

    /// For an operator's command: signals keep their default actions.
    pub fn default_actions() -> Self {
        Self { stop: None, leave: None }
    }

    /// Resolves when SIGTERM has arrived, now or earlier.
    pub(super) async fn stop(&self) {
        arrival(self.stop.clone()).await;
    }

    /// Resolves when SIGQUIT has arrived, now or earlier.
    pub(super) async fn leave(&self) {
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
