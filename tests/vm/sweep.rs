//! Kill -9 at every step of a launch: of the process that takes it, and of those that stand behind it.
//!
//! The steps are the places that `failpoint` names. A step stops one process there, once; then somebody is killed, the
//! stopped one goes on if it can, and everything is judged: what lives is listed, the same token makes no second
//! machine, what is terminated leaves nothing, and the next machine comes up.

#![cfg(test)]
#![cfg(feature = "crash-points")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, SystemTime};

use greenroom_core::inventory::Status;
use greenroom_harness::here::kill;
use greenroom_harness::processes::{self, Kind, is_gone, is_stopped};
use greenroom_harness::provider::{Fixture, gone, leave_nothing, listed, request, running, status, until};
use greenroom_ports::provider::Provider;
use rustix::process::Signal;

use crate::fixture::VmFixture;
use crate::kills::launcher;

/// The time that an emulated machine may take for any one step.
const PATIENCE: Duration = Duration::from_mins(2);

/// Directories of launches that were cut off are swept away at this age at the latest.
const ABANDONED: Duration = Duration::from_hours(1);

/// The process that is killed while a process is held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// The process that is held up.
    Itself,
    Launcher,
    Supervisor,
    Holder,
    Qemu,
}

use Victim::{Holder, Itself, Launcher, Qemu, Supervisor};

type Steps = [(&'static str, &'static [Victim])];

/// The steps of a launch if there is no template yet.
const TO_A_TEMPLATE: &Steps = &[
    ("template.prepared", &[Itself]),
    ("holder.seized", &[Itself, Supervisor]),
    ("holder.listens", &[Itself]),
    ("template.disk-made", &[Itself]),
    ("template.started", &[Itself, Qemu, Supervisor]),
    ("template.warm", &[Itself, Qemu]),
    ("template.state-written", &[Itself, Qemu]),
    ("template.frozen", &[Itself, Supervisor]),
    ("template.copied", &[Itself]),
    ("template.done", &[Itself]),
];

/// The steps of a launch if there is a template.
const TO_A_CLONE: &Steps = &[
    ("launch.locked", &[Itself]),
    ("launch.filled", &[Itself]),
    ("launch.placed", &[Itself]),
    ("launch.started", &[Itself, Supervisor]),
    ("supervisor.begun", &[Itself, Launcher]),
    ("supervisor.seized", &[Itself, Launcher]),
    ("supervisor.recorded", &[Itself, Launcher]),
    ("supervisor.answered", &[Itself]),
    ("template.asked", &[Itself, Holder]),
    ("clone.lent", &[Itself, Holder]),
    ("clone.disk-made", &[Itself]),
    ("clone.started", &[Itself, Qemu, Holder]),
    ("clone.resumes", &[Itself, Qemu]),
    ("boot.up", &[Itself, Qemu]),
    ("boot.told", &[Itself, Qemu]),
    ("boot.announced", &[Itself, Qemu]),
];

/// The steps of a machine that runs and is terminated.
const TO_THE_END: &Steps =
    &[("removal.emptied", &[Itself]), ("removal.unlisted", &[Itself]), ("removal.unlocked", &[Itself])];

/// A state directory with launches that are numbered.
struct Scene {
    fixture: VmFixture,
    number: u32,
}

impl Scene {
    /// A scene in an own state directory. `kept`: how long a template's holder stays without use.
    fn new(kept: &str) -> Self {
        Self { fixture: VmFixture::with_own_images(&format!("template_retention = \"{kept}\"")), number: 0 }
    }

    fn provider(&self) -> std::rc::Rc<dyn Provider> {
        self.fixture.build("")
    }

    /// The process of a kind; none if there is none any more.
    fn find(&self, kind: Kind) -> Option<u32> {
        let all = processes::of(self.fixture.state_dir());
        let of_kind: Vec<_> = all.iter().filter(|process| process.kind == kind).collect();
        assert!(of_kind.len() <= 1, "{of_kind:?}");
        of_kind.first().map(|process| process.pid.unsigned_abs())
    }

    /// Launches a machine until a process is held up at a step, and kills.
    async fn cut_off(&mut self, step: &str, victim: Victim) {
        self.number += 1;
        let order = self.fixture.state_dir().join(step);
        std::fs::write(&order, "").unwrap();
        let mut launching =
            launcher(&self.fixture, self.number).env("GREENROOM_HALT", &order).spawn().unwrap();
        let (id, provider) = (request(&self.fixture, self.number).instance, self.provider());
        let what = format!("a process at {step}");
        let held_up = until(&what, PATIENCE, async || {
            if step.starts_with("removal.") && provider.endpoint(&id).await.is_ok() {
                provider.terminate(&id).await.unwrap();
            }
            self.held_up(&launching)
        });
        let held_up = held_up.await;
        assert!(!order.exists(), "it is held up at {step}");
        let killed = match victim {
            Itself => Some(held_up),
            Launcher => Some(launching.id()),
            Supervisor => self.find(Kind::Instance),
            Holder => self.find(Kind::Holder),
            Qemu => self.find(Kind::Qemu),
        };
        let killed = killed.unwrap_or_else(|| panic!("{step}: there is no {victim:?} to kill"));
        kill(killed, Signal::KILL);
        if killed != held_up {
            kill(held_up, Signal::CONT);
        }
        // Whatever it says: it may have been killed, or told that its instance's process was.
        launching.wait().unwrap();
        // One that is still dying would be taken for one that lives on unlisted.
        until("the killed one is gone", PATIENCE, async || is_gone(killed).then_some(())).await;
    }

