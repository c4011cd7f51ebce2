//! Boots a machine once and freezes it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fs_err as fs;
use greenroom_system::remove;
use serde_json::{Value, json};

use super::pull::Pulled;
use super::{DISK, DONE, Done, PULLED, RAM, Recipe, STATE, Template, memory};
use crate::halt::halt_point;
use crate::qemu::process::agent::Agent;
use crate::qemu::process::command::Sharing;
use crate::qemu::process::console::Console;
use crate::qemu::process::machine::{BootError, Machine};
use crate::qemu::process::rig::{MemoryFile, Rig, new_layer};
use crate::qemu::settings::Network;
use crate::supervisor::note;

/// How long QEMU may take to write the state of the devices, which is less than a megabyte.
const FREEZE: Duration = Duration::from_secs(30);

/// A template's memory, which no process uses any more.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) ram: OwnedFd,
    pub(super) done: Done,
}

/// Builds a template, with images if they have been pulled.
pub(super) async fn build(
    template: &Template,
    recipe: &Recipe,
    pulled: Option<Pulled>,
) -> Result<Built, BootError> {
    empty(template)?;
    if pulled.is_some() {
        fs::rename(template.dir.file(PULLED), template.disk())?;
    }
    emptied_on_error(template, boot_and_freeze(template, recipe, pulled).await)
}

/// Removes everything that takes room, and is of use only if it is complete.
fn empty(template: &Template) -> io::Result<()> {
    // First what says that it is complete.
    [DONE, DISK, STATE, RAM].into_iter().try_for_each(|file| remove::tree(&template.dir.file(file)))
}

/// The memory of a machine may be what has filled the disk.
fn emptied_on_error<T, E>(template: &Template, built: Result<T, E>) -> Result<T, E> {
    built.inspect_err(|_| {
        if let Err(error) = empty(template) {
            note(&format!("cannot remove the incomplete template: {error}"));
        }
    })
}

async fn boot_and_freeze(
    template: &Template,
    recipe: &Recipe,
    pulled: Option<Pulled>,
) -> Result<Built, BootError> {
    let begun = Instant::now();
    let image = recipe.open_image()?;
    let console = Console::open(&template.dir)?;
    let ram = memory::new(recipe.hardware.memory)?;
    let guest_ram = MemoryFile { file: ram.try_clone()?, sharing: Sharing::Shared };
    let layer = match &pulled {
        Some(_) => fs::OpenOptions::new().read(true).write(true).open(template.disk())?.into_file().into(),
        None => new_layer(&template.disk(), recipe.disk)?,
    };
    halt_point("template.disk-made");
    let rig = Rig {
        name: "template",
        hardware: &recipe.hardware,
        network: &Network::Isolated,
        image: &image,
        program: &recipe.program,
        store: None,
    };
    let (command, agent) = rig.assemble(Some(guest_ram), vec![layer], &console)?;
    let mut machine = Machine::start(&recipe.runner, command, &console).await?;
    halt_point("template.started");
    let mut agent = Agent::new(agent);
    let talk = async {
        agent.hello().await?;
        agent.warm_up().await
    };
    machine.within(recipe.limit, "the guest did not warm up", talk).await?;
    halt_point("template.warm");
    freeze(&mut machine, template).await?;
    halt_point("template.frozen");
    drop(agent);
    let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let done = Pulled::done(pulled, ms)?;
    complete(template, &ram, &done)?;
    note(&format!("template built in {ms} ms"));
    Ok(Built { ram, done })
}

/// Writes the memory, and then that nothing is missing.
fn complete(template: &Template, ram: &OwnedFd, done: &Done) -> io::Result<()> {
    memory::copy(&mut File::from(ram.try_clone()?), fs::File::create(template.dir.file(RAM))?.file_mut())?;
    halt_point("template.copied");
    // CRASH: before this line the template is incomplete, and is built again.
    template.dir.put(DONE, done)?;
    halt_point("template.done");
    Ok(())
}

/// Writes the state of the guest's devices, which stops it, and has QEMU exit in good order: the disk has to be
/// complete. A guest that was stopped before would not continue by itself when it is resumed.
async fn freeze(machine: &mut Machine, template: &Template) -> io::Result<()> {
    let qmp = &mut machine.qmp;
    qmp.execute("migrate-set-capabilities", capabilities()).await?;
    let state = fs::File::create(template.state())?;
    qmp.hand_over("state", state.file().as_fd()).await?;
    qmp.execute("migrate", json!({ "uri": "fd:state" })).await?;
    let written = async {
        loop {
            let event = qmp.event().await?;
            match (event.name.as_str(), event.data["status"].as_str()) {
                ("MIGRATION", Some("completed")) => return Ok(()),
                ("MIGRATION", Some("failed" | "cancelled")) => {
                    return Err(io::Error::other("QEMU could not write the state of the virtual machine"));
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(FREEZE, written).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    halt_point("template.state-written");
    machine.quit().await
}

/// Memory that is a shared file stays in place; an event reports the end of the writing.
pub(in crate::qemu::process) fn capabilities() -> Value {
    let on = |name: &str| json!({ "capability": name, "state": true });
    json!({ "capabilities": [on("x-ignore-shared"), on("events")] })
}

#[cfg(test)]
mod failing_writes;
