//! Chooses the accelerator of a guest: KVM if it passes a test, otherwise emulation.
//!
//! A /dev/kvm that can be opened proves nothing: incomplete nested KVMs open, and stop at the first instruction that
//! they do not support. So QEMU runs a test firmware under KVM first. The verdict is valid for one boot of the runner
//! host, one QEMU and one /dev/kvm.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use fs_err as fs;
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use super::process::exec::Runner;
use super::settings::Accel;
use crate::instance_dir::{InstanceDir, make_private};
use crate::process::boot_id;

mod firmware;

/// How long the firmware may take. A working KVM needs some milliseconds in addition to the start of QEMU.
const TEST_TIMEOUT: Duration = Duration::from_secs(1);

/// After failing on this number of machines, KVM is not used again in this boot.
const FAILURES: u32 = 2;

const DEVICE: &str = "/dev/kvm";

/// The accelerator that runs a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Engine {
    Kvm,
    Tcg,
}

impl Engine {
    /// Its name in QEMU's options.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// The result of a test of KVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KvmCheck {
    /// What the result is valid for.
    of: Subject,
    /// The problem with KVM, without a subject; `None`: it works.
    pub(super) problem: Option<String>,
    /// Machines on which KVM has failed since.
    #[serde(default)]
    failures: u32,
}

/// A verdict is valid as long as none of this changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Subject {
    boot: String,
    qemu: PathBuf,
    /// Inode, size and time of change of QEMU's program.
    program: (u64, u64, i64),
    /// Device number, mode and owner's group of /dev/kvm; `None`: there is none.
    device: Option<(u64, u32, u32)>,
    uid: u32,
}

impl Subject {
    fn now(runner: &Runner) -> io::Result<Self> {
        let program = fs::metadata(&runner.qemu)?;
        let device = fs::metadata(DEVICE).ok();
        Ok(Self {
            boot: boot_id()?,
            qemu: runner.qemu.clone(),
            program: (program.ino(), program.size(), program.mtime()),
            device: device.map(|found| (found.rdev(), found.mode(), found.gid())),
            uid: runner.uid(),
        })
    }
}

/// The folder of all instances, which also holds the file with the verdict.
fn instances_dir(state_dir: &Path) -> InstanceDir {
    InstanceDir::at(state_dir.join("instances"))
}

const FILE: &str = ".kvm.json";

/// The stored verdict, if it is still valid.
fn known(state_dir: &Path, subject: &Subject) -> Option<KvmCheck> {
    // A torn or older file counts as none.
    let verdict: KvmCheck = instances_dir(state_dir).read(FILE).ok().flatten()?;
    (verdict.of == *subject).then_some(verdict)
}

/// The stored verdict, or that of a test of KVM. True: it is new.
pub(super) async fn examine(state_dir: &Path, runner: &Runner) -> io::Result<(KvmCheck, bool)> {
    let subject = Subject::now(runner)?;
    if let Some(known) = known(state_dir, &subject) {
        return Ok((known, false));
    }
    let problem = match &subject.device {
        None => Some(format!("{DEVICE} is missing")),
        Some(_) => try_kvm(runner).await?,
    };
    Ok((KvmCheck { of: subject, problem, failures: 0 }, true))
}

/// Records that KVM has failed on a machine.
pub(super) fn failed(state_dir: &Path, runner: &Runner, how: &str) -> io::Result<()> {
    let subject = Subject::now(runner)?;
    let Some(mut verdict) = known(state_dir, &subject) else { return Ok(()) };
    verdict.failures += 1;
    if verdict.failures >= FAILURES {
        verdict.problem = Some(format!("KVM failed on {} virtual machines: {how}", verdict.failures));
    }
    instances_dir(state_dir).put(FILE, &verdict)
}

/// The engine of a machine, and the message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) engine: Engine,
    /// Why machines are emulated, if a test has found that just now.
    pub(super) news: Option<String>,
}

