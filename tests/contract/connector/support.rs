//! Outputs, scripts and processes for these tests.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greenroom_core::execution::{Shell, StageShell};
use greenroom_ports::connector::{Output, Reader, Stage, Stop, Stream};
use greenroom_ssh::link::{LinkSettings, Linked};
use greenroom_ssh::{Ssh, SshSettings};

/// Time limit for an expected event.
const IN_VAIN: Duration = Duration::from_secs(30);

/// Keeps both streams.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Kept {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

#[async_trait(?Send)]
impl Output for Kept {
    async fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Stdout => self.stdout.extend_from_slice(bytes),
            Stream::Stderr => self.stderr.extend_from_slice(bytes),
        }
        Ok(())
    }
}

/// Counts the output without keeping it.
#[derive(Debug, Default)]
pub(crate) struct Counted(pub(super) u64);

#[async_trait(?Send)]
impl Output for Counted {
    async fn write(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        self.0 += bytes.len() as u64;
        Ok(())
    }
}

/// A reader that never returns.
#[derive(Debug, Default)]
pub(crate) struct Stuck;

#[async_trait(?Send)]
impl Output for Stuck {
    async fn write(&mut self, _: Stream, _: &[u8]) -> io::Result<()> {
        std::future::pending().await
    }
}

/// A stop that never comes.
pub(crate) fn never() -> Stop<'static> {
    Box::pin(std::future::pending())
}

pub(crate) fn after(wait: Duration) -> Stop<'static> {
    Box::pin(tokio::time::sleep(wait))
}

/// Resolves when `condition` holds; fails the test after a timeout.
pub(crate) fn when(mut condition: impl FnMut() -> bool + 'static) -> Stop<'static> {
    Box::pin(async move {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < IN_VAIN, "waited in vain");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

/// A stage whose streams stay apart.
pub(crate) fn stage(shell: Shell, script: impl AsRef<[u8]>) -> Stage {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(script.as_ref()).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    let start_within = Duration::from_secs(15);
    Stage {
        reader: Reader::Shell(StageShell { separate_stderr: true, ..shell.into() }),
        open_umask: false,
        separate_stderr: true,
        ahead: None,
        script: file,
        start_within,
        stop_grace: Duration::from_secs(1),
        container_start: Duration::from_mins(1),
        trace: None,
        last: false,
    }
}

/// State, parent and session of a process, as `/proc` has them.
pub(crate) struct Process {
    pub(crate) pid: u32,
    state: String,
    parent: u32,
    session: u32,
}

fn processes() -> impl Iterator<Item = Process> {
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit(") ").next()?.split(' ');
        let state = fields.next()?.to_owned();
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Process { pid, state, parent, session })
    })
}

pub(crate) fn lives(pid: u32) -> bool {
    processes().any(|p| p.pid == pid && p.state != "Z")
}

/// The living processes in the session of a process.
pub(crate) fn living_of(session: u32) -> Vec<u32> {
    processes().filter(|p| p.session == session && p.state != "Z").map(|p| p.pid).collect()
}

pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    processes().filter(|p| p.parent == parent).map(|p| p.pid).collect()
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    // It may have exited by itself.
    let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// A number that a script printed in a line of its own after `name=`.
pub(crate) fn number(text: &str, name: &str) -> u32 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no `{name}=` in {text:?}")).trim().parse().unwrap()
}

/// Waits for a condition; fails the test after a timeout.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < IN_VAIN, "{what}: waited in vain");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A figure of this process's memory (`VmRSS`, `VmHWM`), in bytes.
pub(crate) fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let kib: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

/// A figure of this process's memory without the pages of programs and files, which the kernel maps: more with each
/// function that runs first.
pub(crate) fn own_memory(what: &str) -> u64 {
    memory(what).saturating_sub(memory("RssFile"))
}

/// True in the suite's second run, in which every call uses a link.
pub(crate) fn through_links() -> bool {
    module_path!().contains("linked")
}

/// A connector whose links are in a directory; their processes are identified by their first argument, which is there
/// too.
pub(crate) fn linked_through(settings: &SshSettings, dir: &Path) -> Linked {
    Linked::new(Ssh::new(settings.clone()), link_settings(dir))
}

/// Links in a directory, for a call without a runner.
pub(crate) fn link_settings(dir: &Path) -> LinkSettings {
    let name = dir.join("link");
    LinkSettings {
        dir: dir.join("links"),
        program: Box::new(move || {
            let mut program = Command::new(env!("CARGO_BIN_EXE_greenroom"));
            program.arg0(&name);
            Ok(program)
        }),
        runner: Box::new(|| None),
        mailbox: None,
    }
}
