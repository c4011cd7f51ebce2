//! Ctrl-C while a kit has machines.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, one after the other.
#[derive(Debug)]
pub(in crate::cli) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(in crate::cli) fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub(in crate::cli) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
