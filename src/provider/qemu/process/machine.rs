//! A QEMU that runs, and how it ends.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::command::QemuCommand;
use super::console::Console;
use super::exec::{Runner, Started};
use super::qmp::{Event, Qmp, forwarded_port};
use crate::core::text::clean_line;
use crate::core::time::Pretty;
use crate::provider::qemu::image::ImageError;

/// How long QEMU may take from its start to its greeting. It needs a tenth of a second, more on a busy machine.
const GREETING: Duration = Duration::from_secs(20);

/// How long it may take to go after it has closed its side of the conversation.
const LEAVING: Duration = Duration::from_secs(5);

/// How long a machine that broke a conversation off may take to say why.
const LAST_WORD: Duration = Duration::from_secs(2);

/// How a machine ended, as the end of a sentence that begins with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::provider::qemu) enum Ending {
    PoweredOff,
    Rebooted,
    /// Why, in the guest kernel's words.
    Panicked(String),
    /// KVM gave up on it.
    KvmFailed,
    /// This machine's disk is full, or broken; the reason in QEMU's words.
    DiskFailed(String),
    /// QEMU was killed. True: while the kernel ran out of memory.
    Killed(i32, bool),
    Exited(i32),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoweredOff => f.write_str("shut itself down"),
            Self::Rebooted => f.write_str("rebooted, which terminates a virtual machine"),
            Self::Panicked(why) => write!(f, "was stopped: its kernel panicked ({why})"),
            Self::KvmFailed => {
                f.write_str("was stopped: the host's KVM met an instruction that it cannot run")
            }
            Self::DiskFailed(why) => write!(f, "was stopped: its host cannot write its disk ({why})"),
            Self::Killed(signal, true) => {
                write!(f, "was killed (signal {signal}): its host ran out of memory")
            }
            Self::Killed(signal, false) => {
                write!(f, "was killed on its host (QEMU was killed by signal {signal})")
            }
            Self::Exited(status) => write!(f, "was stopped: QEMU exited with status {status}"),
        }
    }
}

/// Why a machine did not come up.
#[derive(Debug, thiserror::Error)]
pub(in crate::provider::qemu) enum BootError {
    #[error("the virtual machine {0}")]
    Ended(Ending),
    #[error("{what} within {}", Pretty(*within))]
    Late { what: &'static str, within: Duration },
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A machine that was started; killed when it is dropped.
#[derive(Debug)]
pub(in crate::provider::qemu) struct Machine {
    started: Started,
    pub(super) qmp: Qmp,
    console: Console,
    /// What it said before it went.
    seen: Option<Ending>,
    /// The kernel's count of processes that it killed for want of memory, when this one began.
    out_of_memory: u64,
}

impl Machine {
    /// Starts QEMU and waits until it listens; the guest may already run.
    pub(in crate::provider::qemu) async fn start(
        runner: &Runner,
        mut command: QemuCommand,
        console: &Console,
    ) -> io::Result<Self> {
        let monitor = command.monitor()?;
        let out_of_memory = killed_for_memory();
        let mut started = runner.start(&command.arguments, command.passed)?;
        match timeout(GREETING, Qmp::begin(monitor)).await {
            Ok(Ok(qmp)) => {
                if let Some(stderr) = started.stderr.take() {
                    tokio::task::spawn_local(console.clone().pump(stderr));
                }
                Ok(Self { started, qmp, console: console.clone(), seen: None, out_of_memory })
            }
            Ok(Err(_)) => {
                let (status, said) = started.output().await?;
                let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
                let last = clean_line(last.as_bytes(), 300);
                Err(io::Error::other(format!("QEMU failed to start ({status}): {last}")))
            }
            Err(_) => {
                started.kill().await;
                Err(io::Error::other(format!("QEMU did not respond within {} s", GREETING.as_secs())))
            }
        }
    }

    /// Waits for something that the guest does, as long as the machine lives.
    pub(super) async fn within<T>(
        &mut self,
        limit: Duration,
        what: &'static str,
        work: impl Future<Output = io::Result<T>>,
    ) -> Result<T, BootError> {
        let problem = tokio::select! {
            done = work => match done {
                Ok(done) => return Ok(done),
                Err(problem) => problem,
            },
            ending = self.ended() => return Err(BootError::Ended(ending)),
            () = tokio::time::sleep(limit) => return Err(BootError::Late { what, within: limit }),
        };
        // A conversation that broke off says less than the end of the machine that it was held with.
        match timeout(LAST_WORD, self.ended()).await {
            Ok(ending) => Err(BootError::Ended(ending)),
            Err(_) => Err(problem.into()),
        }
    }

    /// The port of 127.0.0.1 that leads to the guest's SSH.
    pub(super) async fn ssh_port(&mut self) -> io::Result<u16> {
        let asked = json!({ "command-line": "info usernet" });
        let table = self.qmp.ask("human-monitor-command", asked).await?;
        let port = table.as_str().and_then(forwarded_port);
        port.ok_or_else(|| io::Error::other("QEMU reports no port that is forwarded to the guest"))
    }

    /// Waits for the end. Dropping it loses nothing.
    pub(super) async fn ended(&mut self) -> Ending {
        while self.seen.is_none() {
            match self.qmp.event().await {
                Ok(event) => self.seen = self.judge(&event).await,
                Err(_) => break,
            }
        }
        if matches!(self.seen, Some(Ending::KvmFailed | Ending::DiskFailed(_))) {
            self.started.kill().await;
        }
        let Ok(Ok(status)) = timeout(LEAVING, self.started.child.wait()).await else {
            self.started.kill().await;
            return Ending::Killed(Signal::KILL.as_raw(), false);
        };
        self.seen.take().unwrap_or_else(|| self.by_status(status))
    }

    /// What an event says about the end, if it is one.
    async fn judge(&mut self, event: &Event) -> Option<Ending> {
        match event.name.as_str() {
            "SHUTDOWN" => match event.data["reason"].as_str() {
                Some("guest-shutdown") => Some(Ending::PoweredOff),
                Some("guest-reset" | "guest-panic") => {
                    Some(self.console.panic().map_or(Ending::Rebooted, Ending::Panicked))
                }
                _ => None,
            },
            "BLOCK_IO_ERROR" if event.data["action"] == "stop" => {
                let reason = event.data["reason"].as_str().unwrap_or("no reason given");
                Some(Ending::DiskFailed(clean_line(reason.as_bytes(), 120)))
            }
            "STOP" => {
                let status = self.qmp.ask("query-status", json!({})).await.ok()?;
                (status["status"] == "internal-error").then_some(Ending::KvmFailed)
            }
            _ => None,
        }
    }

    fn by_status(&self, status: ExitStatus) -> Ending {
        match status.signal() {
            Some(signal) => Ending::Killed(signal, killed_for_memory() > self.out_of_memory),
            None => Ending::Exited(status.code().unwrap_or_default()),
        }
    }

    /// Lets QEMU put its files in order and end.
    pub(super) async fn quit(&mut self) -> io::Result<()> {
        self.qmp.ask("quit", json!({})).await?;
        match timeout(LEAVING, self.started.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(io::Error::other(format!("QEMU exited with {status}"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    /// Ends it as a power cut would, and waits until it is gone.
    pub(super) async fn kill(&mut self) {
        self.started.kill().await;
    }
}

/// The machine's serial console, written as long as the guest says something.
pub(super) fn listen(console: &Console, stream: UnixStream) {
    tokio::task::spawn_local(console.clone().pump(stream));
}

/// How many processes the kernel has killed for want of memory since its boot.
fn killed_for_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}
