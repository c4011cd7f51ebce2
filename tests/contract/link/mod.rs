//! The promises of links beyond the connector's contract, against OpenSSH's own server.
//!
//! `slots`: one link each, whichever call starts it. `unresponsive`: links that are stopped or killed. `life`: what ends a
//! link. `cleaning`: hosts that are cleaned after each job. `closed`: which callers it accepts and which data it holds.
//! `shells`: guests that make trouble for the waiting shell. `rate`: output that is faster than its reader.
//! `metadata`: what the instance's metadata service announces; `announced`: what follows from that.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![expect(clippy::print_stderr, reason = "figures for whoever reads the test's output")]

mod announced;
mod caller;
mod cleaning;
mod closed;
mod life;
mod metadata;
mod rate;
mod shells;
mod slots;
mod unresponsive;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greenroom_core::execution::Shell;
use greenroom_ports::connector::{Output, StageEnd, Stop, Stream};
use greenroom_ssh::link::{Figures, LinkStatus, Survey};
use rustix::process::{Pid, Signal, kill_process};

use crate::linked::sshd::Sshd;
use crate::linked::support::{eventually, never, stage, when};

/// The living links below a directory of a test.
fn links(dir: &Path) -> Vec<u32> {
    let name = dir.join("link").into_os_string().into_encoded_bytes();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        // A zombie has no arguments any more.
        (line.split(|byte| *byte == 0).next()? == name).then_some(pid)
    });
    found.collect()
}

/// The only link of a test, which exists already.
#[track_caller]
pub(crate) fn only_link(sshd: &Sshd) -> u32 {
    let found = links(sshd.dir.path());
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

async fn until_no_link(sshd: &Sshd) {
    let dir = sshd.dir.path().to_owned();
    eventually("the link ends", || links(&dir).is_empty()).await;
}

/// The directory of the links of the test's instance.
fn place(sshd: &Sshd) -> PathBuf {
    sshd.path("links").join("guest")
}

/// The status of the links.
async fn figures(sshd: &Sshd) -> Vec<Figures> {
    figures_of(&sshd.path("links"), sshd).await
}

/// The status of the links in another directory.
async fn figures_of(dir: &Path, sshd: &Sshd) -> Vec<Figures> {
    let seen = Survey::query(dir, Duration::from_secs(5)).await;
    let answers = seen.of(&sshd.id).iter().map(|found| found.answer.clone());
    let figures = answers.filter_map(|answer| match answer {
        LinkStatus::Figures(figures) => Some(figures),
        LinkStatus::Closing | LinkStatus::Unresponsive => None,
    });
    figures.collect()
}

/// Waits until a shell waits in the guest.
pub(crate) async fn until_ready(sshd: &Sshd) {
    let until = Instant::now() + Duration::from_secs(30);
    while !figures(sshd).await.iter().any(|link| link.shell_waits && !link.busy) {
        assert!(Instant::now() < until, "no shell waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Runs a script that succeeds; returns its output.
async fn said(sshd: &Sshd, script: &str) -> String {
    let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(0), "{kept:?}");
    kept.out()
}

/// The lines by which a script reports that it runs, for `runs`.
fn saying(sshd: &Sshd, script: &str) -> String {
    let file = sshd.path("session");
    let _none = std::fs::remove_file(&file);
    format!("echo $$ >{0}.new; mv {0}.new {0}\n{script}\n", file.display())
}

/// Resolves when the script runs.
fn runs(sshd: &Sshd) -> Stop<'static> {
    let file = sshd.path("session");
    when(move || file.exists())
}

/// The session of the script that reported so.
fn session(sshd: &Sshd) -> u32 {
    std::fs::read_to_string(sshd.path("session")).unwrap().trim().parse().unwrap()
}

/// A figure of a process's memory (`VmRSS`, `VmHWM`), in bytes; none once it has ended.
fn memory_of(pid: u32, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let kib: u64 = line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse().unwrap());
    kib << 10
}

/// Processor time that a process has used, in hundredths of a second; none once it has been reaped.
fn ticks_of(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap().split(' ');
    fields.skip(11).take(2).map(|time| time.parse::<u64>().unwrap()).sum()
}

/// A reader that sleeps after its first bytes.
struct Sleepy {
    sleeps: Option<Duration>,
    taken: u64,
}

#[async_trait(?Send)]
impl Output for Sleepy {
    async fn write(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        self.taken += bytes.len() as u64;
        if let Some(time) = self.sleeps.take() {
            tokio::time::sleep(time).await;
        }
        Ok(())
    }
}
