//! Pulls images of containers into the disk layer from which the next template boots.
//!
//! The guest that pulls is not the one that is frozen. It gets no identity, and no job ever runs in it. Only its disk is
//! kept.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use greenroom_core::container::report::{NotPulled, pulled};
use greenroom_core::images::FoundImage;
use greenroom_system::remove;

use super::{Done, PULLED, Pulls, Recipe, Template};
use crate::launch::random;
use crate::qemu::accel::Engine;
use crate::qemu::egress::{self, Guard};
use crate::qemu::process::agent::Agent;
use crate::qemu::process::boot::unguarded;
use crate::qemu::process::console::Console;
use crate::qemu::process::machine::{BootError, Machine};
use crate::qemu::process::rig::{Rig, new_layer};
use crate::qemu::settings::Accel;
use crate::qemu::user;
use crate::supervisor::note;

/// How long a template keeps its images before they are pulled again.
const FRESH: Duration = Duration::from_hours(24);

/// The same if some of them may come soon.
const RETRY: Duration = Duration::from_hours(1);

/// What a guest has pulled, and what it has not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pulled {
    pub(super) images: Vec<FoundImage>,
    pub(super) without: Vec<(String, NotPulled)>,
}

impl Pulled {
    /// What a template records that has just been built.
    pub(super) fn done(pulled: Option<Self>, ms: u64) -> std::io::Result<Done> {
        let done = Done { ms, token: random()?, ..Done::default() };
        Ok(match pulled {
            Some(pulled) => Done { images: pulled.images.clone(), ..pulled.noted(done) },
            None => done,
        })
    }

    /// The same template, whose images have been compared with their registries.
    pub(super) fn noted(&self, done: Done) -> Done {
        let may_pass = self.without.iter().any(|(_, problem)| problem.may_pass);
        let due = Some(in_ms(if may_pass { RETRY } else { FRESH }));
        let without =
            self.without.iter().map(|(image, problem)| format!("without image `{image}`: {}", problem.why));
        Done { due, without: without.collect(), ..done }
    }

    /// True if a new template would have other images. One never loses an image because its registry fails.
    pub(super) fn replaces(&self, present: &Done) -> bool {
        let has = |known: &FoundImage| self.images.iter().any(|image| image.name == known.name);
        self.images != present.images && present.images.iter().all(has)
    }
}

impl Done {
    /// The same template, whose images could not be pulled at all.
    pub(super) fn postponed(self, why: &str) -> Self {
        Self { due: Some(in_ms(RETRY)), without: vec![format!("without its images: {why}")], ..self }
    }

    /// How long until its images are pulled again.
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
pub(super) async fn pull(template: &Template, recipe: &Recipe, pulls: &Pulls) -> Result<Pulled, BootError> {
    let guard = match pulls.network.internet() {
        Some(internet) => Some(Guard::raise(internet).await?),
        None => None,
    };
    let mut machine = None;
    let pulled = tokio::select! {
        pulled = boot_and_pull(template, (recipe, pulls), guard.as_ref(), &mut machine) => pulled,
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
    (recipe, pulls): (&Recipe, &Pulls),
    guard: Option<&Guard>,
    slot: &mut Option<Machine>,
) -> Result<Pulled, BootError> {
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
    let accel = if recipe.hardware.engine == Engine::Tcg { Accel::Tcg } else { Accel::Auto };
    let own = guard.map(|guard| user::under(&recipe.runner, guard.uid(), accel));
    let machine =
        slot.insert(Machine::start(own.as_ref().unwrap_or(&recipe.runner), command, &console).await?);
    let mut agent = Agent::new(agent);
    machine.within(recipe.limit, "the guest that pulls images did not come up", agent.hello()).await?;
    let mut all = Pulled::default();
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
pub(super) fn discard(template: &Template) {
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
        let present = |images: Vec<FoundImage>| Done { images, ..Done::default() };
        let both = || vec![image("a", "1"), image("b", "1")];
        for (new, present, replaces) in [
            (both(), present(Vec::new()), true),
            (both(), present(both()), false),
            (vec![image("a", "2"), image("b", "1")], present(both()), true),
            (vec![image("a", "2")], present(both()), false),
            (Vec::new(), present(Vec::new()), false),
        ] {
            let new = Pulled { images: new, without: Vec::new() };
            assert_eq!(new.replaces(&present), replaces, "{new:?} {present:?}");
        }
    }

    #[test]
    fn what_may_come_soon_is_pulled_again_sooner() {
        let due = |without| {
            let pulled = Pulled { images: vec![image("a", "1")], without };
            Pulled::done(Some(pulled), 7).unwrap()
        };
        let near = |done: &Done, expected: Duration| {
            let left = done.is_due_in();
            left <= expected && left + Duration::from_mins(5) > expected
        };
        let denied = due(vec![without(false)]);
        assert!(near(&due(Vec::new()), FRESH) && near(&denied, FRESH));
        assert_eq!(denied.without, ["without image `r.corp/b:1`: denied"]);
        assert!(near(&due(vec![without(false), without(true)]), RETRY));
        let plain = Pulled::done(None, 7).unwrap();
        assert_eq!((plain.is_due_in(), plain.images.len()), (Duration::ZERO, 0));
        assert!(near(&plain.clone().postponed("no engine"), RETRY));
        assert_ne!(plain.token, Pulled::done(None, 7).unwrap().token);
        let wrong = Done { due: Some(i64::MAX), ..plain };
        assert_eq!(wrong.is_due_in(), FRESH);
    }
}