pub(super) async fn choose(requested: Accel, state_dir: &Path, runner: &Runner) -> io::Result<Choice> {
    if requested == Accel::Tcg {
        return Ok(Choice { engine: Engine::Tcg, news: None });
    }
    let (verdict, fresh) = examine(state_dir, runner).await?;
    if fresh {
        make_private(&instances_dir(state_dir).path)?;
        instances_dir(state_dir).put(FILE, &verdict)?;
    }
    match (verdict.problem, requested) {
        (None, _) => Ok(Choice { engine: Engine::Kvm, news: None }),
        (Some(problem), Accel::Kvm) => {
            Err(io::Error::other(format!("KVM cannot be used, but `accel` is \"kvm\": {problem}")))
        }
        (Some(problem), _) => {
            let news =
                fresh.then(|| format!("KVM cannot be used, so virtual machines are emulated: {problem}"));
            Ok(Choice { engine: Engine::Tcg, news })
        }
    }
}

/// The problem with KVM; `None`: it works.
async fn try_kvm(runner: &Runner) -> io::Result<Option<String>> {
    run(runner, &["-accel", "kvm", "-cpu", "host"]).await
}

/// Runs the firmware. `None`: it gave the right answer in time.
async fn run(runner: &Runner, accel: &[&str]) -> io::Result<Option<String>> {
    let rom = rustix::fs::memfd_create("greenroom-probe", MemfdFlags::CLOEXEC)?;
    let mut rom = std::fs::File::from(rom);
    rom.write_all(&firmware::image())?;
    let mut arguments: Vec<String> = [
        "-M",
        "q35",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-m",
        "16",
        "-device",
        firmware::PORT,
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.extend(accel.iter().map(|argument| (*argument).to_owned()));
    let (bios, passed) = super::process::exec::Passed::path(rom.into());
    arguments.extend(["-bios".to_owned(), bios]);
    let mut child = runner.start(&arguments, vec![passed])?;
    let waited = tokio::time::timeout(TEST_TIMEOUT, child.output()).await;
    let Ok(ended) = waited else {
        child.kill().await;
        return Ok(Some(format!("KVM did not run a few instructions within {} s", TEST_TIMEOUT.as_secs())));
    };
    let (status, output) = ended?;
    Ok(judge(status, &output))
}

fn judge(status: ExitStatus, output: &str) -> Option<String> {
    if status.code() == Some(firmware::ANSWER) {
        return None;
    }
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
    Some(format!("QEMU exited with {status}: {}", greenroom_core::text::clean_line(last.as_bytes(), 200)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_that_gives_up_on_two_machines_is_not_used_again() {
        let state = tempfile::tempdir().unwrap();
        let runner = Runner { qemu: PathBuf::from("/proc/self/exe"), identity: None };
        let subject = Subject::now(&runner).unwrap();
        make_private(&instances_dir(state.path()).path).unwrap();
        let good = KvmCheck { of: subject.clone(), problem: None, failures: 0 };
        instances_dir(state.path()).put(FILE, &good).unwrap();
        let problem = || known(state.path(), &subject).unwrap().problem;
        failed(state.path(), &runner, "stopped").unwrap();
        assert_eq!(problem(), None);
        failed(state.path(), &runner, "stopped").unwrap();
        assert_eq!(problem().unwrap(), "KVM failed on 2 virtual machines: stopped");
    }

    #[test]
    fn a_verdict_of_another_boot_or_user_is_none() {
        let state = tempfile::tempdir().unwrap();
        let runner = Runner { qemu: PathBuf::from("/proc/self/exe"), identity: None };
        let subject = Subject::now(&runner).unwrap();
        make_private(&instances_dir(state.path()).path).unwrap();
        let verdict = KvmCheck { of: subject.clone(), problem: None, failures: 0 };
        instances_dir(state.path()).put(FILE, &verdict).unwrap();
        assert_eq!(known(state.path(), &subject), Some(verdict));
        let rebooted = Subject { boot: "another".to_owned(), ..subject.clone() };
        let other = Subject { uid: subject.uid + 1, ..subject };
        assert_eq!((known(state.path(), &rebooted), known(state.path(), &other)), (None, None));
    }
}
