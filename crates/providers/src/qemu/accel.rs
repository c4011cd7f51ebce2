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

use super::process::exec::{PassedDescriptor, QemuProgram};
use super::settings::Accel;
use crate::process::boot_id;
use crate::supervised::instance_dir::{InstanceDir, make_private};

/// The time limit for the firmware. A working KVM needs some milliseconds in addition to the start of QEMU.
const TEST_TIMEOUT: Duration = Duration::from_secs(1);

/// After failing on this number of machines, KVM is not used again in this boot.
const FAILURES: u32 = 2;

const DEVICE: &str = "/dev/kvm";

/// The accelerator that runs a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Accelerator {
    Kvm,
    Tcg,
}

impl Accelerator {
    /// The name of the accelerator in QEMU's options.
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
    /// The configuration for which the result is valid.
    of: CheckSubject,
    /// The problem with KVM, such as `/dev/kvm is missing`; `None`: KVM works.
    pub(super) problem: Option<String>,
    /// Machines on which KVM has failed since.
    #[serde(default)]
    failures: u32,
}

/// The configuration that a check of KVM is valid for. A change of any part makes it invalid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CheckSubject {
    boot: String,
    qemu: PathBuf,
    /// Inode, size and time of change of QEMU's program.
    program: (u64, u64, i64),
    /// Device number, mode and owner's group of /dev/kvm; `None`: there is none.
    device: Option<(u64, u32, u32)>,
    uid: u32,
}

