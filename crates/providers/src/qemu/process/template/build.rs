//! Builds a template: boots a machine once and freezes it, and pulls images of containers into the disk of the next one.
//!
//! The guest that pulls is not the one that is frozen. It gets no identity, and no job ever runs in it. Only its disk is
//! kept.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fs_err as fs;
use greenroom_core::container::report::{NotPulled, pulled};
use greenroom_core::images::FoundImage;
use greenroom_system::remove;
use serde_json::{Value, json};

use super::{DISK, DONE, PULLED, Pulls, RAM, Recipe, STATE, Template, TemplateRecord, memory};
use crate::qemu::accel::Accelerator;
use crate::qemu::egress::{self, Guard};
use crate::qemu::process::agent::Agent;
use crate::qemu::process::boot::unguarded;
use crate::qemu::process::command::{MemoryFile, Rig, Sharing};
use crate::qemu::process::machine::{BootError, Console, Machine};
use crate::qemu::process::qcow2::new_layer;
use crate::qemu::settings::{Accel, Network};
use crate::supervised::launch::random;
use crate::supervised::supervisor::{failpoint, note};

/// The time limit for QEMU to write the state of the devices, which is less than a megabyte.
const FREEZE: Duration = Duration::from_secs(30);

/// A template's memory, which no process uses any more.
#[derive(Debug)]
pub(super) struct FrozenMachine {
    pub(super) ram: OwnedFd,
    pub(super) done: TemplateRecord,
}

/// Builds a template, with images if they have been pulled.
pub(super) async fn build(
    template: &Template,
    recipe: &Recipe,
    pulled: Option<PulledImages>,
) -> Result<FrozenMachine, BootError> {
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
pub(in crate::qemu::process) fn emptied_on_error<T, E>(
    template: &Template,
    built: Result<T, E>,
) -> Result<T, E> {
    built.inspect_err(|_| {
        if let Err(error) = empty(template) {
            note(&format!("cannot remove the incomplete template: {error}"));
        }
    })
}

async fn boot_and_freeze(
    template: &Template,
    recipe: &Recipe,
    pulled: Option<PulledImages>,
) -> Result<FrozenMachine, BootError> {
    let begun = Instant::now();
    let image = recipe.open_image()?;
    let console = Console::open(&template.dir)?;
    let ram = memory::new_memory(recipe.hardware.memory)?;
    let guest_ram = MemoryFile { file: ram.try_clone()?, sharing: Sharing::Shared };
    let layer = match &pulled {
        Some(_) => fs::OpenOptions::new().read(true).write(true).open(template.disk())?.into_file().into(),
        None => new_layer(&template.disk(), recipe.disk)?,
    };
    failpoint("template.disk-made");
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
    failpoint("template.started");
    let mut agent = Agent::new(agent);
    let talk = async {
        agent.hello().await?;
        agent.warm_up().await
    };
    machine.within(recipe.limit, "the guest did not warm up", talk).await?;
    failpoint("template.warm");
    freeze(&mut machine, template).await?;
    failpoint("template.frozen");
    drop(agent);
    let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let done = PulledImages::done(pulled, ms)?;
    complete(template, &ram, &done)?;
    note(&format!("template built in {ms} ms"));
    Ok(FrozenMachine { ram, done })
}

/// Writes the memory, and then that nothing is missing.
pub(in crate::qemu::process) fn complete(
    template: &Template,
    ram: &OwnedFd,
    done: &TemplateRecord,
) -> io::Result<()> {
    memory::copy_memory(
        &mut File::from(ram.try_clone()?),
        fs::File::create(template.dir.file(RAM))?.file_mut(),
    )?;
    failpoint("template.copied");
    // CRASH: before this line the template is incomplete, and is built again.
    template.dir.put(DONE, done)?;
    failpoint("template.done");
    Ok(())
}

/// Writes the state of the guest's devices, which stops it, and has QEMU exit in good order: the disk has to be
/// complete. A guest that was stopped before would not continue by itself when it is resumed.
async fn freeze(machine: &mut Machine, template: &Template) -> Result<(), BootError> {
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
                    return Err(BootError::StateNotWritten);
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(FREEZE, written).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    failpoint("template.state-written");
    machine.quit().await
}

/// Memory that is a shared file stays in place; an event reports the end of the writing.
pub(in crate::qemu::process) fn capabilities() -> Value {
    let on = |name: &str| json!({ "capability": name, "state": true });
    json!({ "capabilities": [on("x-ignore-shared"), on("events")] })
}

/// The time for which a template keeps its images before they are pulled again.
const FRESH: Duration = Duration::from_hours(24);

/// Time after which images are pulled again if some of them may come soon.
const RETRY: Duration = Duration::from_hours(1);

/// The images that a guest has pulled, and the problem of each of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PulledImages {
    pub(super) images: Vec<FoundImage>,
    pub(super) without: Vec<(String, NotPulled)>,
}

