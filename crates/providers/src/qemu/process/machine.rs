//! A running QEMU, its console on disk, and how it ends.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::Duration;

use fs_err as fs;
use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::command::QemuCommand;
use super::exec::{ProgramError, QemuProcess, QemuProgram};
use super::qmp::{Event, Qmp, forwarded_port};
use crate::qemu::accel::AccelError;
use crate::qemu::egress::EgressError;
use crate::qemu::image::ImageError;
use crate::qemu::launch::DiskError;
use crate::supervised::instance_dir::{CONSOLE_TAIL, InstanceDir};
use crate::supervised::supervisor::note;

/// The time limit from QEMU's start to its greeting. It needs a tenth of a second, more on a busy host.
const GREETING: Duration = Duration::from_secs(20);

/// The time limit for QEMU to exit after it has closed its side of the connection.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for a machine that closed a connection to report how it ended.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The way a [`Machine`] ended, such as `shut itself down`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::qemu) enum Ending {
    PoweredOff,
    Rebooted,
    /// The guest's kernel panicked, with this message.
    Panicked(String),
    /// KVM failed on it.
    KvmFailed,
    /// The runner host's disk is full, or broken; with the reason that QEMU reports.
    DiskFailed(String),
    /// The rules of its network are gone and cannot be installed again; with the reason.
    Unguarded(String),
    /// QEMU was killed by a signal.
    Killed {
        signal: i32,
        /// True if the kernel ran out of memory meanwhile.
        out_of_memory: bool,
    },
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
            Self::Unguarded(why) => {
                write!(f, "was stopped: its network rules are gone and cannot be installed again ({why})")
            }
            Self::Killed { signal, out_of_memory: true } => {
                write!(f, "was killed (signal {signal}): its host ran out of memory")
            }
            Self::Killed { signal, out_of_memory: false } => {
                write!(f, "was killed on its host (QEMU was killed by signal {signal})")
            }
            Self::Exited(status) => write!(f, "was stopped: QEMU exited with status {status}"),
        }
    }
}