impl CheckSubject {
    fn now(runner: &QemuProgram) -> io::Result<Self> {
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
fn known(state_dir: &Path, subject: &CheckSubject) -> Option<KvmCheck> {
    // A torn or older file counts as none.
    let verdict: KvmCheck = instances_dir(state_dir).read(FILE).ok().flatten()?;
    (verdict.of == *subject).then_some(verdict)
}

/// The stored result of a check of KVM, or a new one; true: it is new.
pub(super) async fn examine(state_dir: &Path, runner: &QemuProgram) -> io::Result<(KvmCheck, bool)> {
    let subject = CheckSubject::now(runner)?;
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
pub(super) fn failed(state_dir: &Path, runner: &QemuProgram, how: &str) -> io::Result<()> {
    let subject = CheckSubject::now(runner)?;
    let Some(mut verdict) = known(state_dir, &subject) else { return Ok(()) };
    verdict.failures += 1;
    if verdict.failures >= FAILURES {
        verdict.problem = Some(format!("KVM failed on {} virtual machines: {how}", verdict.failures));
    }
    instances_dir(state_dir).put(FILE, &verdict)
}

/// The engine of a machine, and the message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AcceleratorChoice {
    pub(super) engine: Accelerator,
    /// The reason machines are emulated, if a test has found that just now.
    pub(super) news: Option<String>,
}

/// The reason [`choose`] finds no accelerator for a machine.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccelError {
    #[error("KVM cannot be used, but `accel` is \"kvm\": {problem}")]
    KvmRequired { problem: String },
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) async fn choose(
    requested: Accel,
    state_dir: &Path,
    runner: &QemuProgram,
) -> Result<AcceleratorChoice, AccelError> {
    if requested == Accel::Tcg {
        return Ok(AcceleratorChoice { engine: Accelerator::Tcg, news: None });
    }
    let (verdict, fresh) = examine(state_dir, runner).await?;
    if fresh {
        make_private(&instances_dir(state_dir).path)?;
        instances_dir(state_dir).put(FILE, &verdict)?;
    }
    match (verdict.problem, requested) {
        (None, _) => Ok(AcceleratorChoice { engine: Accelerator::Kvm, news: None }),
        (Some(problem), Accel::Kvm) => Err(AccelError::KvmRequired { problem }),
        (Some(problem), _) => {
            let news =
                fresh.then(|| format!("KVM cannot be used, so virtual machines are emulated: {problem}"));
            Ok(AcceleratorChoice { engine: Accelerator::Tcg, news })
        }
    }
}

/// The problem with KVM; `None`: it works.
async fn try_kvm(runner: &QemuProgram) -> io::Result<Option<String>> {
    run_firmware(runner, &["-accel", "kvm", "-cpu", "host"]).await
}

/// Runs the firmware. `None`: it gave the right answer in time.
async fn run_firmware(runner: &QemuProgram, accel: &[&str]) -> io::Result<Option<String>> {
    let rom = rustix::fs::memfd_create("greenroom-probe", MemfdFlags::CLOEXEC)?;
    let mut rom = std::fs::File::from(rom);
    rom.write_all(&firmware())?;
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
        EXIT_DEVICE,
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.extend(accel.iter().map(|argument| (*argument).to_owned()));
    let (bios, passed) = PassedDescriptor::path(rom.into());
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
    if status.code() == Some(EXIT_STATUS) {
        return None;
    }
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
    Some(format!("QEMU exited with {status}: {}", greenroom_core::text::clean_line(last.as_bytes(), 200)))
}

/// QEMU requires a firmware of whole 64 KiB; a processor starts at its end.
const FIRMWARE_SIZE: usize = 0x1_0000;
const RESET: usize = 0xfff0;

/// QEMU's exit status after the answer: the byte that was written, doubled, plus one.
pub(super) const EXIT_STATUS: i32 = (0x2a << 1) | 1;

/// The device that takes the answer.
pub(super) const EXIT_DEVICE: &str = "isa-debug-exit,iobase=0xf4,iosize=1";

/// `ljmp $0xf000, $0`: to the code, which also appears below 1 MiB.
const JUMP: [u8; 5] = [0xea, 0x00, 0x00, 0x00, 0xf0];

/// 16 bit: loads the descriptor table, sets PE, jumps on.
#[rustfmt::skip]
const REAL_MODE: &[u8] = &[
    0xfa, 0x2e, 0x66, 0x0f, 0x01, 0x16, 0xc0, 0x00, 0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0,
    0x66, 0xea, 0x18, 0x00, 0x0f, 0x00, 0x08, 0x00,
];

/// 32 bit: page tables for the first 2 MiB at 0x1000, then PAE, LME and PG.
#[rustfmt::skip]
const PROTECTED_MODE: &[u8] = &[
    0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8, 0x8e, 0xc0, 0xbf, 0x00, 0x10, 0x00, 0x00, 0x31, 0xc0, 0xb9,
    0x00, 0x10, 0x00, 0x00, 0xfc, 0xf3, 0xab, 0x66, 0xc7, 0x05, 0x00, 0x10, 0x00, 0x00, 0x03, 0x20,
    0x66, 0xc7, 0x05, 0x00, 0x20, 0x00, 0x00, 0x03, 0x30, 0xc6, 0x05, 0x00, 0x30, 0x00, 0x00, 0x83,
    0xb8, 0x00, 0x10, 0x00, 0x00, 0x0f, 0x22, 0xd8, 0x0f, 0x20, 0xe0, 0x0c, 0x20, 0x0f, 0x22, 0xe0,
    0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, 0x80, 0xcc, 0x01, 0x0f, 0x30, 0x0f, 0x20, 0xc0, 0x0d,
    0x00, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, 0xea, 0x76, 0x00, 0x0f, 0x00, 0x18, 0x00,
];

/// 64 bit: a loop of two million rounds, `lock cmpxchg16b` of 0 by 1 at 0x4000, its result plus 0x29 to port 0xf4. If
/// the exchange fails, a halt.
#[rustfmt::skip]
const LONG_MODE: &[u8] = &[
    0xb9, 0x80, 0x84, 0x1e, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0x31, 0xc0, 0x31, 0xd2, 0xbb, 0x01, 0x00,
    0x00, 0x00, 0xbf, 0x00, 0x40, 0x00, 0x00, 0xf0, 0x48, 0x0f, 0xc7, 0x0f, 0x75, 0x09, 0x8b, 0x07,
    0x04, 0x29, 0x66, 0xba, 0xf4, 0x00, 0xee, 0xf4, 0xeb, 0xfd,
];

/// The null descriptor, 32-bit code, data, 64-bit code; then their address and size.
#[rustfmt::skip]
const DESCRIPTORS: &[u8] = &[
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xcf, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x93, 0xcf, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xaf, 0x00,
    0x1f, 0x00, 0xa0, 0x00, 0x0f, 0x00,
];

/// The firmware as QEMU's `-bios` reads it.
pub(super) fn firmware() -> Vec<u8> {
    let mut image = [REAL_MODE, PROTECTED_MODE, LONG_MODE, DESCRIPTORS].concat();
    image.resize(FIRMWARE_SIZE, 0);
    image[RESET..RESET + JUMP.len()].copy_from_slice(&JUMP);
    image
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::skipped::skipped;

    use super::*;

    #[test]
    fn kvm_that_gives_up_on_two_machines_is_not_used_again() {
        let state = tempfile::tempdir().unwrap();
        let runner = QemuProgram { qemu: PathBuf::from("/proc/self/exe"), identity: None };
        let subject = CheckSubject::now(&runner).unwrap();
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
        let runner = QemuProgram { qemu: PathBuf::from("/proc/self/exe"), identity: None };
        let subject = CheckSubject::now(&runner).unwrap();
        make_private(&instances_dir(state.path()).path).unwrap();
        let verdict = KvmCheck { of: subject.clone(), problem: None, failures: 0 };
        instances_dir(state.path()).put(FILE, &verdict).unwrap();
        assert_eq!(known(state.path(), &subject), Some(verdict));
        let rebooted = CheckSubject { boot: "another".to_owned(), ..subject.clone() };
        let other = CheckSubject { uid: subject.uid + 1, ..subject };
        assert_eq!((known(state.path(), &rebooted), known(state.path(), &other)), (None, None));
    }

    #[test]
    fn a_processor_that_works_gives_the_answer() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("firmware");
        fs_err::write(&path, firmware()).unwrap();
        let mut qemu = std::process::Command::new("qemu-system-x86_64");
        qemu.args(["-M", "q35", "-nodefaults", "-no-user-config", "-display", "none", "-m", "16"]);
        qemu.args(["-accel", "tcg", "-cpu", "max", "-device", EXIT_DEVICE, "-bios"]).arg(&path);
        let Ok(status) = qemu.status() else { return skipped("qemu-system-x86_64 is missing") };
        assert_eq!(status.code(), Some(EXIT_STATUS));
    }
}