impl PulledImages {
    /// The record of a template that has just been built.
    pub(super) fn done(pulled: Option<Self>, ms: u64) -> std::io::Result<TemplateRecord> {
        let done = TemplateRecord { ms, token: random()?, ..TemplateRecord::default() };
        Ok(match pulled {
            Some(pulled) => TemplateRecord { images: pulled.images.clone(), ..pulled.noted(done) },
            None => done,
        })
    }

    /// The record of a template whose images have been compared with their registries.
    pub(super) fn noted(&self, done: TemplateRecord) -> TemplateRecord {
        let may_pass = self.without.iter().any(|(_, problem)| problem.may_pass);
        let due = Some(in_ms(if may_pass { RETRY } else { FRESH }));
        let without =
            self.without.iter().map(|(image, problem)| format!("without image `{image}`: {}", problem.why));
        TemplateRecord { due, without: without.collect(), ..done }
    }

    /// True if a new template would have other images. One never loses an image because its registry fails.
    pub(super) fn replaces(&self, present: &TemplateRecord) -> bool {
        let has = |known: &FoundImage| self.images.iter().any(|image| image.name == known.name);
        self.images != present.images && present.images.iter().all(has)
    }
}

impl TemplateRecord {
    /// The record of a template none of whose images could be pulled.
    pub(super) fn postponed(self, why: &str) -> Self {
        Self { due: Some(in_ms(RETRY)), without: vec![format!("without its images: {why}")], ..self }
    }

    /// Returns the time until the template's images are pulled again.
    pub(super) fn is_due_in(&self) -> Duration {
        let left = self.due.map_or(0, |due| due.saturating_sub(in_ms(Duration::ZERO)));
        // A clock that was wrong then must not put it off for long.
        Duration::from_millis(u64::try_from(left).unwrap_or(0)).min(FRESH)
    }
}

/// The time of day after so long, in milliseconds since 1970.
fn in_ms(after: Duration) -> i64 {
    let then = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_add(after);
    i64::try_from(then.as_millis()).unwrap_or(i64::MAX)
}

/// Pulls all images; one that does not come fails nothing else.
pub(super) async fn pull(
    template: &Template,
    recipe: &Recipe,
    pulls: &Pulls,
) -> Result<PulledImages, BootError> {
    let guard = match pulls.network.internet() {
        Some(internet) => Some(Guard::raise(internet).await?),
        None => None,
    };
    let mut machine = None;
    let pulled = tokio::select! {
        pulled = boot_and_pull(template, recipe, pulls, guard.as_ref(), &mut machine) => pulled,
        ending = unguarded(guard.as_ref()) => Err(BootError::Ended(ending)),
    };
    if let Some(machine) = &mut machine {
        machine.kill().await;
    }
    // Only now: as long as QEMU lives, its rules stay.
    if guard.is_some() {
        drop(guard);
        egress::sweep().await;
    }
    pulled
}