/// The reason a [`Machine`] did not boot, or could not be frozen.
#[derive(Debug, thiserror::Error)]
pub(in crate::qemu) enum BootError {
    #[error("the virtual machine {0}")]
    Ended(Ending),
    #[error("{what} within {}", Pretty(*within))]
    Late { what: &'static str, within: Duration },
    #[error("QEMU failed to start ({status}): {last_line}")]
    NotStarted { status: ExitStatus, last_line: String },
    #[error("QEMU did not respond within {} s", GREETING.as_secs())]
    NoGreeting,
    #[error("QEMU exited with {0}")]
    QuitFailed(ExitStatus),
    #[error("QEMU could not write the state of the virtual machine")]
    StateNotWritten,
    #[error("image `{0}` has been rebuilt in the meantime")]
    Rebuilt(String),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Accel(#[from] AccelError),
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A started machine; killed when it is dropped.
#[derive(Debug)]
pub(in crate::qemu) struct Machine {
    started: QemuProcess,
    pub(super) qmp: Qmp,
    console: Console,
    /// The machine's end, by QEMU's events.
    reported: Option<Ending>,
    /// The kernel's count of processes that it killed for lack of memory, at the start of this one.
    out_of_memory: u64,
}

impl Machine {
    /// Starts QEMU and waits until it listens; the guest may already run.
    pub(in crate::qemu) async fn start(
        runner: &QemuProgram,
        mut command: QemuCommand,
        console: &Console,
    ) -> Result<Self, BootError> {
        let monitor = command.monitor()?;
        let out_of_memory = killed_for_memory();
        let mut started = runner.start(&command.arguments, command.passed)?;
        match timeout(GREETING, Qmp::begin(monitor)).await {
            Ok(Ok(qmp)) => {
                if let Some(stderr) = started.stderr.take() {
                    tokio::task::spawn_local(console.clone().pump(stderr));
                }
                Ok(Self { started, qmp, console: console.clone(), reported: None, out_of_memory })
            }
            Ok(Err(_)) => {
                let (status, output) = started.output().await?;
                let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
                Err(BootError::NotStarted { status, last_line: clean_line(last.as_bytes(), 300) })
            }
            Err(_) => {
                started.kill().await;
                Err(BootError::NoGreeting)
            }
        }
    }

    /// Waits for work of the guest's, as long as the machine lives.
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
        // How the machine ended explains more than a closed connection does.
        match timeout(REPORT_TIMEOUT, self.ended()).await {
            Ok(ending) => Err(BootError::Ended(ending)),
            Err(_) => Err(problem.into()),
        }
    }

    /// The port of 127.0.0.1 that leads to the guest's SSH.
    pub(super) async fn ssh_port(&mut self) -> io::Result<u16> {
        let arguments = json!({ "command-line": "info usernet" });
        let table = self.qmp.execute("human-monitor-command", arguments).await?;
        let port = table.as_str().and_then(forwarded_port);
        port.ok_or_else(|| io::Error::other("QEMU reports no port that is forwarded to the guest"))
    }

    /// Waits for the end. The future can be dropped without losing an event.
    pub(super) async fn ended(&mut self) -> Ending {
        while self.reported.is_none() {
            match self.qmp.event().await {
                Ok(event) => self.reported = self.judge(&event).await,
                Err(_) => break,
            }
        }
        if matches!(self.reported, Some(Ending::KvmFailed | Ending::DiskFailed(_))) {
            self.started.kill().await;
        }
        let Ok(Ok(status)) = timeout(EXIT_TIMEOUT, self.started.child.wait()).await else {
            self.started.kill().await;
            return Ending::Killed { signal: Signal::KILL.as_raw(), out_of_memory: false };
        };
        self.reported.take().unwrap_or_else(|| self.by_status(status))
    }

    /// The ending that an event reports, if any.
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
                let status = self.qmp.execute("query-status", json!({})).await.ok()?;
                (status["status"] == "internal-error").then_some(Ending::KvmFailed)
            }
            _ => None,
        }
    }

    fn by_status(&self, status: ExitStatus) -> Ending {
        match status.signal() {
            Some(signal) => {
                Ending::Killed { signal, out_of_memory: killed_for_memory() > self.out_of_memory }
            }
            None => Ending::Exited(status.code().unwrap_or_default()),
        }
    }

    /// Has QEMU complete its files and exit.
    pub(super) async fn quit(&mut self) -> Result<(), BootError> {
        self.qmp.execute("quit", json!({})).await?;
        match timeout(EXIT_TIMEOUT, self.started.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(BootError::QuitFailed(status)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }

    /// Kills it as a power cut would, and waits for its exit.
    pub(super) async fn kill(&mut self) {
        self.started.kill().await;
    }
}

/// Writes the machine's serial console to disk until it is closed.
pub(super) fn listen(console: &Console, stream: UnixStream) {
    tokio::task::spawn_local(console.clone().pump(stream));
}

/// Number of processes that the kernel has killed for lack of memory since its boot.
fn killed_for_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

/// Size in bytes at which the file is cut down to its end.
const MOST_CONSOLE: u64 = 1 << 20;

/// The beginning of a Linux kernel's panic message.
const PANIC: &str = "Kernel panic - not syncing: ";

/// The file `console.log`, which the supervisor's own lines go to as well.
#[derive(Debug, Clone)]
pub(super) struct Console(Rc<RefCell<ConsoleFile>>);

#[derive(Debug)]
struct ConsoleFile {
    file: fs::File,
    /// The beginning of the line that is being written.
    line: Vec<u8>,
    panic: Option<String>,
}

impl Console {
    pub(super) fn open(dir: &InstanceDir) -> io::Result<Self> {
        let file =
            fs::OpenOptions::new().read(true).append(true).create(true).open(dir.file("console.log"))?;
        Ok(Self(Rc::new(RefCell::new(ConsoleFile { file, line: Vec::new(), panic: None }))))
    }

    /// Returns why the guest's kernel panicked, if it did.
    pub(super) fn panic(&self) -> Option<String> {
        self.0.borrow().panic.clone()
    }

    /// Writes all input until it ends. Runs as a task of its own.
    pub(super) async fn pump(self, mut from: impl AsyncRead + Unpin) {
        let mut bytes = vec![0; 8 * 1024];
        loop {
            match from.read(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    if let Err(error) = self.0.borrow_mut().write(&bytes[..read]) {
                        // A full disk does not stop the guest: its output is lost until there is space again.
                        note(&format!("cannot write to the console: {error}"));
                    }
                }
            }
        }
    }
}

impl ConsoleFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.notice(bytes);
        if self.file.metadata()?.len() > MOST_CONSOLE {
            self.shorten()?;
        }
        self.file.write_all(bytes)
    }

    fn notice(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                let line = String::from_utf8_lossy(&self.line);
                if let Some((_, why)) = line.split_once(PANIC) {
                    self.panic = Some(clean_line(why.as_bytes(), 120));
                }
                self.line.clear();
            } else if self.line.len() < 512 {
                self.line.push(*byte);
            }
        }
    }

    fn shorten(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        self.file.seek(SeekFrom::Start(length.saturating_sub(CONSOLE_TAIL)))?;
        let mut end = Vec::new();
        self.file.read_to_end(&mut end)?;
        self.file.set_len(0)?;
        self.file.write_all(&end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_talkative_guest_fills_no_disk_and_its_last_words_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = InstanceDir::at(temporary.path());
        let console = Console::open(&dir).unwrap();
        let mut output = b"noise that goes on and on\n".repeat(100_000);
        output.extend(b"[    1.2] Kernel panic - not syncing: sysrq triggered \x1b[0mcrash\r\nthe end\n");
        console.clone().pump(&output[..]).await;
        let kept = fs::read(dir.file("console.log")).unwrap();
        assert!(kept.len() as u64 <= MOST_CONSOLE + 8 * 1024, "{}", kept.len());
        assert!(kept.ends_with(b"the end\n"));
        assert_eq!(console.panic().unwrap(), "sysrq triggered crash");
    }
}
