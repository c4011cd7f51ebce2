//! A machine's supervisor: starts QEMU, talks to it and to the guest, and exits with it.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use super::boot::{self, MachineSite};
use super::machine::{Console, Machine};
use crate::qemu::egress::{self, Guard};
use crate::qemu::spec::{Ended, Spec};
use crate::supervised::instance_dir::InstanceDir;
use crate::supervised::supervisor::{self, ExitReason, Seized, Signals, failpoint, note};

/// `instance qemu supervise --dir DIR`: supervises or removes the machine in a directory; returns when that is done.
pub(super) fn supervise(path: &Path) -> ExitCode {
    let begun = Instant::now();
    supervisor::detach();
    failpoint("supervisor.begun");
    let dir = InstanceDir::at(path);
    match begin(&dir) {
        Ok(Some(ready)) => ready.run(&dir, begun),
        Ok(None) => {
            supervisor::answer();
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&format!("cannot supervise: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Forbids core dumps, and other processes' access to this process's memory: it holds a host key.
pub(super) fn restrain() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The state of a process that has seized its machine.
struct SeizedMachine {
    runtime: Runtime,
    signals: Signals,
    seized: Seized,
    spec: Spec,
}

/// Takes the machine of a directory; `None`: this process has nothing to do.
fn begin(dir: &InstanceDir) -> io::Result<Option<SeizedMachine>> {
    restrain()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _inside = runtime.enter();
        Signals::new()?
    };
    let Some(seized) = supervisor::seize(dir)? else { return Ok(None) };
    let Some(spec) = dir.read("spec.json")? else { return Ok(None) };
    Ok(Some(SeizedMachine { runtime, signals, seized, spec }))
}

impl SeizedMachine {
    fn run(self, dir: &InstanceDir, begun: Instant) -> ExitCode {
        let Self { runtime, mut signals, seized: Seized { lock, before: _, removing }, spec } = self;
        supervisor::answer();
        failpoint("supervisor.answered");
        let end = if removing {
            // Those that a killed supervisor left.
            LocalSet::new().block_on(&runtime, egress::sweep());
            ExitReason::Terminated
        } else {
            let life = live(dir, spec, begun, &lock, &mut signals);
            LocalSet::new().block_on(&runtime, life)
        };
        note(&format!("stopping: {end}"));
        let last = match &end {
            ExitReason::Terminated => supervisor::remove_dir(dir),
            ExitReason::Died(why) => dir.put("ended.json", &Ended { why: why.clone() }),
            ExitReason::Orphaned => Ok(()),
        };
        drop(lock);
        match last {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                note(&format!("cannot clean up the virtual machine's directory: {error}"));
                ExitCode::FAILURE
            }
        }
    }
}

/// Runs a machine from its boot to its end. QEMU has exited when it returns.
async fn live(
    dir: &InstanceDir,
    spec: Spec,
    begun: Instant,
    lock: &fs_err::File,
    signals: &mut Signals,
) -> ExitReason {
    let has_rules = spec.settings.network.internet().is_some();
    let mut machine = None;
    let mut guard = None;
    let end = tokio::select! {
        end = signals.end(dir, lock, || ()) => end,
        end = boot_and_watch(dir, spec, begun, &mut machine, &mut guard) => end,
    };
    if let Some(machine) = &mut machine {
        machine.kill().await;
    }
    // Only now: as long as QEMU lives, its rules stay.
    drop(guard);
    if has_rules {
        egress::sweep().await;
    }
    end
}

async fn boot_and_watch(
    dir: &InstanceDir,
    spec: Spec,
    begun: Instant,
    machine: &mut Option<Machine>,
    guard: &mut Option<Guard>,
) -> ExitReason {
    let console = match Console::open(dir) {
        Ok(console) => console,
        Err(error) => return ExitReason::Died(format!("failed to boot: {error}")),
    };
    let site = MachineSite { dir: dir.clone(), spec, console, begun };
    match boot::boot_and_watch(&site, machine, guard).await {
        Ok(ending) => ExitReason::Died(ending.to_string()),
        Err(problem) => ExitReason::Died(format!("failed to boot: {problem}")),
    }
}