/// The disk is complete when it returns.
async fn boot_and_pull(
    template: &Template,
    recipe: &Recipe,
    pulls: &Pulls,
    guard: Option<&Guard>,
    slot: &mut Option<Machine>,
) -> Result<PulledImages, BootError> {
    let image = recipe.open_image()?;
    let console = Console::open(&template.dir)?;
    let layer = new_layer(&template.dir.file(PULLED), recipe.disk)?;
    let rig = Rig {
        name: "template-images",
        hardware: &recipe.hardware,
        network: &pulls.network,
        image: &image,
        program: &recipe.program,
        store: None,
    };
    let (command, agent) = rig.assemble(None, vec![layer], &console)?;
    let accel = if recipe.hardware.engine == Accelerator::Tcg { Accel::Tcg } else { Accel::Auto };
    let own = guard.map(|guard| recipe.runner.under(guard.uid(), accel));
    let machine =
        slot.insert(Machine::start(own.as_ref().unwrap_or(&recipe.runner), command, &console).await?);
    let mut agent = Agent::new(agent);
    machine.within(recipe.limit, "the guest that pulls images did not come up", agent.hello()).await?;
    let mut all = PulledImages::default();
    for one in &pulls.images {
        let talk = agent.run(&one.script, pulls.proxy.as_deref());
        let lines = machine.within(one.within, "the guest did not end a pull", talk).await?;
        match pulled(&one.image, lines.iter().map(String::as_str)) {
            Ok(found) => all.images.push(found),
            Err(problem) => {
                note(&format!("no image `{}` in the template: {}", one.image, problem.why));
                all.without.push((one.image.to_string(), problem));
            }
        }
    }
    machine.quit().await?;
    Ok(all)
}

/// Removes the disk of a guest that pulled.
pub(super) fn discard_pulled(template: &Template) {
    if let Err(error) = remove::tree(&template.dir.file(PULLED)) {
        note(&format!("cannot remove the disk of a guest that pulled images: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, digest: &str) -> FoundImage {
        FoundImage { name: name.into(), digest: Some(digest.into()), bytes: 7 }
    }

    fn without(may_pass: bool) -> (String, NotPulled) {
        ("r.corp/b:1".to_owned(), NotPulled { why: "denied".to_owned(), may_pass })
    }

    #[test]
    fn a_template_is_replaced_by_one_that_loses_nothing() {
        let present = |images: Vec<FoundImage>| TemplateRecord { images, ..TemplateRecord::default() };
        let both = || vec![image("a", "1"), image("b", "1")];
        for (new, present, replaces) in [
            (both(), present(Vec::new()), true),
            (both(), present(both()), false),
            (vec![image("a", "2"), image("b", "1")], present(both()), true),
            (vec![image("a", "2")], present(both()), false),
            (Vec::new(), present(Vec::new()), false),
        ] {
            let new = PulledImages { images: new, without: Vec::new() };
            assert_eq!(new.replaces(&present), replaces, "{new:?} {present:?}");
        }
    }

    #[test]
    fn what_may_come_soon_is_pulled_again_sooner() {
        let due = |without| {
            let pulled = PulledImages { images: vec![image("a", "1")], without };
            PulledImages::done(Some(pulled), 7).unwrap()
        };
        let near = |done: &TemplateRecord, expected: Duration| {
            let left = done.is_due_in();
            left <= expected && left + Duration::from_mins(5) > expected
        };
        let denied = due(vec![without(false)]);
        assert!(near(&due(Vec::new()), FRESH) && near(&denied, FRESH));
        assert_eq!(denied.without, ["without image `r.corp/b:1`: denied"]);
        assert!(near(&due(vec![without(false), without(true)]), RETRY));
        let plain = PulledImages::done(None, 7).unwrap();
        assert_eq!((plain.is_due_in(), plain.images.len()), (Duration::ZERO, 0));
        assert!(near(&plain.clone().postponed("no engine"), RETRY));
        assert_ne!(plain.token, PulledImages::done(None, 7).unwrap().token);
        let wrong = TemplateRecord { due: Some(i64::MAX), ..plain };
        assert_eq!(wrong.is_due_in(), FRESH);
    }
}
