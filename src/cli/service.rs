//! The keeper as a process: its log, and what it tells systemd. Without systemd, the latter does nothing.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::future::pending;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::error::CliError;
use super::ui;

/// Reports that the keeper works, after its start or a reload, and what `systemctl status` shows.
pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that a reload has begun; [`ready`] ends it, also in the process that this one re-executes as.
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

    /// The requests to a keeper in the background: none. The runner's process group gets SIGHUP for other reasons.
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

/// The size, in bytes, at which the log is renamed to `keeper.log.1` and a new one is started.
const ROTATE_AT: u64 = 4 * 1024 * 1024;

/// Starts the log of a keeper.
pub(super) fn start_log(state_dir: &Path, background: bool) -> Result<(), CliError> {
    let targets = Targets::new().with_target("greenroom", LevelFilter::INFO).with_default(LevelFilter::WARN);
    let registry = tracing_subscriber::registry().with(targets);
    let plain = tracing_subscriber::fmt::layer().with_target(false);
    let started = if background {
        let file = Rotating::open(state_dir.join("keeper.log"))?;
        registry.with(plain.with_ansi(false).with_writer(Mutex::new(file))).try_init()
    } else if std::env::var_os("JOURNAL_STREAM").is_some() {
        // journald adds its own time.
        registry.with(plain.without_time().with_ansi(false).with_writer(io::stderr)).try_init()
    } else {
        registry.with(plain.with_ansi(ui::colours()).with_writer(io::stderr)).try_init()
    };
    started.map_err(CliError::system)?;
    // A keeper in the background has no other output.
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |bug| {
        tracing::error!("the keeper crashed: {bug}");
        default_hook(bug);
    }));
    Ok(())
}

/// A log file that is rotated when it is full.
#[derive(Debug)]
struct Rotating {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Rotating {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        let size = file.metadata()?.len();
        Ok(Self { path, file, size })
    }
}

impl Write for Rotating {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.size >= ROTATE_AT {
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
            *self = Self::open(self.path.clone())?;
        }
        let written = self.file.write(bytes)?;
        self.size += u64::try_from(written).unwrap_or(u64::MAX);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_moves_aside_and_a_new_one_begins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.log");
        std::fs::write(&path, vec![b'x'; usize::try_from(ROTATE_AT).unwrap()]).unwrap();
        Rotating::open(path.clone()).unwrap().write_all(b"fresh\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "fresh\n");
        assert_eq!(std::fs::metadata(dir.path().join("keeper.log.1")).unwrap().len(), ROTATE_AT);
    }
}