    fn held_up(&self, launching: &Child) -> Option<u32> {
        let all =
            processes::of(self.fixture.state_dir()).into_iter().map(|process| process.pid.unsigned_abs());
        all.chain([launching.id()]).find(|pid| is_stopped(*pid))
    }

    /// Plays a keeper's next pass, and checks its result.
    async fn judge(&mut self, how: &str) {
        eprintln!("{how}");
        let (pool, provider) = (self.fixture.pool(), self.provider());
        let instances = listed(&*provider, &pool).await;
        let seen: BTreeSet<String> = instances.iter().map(|one| one.id.to_string()).collect();
        let living = self.fixture.living();
        assert!(living.is_subset(&seen), "{how}: {living:?} live, {seen:?} are listed");
        let cut_off = request(&self.fixture, self.number);
        if !how.starts_with("removal.") {
            provider.launch(&cut_off).await.unwrap();
            until(how, PATIENCE, async || {
                let status = status(&*provider, &pool, &cut_off.instance).await;
                assert!(self.fixture.living().len() <= 1, "{how}: a second machine");
                matches!(status, Some(Status::Running | Status::Stopping)).then_some(())
            })
            .await;
        }
        gone(&self.fixture, &*provider, &cut_off.instance).await;
        self.age_what_was_cut_off();
        self.number += 1;
        let next = request(&self.fixture, self.number);
        provider.launch(&next).await.unwrap();
        running(&self.fixture, &*provider, &next.instance).await;
        gone(&self.fixture, &*provider, &next.instance).await;
        let left = || {
            let all = processes::of(self.fixture.state_dir()).into_iter();
            all.filter(|process| process.kind != Kind::Holder).map(|process| process.arguments).next()
        };
        until("nobody but a holder lives", PATIENCE, async || left().is_none().then_some(())).await;
        assert_eq!(names(&self.fixture.pool_dir()), [".lock"], "{how}");
    }

    fn age_what_was_cut_off(&self) {
        for name in names(&self.fixture.pool_dir()).iter().filter(|name| name.starts_with(".new-")) {
            let dir = std::fs::File::open(self.fixture.pool_dir().join(name)).unwrap();
            dir.set_modified(SystemTime::now() - ABANDONED).unwrap();
        }
    }

    fn templates(&self) -> PathBuf {
        self.fixture.state_dir().join("images/.templates")
    }

    /// Takes the templates away. Their holders go, at the latest when they see it.
    async fn without_templates(&self) {
        assert_eq!(names(&self.templates()).len(), 1, "one template, and nothing beside it");
        std::fs::remove_dir_all(self.templates()).unwrap();
        let left = || processes::of(self.fixture.state_dir()).pop();
        until("nobody lives", PATIENCE, async || left().is_none().then_some(())).await;
    }
}

/// The names in a directory, in order.
fn names(dir: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn whoever_is_killed_on_the_way_to_a_template_nothing_is_left_and_the_next_machine_has_one() {
    let mut scene = Scene::new("1s");
    for (step, victims) in TO_A_TEMPLATE {
        for victim in *victims {
            scene.cut_off(step, *victim).await;
            scene.judge(&format!("{step}, killed: {victim:?}")).await;
            scene.without_templates().await;
        }
    }
    leave_nothing(&scene.fixture).await;
}

#[tokio::test]
async fn whoever_is_killed_on_the_way_to_a_clone_nothing_is_left_and_the_next_machine_comes_up() {
    let mut scene = Scene::new("1m");
    let (_, first) = scene.fixture.one("").await;
    first.gone(&*scene.provider()).await;
    scene.number = 1;
    for (step, victims) in TO_A_CLONE.iter().chain(TO_THE_END) {
        for victim in *victims {
            scene.cut_off(step, *victim).await;
            scene.judge(&format!("{step}, killed: {victim:?}")).await;
        }
    }
    scene.without_templates().await;
    leave_nothing(&scene.fixture).await;
}

/// A template that no clone resumes from is set aside and removed; the next one sweeps up what was not.
#[tokio::test]
async fn a_supervisor_killed_while_it_removes_a_template_leaves_no_memory_on_the_disk() {
    let mut scene = Scene::new("1s");
    let (_, first) = scene.fixture.one("").await;
    first.gone(&*scene.provider()).await;
    scene.number = 1;
    let template = scene.templates().join(&names(&scene.templates())[0]);
    std::fs::write(template.join("state"), "no devices").unwrap();
    scene.cut_off("template.set-aside", Itself).await;
    scene.judge("template.set-aside").await;
    scene.without_templates().await;
    leave_nothing(&scene.fixture).await;
}
