//! Images: which ones a seed has, what machines really have, and whether pulls in advance keep their promises.
//!
//! Only a part of the seeds has images. Everything about them is drawn from streams of their own, so that the course of
//! the other seeds does not depend on this file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::judge::{ContainerRefusal, JobContext, judge};
use greenroom_core::container::request::{ContainerRequest, ImageRequest, ServiceRequest};
use greenroom_core::container::settings::{ContainerSettings, PullPolicy};
use greenroom_core::container::spec::ContainerJob;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::images::{WantedImages, WarmPolicy};
use greenroom_core::instance::{Instance, Phase};
use greenroom_core::plan::warm::AT_MOST;
use greenroom_core::policy::Policy;
use greenroom_core::pool::PoolState;
use greenroom_ports::setup::{PullError, Pulls, Traces};

use super::fault::Fault;
use super::process::Proc;
use super::rng::Rng;
use super::scenario::{JobPlan, PoolPlan};
use super::world::World;
use crate::exec::Pid;

const NAMES: [&str; 4] = ["registry.sim/a:1", "registry.sim/b:1", "registry.sim/c:1", "registry.sim/d:1"];
/// A tag of the registry gets another digest this often.
const PUSHED_MS: u64 = 17 * 60_000;
/// A keeper notices a grant within this time, whatever holds up its passes.
const NOTICED_MS: u64 = 6 * 60_000;

/// The pulls and the images that the machines really had, for comparison with the record.
#[derive(Debug, Default)]
pub struct ImageTruth {
    /// The images that machines have had, by digest.
    had: BTreeSet<(InstanceId, Arc<str>, Arc<str>)>,
    /// Pulls on idle instances that run, by process.
    pulls: Vec<(Pid, PoolName, InstanceId)>,
    /// The moment when the last job got each instance.
    granted: BTreeMap<InstanceId, u64>,
}

impl ImageTruth {
    /// True if a pull on an idle instance runs.
    pub(super) fn any_pull(&self) -> bool {
        !self.pulls.is_empty()
    }
}

/// Gives images to the jobs and to the pool of some seeds.
pub(super) fn draw(seed: u64, pool: &mut PoolPlan, jobs: &mut [JobPlan]) {
    let mut rng = Rng::new(seed, "images");
    if !rng.chance(300) {
        return;
    }
    let policy = Arc::make_mut(&mut pool.policy);
    let count = 1 + rng.index(NAMES.len());
    let learn = rng.chance(300).then(|| rng.within(1..5) << 20);
    let images = if learn.is_some() { &[][..] } else { &NAMES[..count] };
    let images = images.iter().map(|name| Arc::from(*name)).collect();
    policy.warm = WarmPolicy { images, learn, pull_timeout: Duration::from_mins(20) };
    policy.timing.image_check_interval = Duration::from_mins(rng.within(5..20));
    for job in jobs.iter_mut().filter(|job| job.pool == pool.name) {
        let count = rng.index(3);
        job.facts.images = WantedImages::new((0..count).map(|_| Arc::from(rng.pick(&NAMES))));
    }
}

/// Draws the images of jobs on static hosts, where nothing is pulled in advance.
pub(super) fn draw_of_hosts(seed: u64, pool: &PoolPlan, jobs: &mut [JobPlan]) {
    let mut rng = Rng::new(seed, "images on hosts");
    if !rng.chance(300) {
        return;
    }
    for job in jobs.iter_mut().filter(|job| job.pool == pool.name) {
        let count = rng.index(3);
        job.facts.images = WantedImages::new((0..count).map(|_| Arc::from(rng.pick(&NAMES))));
    }
}

/// The [`Pulls`] for the pool of a seed with images.
#[derive(Debug)]
pub struct SimPulls;

impl Pulls for SimPulls {
    fn engine(&self) -> ContainerEngine {
        ContainerEngine::default()
    }

    fn pull(&self, image: &str, _: Traces) -> Result<ContainerJob, PullError> {
        containers([image])?.ok_or(PullError::NotPulled)
    }
}

/// A job with these images: the first one for its own container, the others for services.
pub(super) fn containers<'a>(
    names: impl IntoIterator<Item = &'a str>,
) -> Result<Option<ContainerJob>, ContainerRefusal> {
    let settings =
        ContainerSettings { pull_policy: vec![PullPolicy::Always], ..ContainerSettings::default() };
    let mut images =
        names.into_iter().map(|name| ImageRequest { name: name.to_owned(), ..ImageRequest::default() });
    let image = images.next();
    let services = images.map(|image| ServiceRequest { image, ..ServiceRequest::default() }).collect();
    let request = ContainerRequest { image, services, ..ContainerRequest::default() };
    judge(&settings, &request, &JobContext::default())
}

/// The images that a script pulls, by the number of their container, and whether it does nothing else.
pub(super) fn pulled_by(script: &str) -> (Vec<Arc<str>>, bool) {
    let mut images = BTreeMap::new();
    let lines = script.lines().filter_map(|line| line.strip_prefix("pull '")?.split_once("' '"));
    for (numbers, rest) in lines {
        let image: Arc<str> = rest.split('\'').next().unwrap_or_default().into();
        images.extend(numbers.split(' ').map(|number| (number.to_owned(), Arc::clone(&image))));
    }
    (images.into_values().collect(), script.contains("only_pulls=yes"))
}

/// A job's `prepare` has come to its end on the instance: what its script reports.
pub(super) fn prepared(world: &mut World, id: &InstanceId, images: &[Arc<str>]) -> String {
    let mut report = String::new();
    let had: Vec<_> = world.truth.images.had.iter().filter(|(on, ..)| on == id).cloned().collect();
    // Only hosts that stay remove images.
    let stays = world.cloud.machines.get(id).is_some_and(|machine| machine.tags.is_none());
    let removed = had.iter().map(|(_, name, _)| name).find(|name| !images.contains(name));
    if let Some(name) = removed.filter(|_| stays && world.streams.images.chance(300)) {
        world.truth.images.had.retain(|(on, other, _)| on != id || other != name);
        _ = writeln!(report, "removed 300 {name}");
    }
    for (number, image) in images.iter().enumerate() {
        _ = writeln!(report, "pulling {number} always 1\n{}", came(world, id, number, image));
    }
    report + "done\n"
}

/// An image has come to an instance: how its script reports that.
fn came(world: &mut World, id: &InstanceId, number: usize, image: &Arc<str>) -> String {
    let digest = format!("sha256:{:064x}", (world.now / PUSHED_MS) * 16 + image.len() as u64);
    world.truth.images.had.insert((id.clone(), Arc::clone(image), digest.as_str().into()));
    format!("image {number} [1048576,\"\",null,\"{digest}\"]")
}

/// A cleaning leaves no image.
pub(super) fn cleaned(world: &mut World, id: &InstanceId) {
    world.truth.images.had.retain(|(on, ..)| on != id);
}

/// The duration of a pull, and true if it fails.
pub(super) fn course(world: &mut World) -> (u64, bool) {
    let rng = &mut world.streams.images;
    let takes = if rng.chance(150) { rng.within(200_000..900_000) } else { rng.within(1_000..60_000) };
    (takes, rng.chance(100))
}

/// A pull that runs: gone with the process that made it.
pub(super) struct Pull {
    proc: Proc,
    instance: InstanceId,
    begun: u64,
}

impl Pull {
    /// Promise: few at a time.
    pub(super) fn begin(proc: &Proc, instance: &InstanceId) -> Self {
        let mut world = proc.world.borrow_mut();
        let begun = world.now;
        let pool = world.cloud.machines.get(instance).map(|machine| machine.pool.clone());
        let pool = pool.unwrap_or_else(|| PoolName::new("none"));
        let state = world.journal(proc.manager, &pool).state();
        if state.instance(instance).is_some_and(|known| known.phase != Phase::Checking) {
            // A job waits for the others.
            world.truth.images.pulls.push((proc.pid, pool.clone(), instance.clone()));
        }
        let own = |(pid, of, _): &&(Pid, PoolName, InstanceId)| *pid == proc.pid && *of == pool;
        let count = world.truth.images.pulls.iter().filter(own).count();
        if count > AT_MOST {
            world.broken(format!("images: {count} instances of {pool} pull at the same time"));
        }
        drop(world);
        Self { proc: proc.clone(), instance: instance.clone(), begun }
    }

    /// Promise: a pull does not go on beside a job. The text that reports the image, unless the pull fails.
    pub(super) fn end(self, image: &Arc<str>, fails: bool) -> String {
        let mut world = self.proc.world.borrow_mut();
        let now = world.now;
        let id = &self.instance;
        let granted = world.truth.images.granted.get(id).copied().filter(|at| *at > self.begun);
        let held_up = [Fault::Hangs, Fault::Stall].iter().any(|fault| world.scenario.windows.have(*fault));
        if let Some(at) = granted.filter(|at| !held_up && now > at + NOTICED_MS) {
            world.broken(format!("images: a pull on {id} goes on {} ms after a job got it", now - at));
        }
        if fails {
            return "failed 0 always 1 Error: no route to registry.sim\n".to_owned();
        }
        format!("{}\ndone\n", came(&mut world, id, 0, image))
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        let mut world = self.proc.world.borrow_mut();
        let pulls = &mut world.truth.images.pulls;
        let own = |(pid, _, id): &(Pid, PoolName, InstanceId)| *pid == self.proc.pid && *id == self.instance;
        if let Some(place) = pulls.iter().position(own) {
            pulls.swap_remove(place);
        }
    }
}

/// Events were recorded.
pub(super) fn committed(world: &mut World, manager: usize, state: &PoolState, events: &[Event]) {
    for event in events {
        match &event.change {
            Change::ImagesFound { instance, images, .. } => {
                for found in images {
                    let name = &found.name;
                    let digest = found.digest.clone().unwrap_or_default();
                    if !world.truth.images.had.contains(&(instance.clone(), Arc::clone(name), digest)) {
                        world.broken(format!("images: {instance} is recorded with {name}, which it lacks"));
                    }
                }
            }
            Change::Cleaned { instance, .. } | Change::ImagesRemoved { instance, .. } => {
                let known = state.instance(instance).map(|known| &known.images);
                let lacks = |name: &str| {
                    !world.truth.images.had.iter().any(|(on, has, _)| on == instance && **has == *name)
                };
                let wrong = known
                    .and_then(|images| images.iter().map(|fact| &fact.image.name).find(|name| lacks(name)));
                if let Some(name) = wrong {
                    world.broken(format!("images: {instance} is recorded with {name}, which is gone"));
                }
            }
            Change::Granted { attempt, instance } => {
                let now = world.now;
                world.truth.images.granted.insert(instance.clone(), now);
                let alone = events.iter().filter(|e| matches!(e.change, Change::Granted { .. })).count() == 1;
                if alone && let Some(better) = better(world, manager, state, attempt, instance) {
                    world.broken(format!(
                        "images: {attempt} gets {instance}, and {better} has more of its images"
                    ));
                }
            }
            _ => {}
        }
    }
}

/// Promise: among equals, a job gets the instance with most of its images. One that has more of them than the granted
/// one, which was as full.
fn better(
    world: &World,
    manager: usize,
    state: &PoolState,
    attempt: &AttemptName,
    granted: &InstanceId,
) -> Option<InstanceId> {
    let reservation = &state.granted.get(attempt)?.reservation;
    let policy = state.policy.as_deref()?;
    let chosen = state.instance(granted)?;
    let wanted = reservation.job.images.names();
    let has = |i: &Instance| wanted.iter().filter(|name| i.images.get(name).is_some()).count();
    let now = world.stamp(manager);
    let lasts = |i: &Instance, policy: &Policy| {
        let lived = now.since(i.created).saturating_add(reservation.job.timeout);
        i.lifetime(policy).is_none_or(|most| lived <= most)
    };
    let is_equal = |i: &Instance| {
        i.usable() > 0
            && i.free_slots() == chosen.free_slots() + 1
            && i.admits(&reservation.domain)
            && lasts(i, policy)
            && i.ready.is_some_and(|ready| world.trusts(manager, ready))
            // A pass holds back what restarts, and what an open attempt names.
            && world.cloud.machines.get(&i.id).is_some_and(|m| m.answers(world.now) && !m.rebooted)
            && !world.is_named(manager, &i.id)
    };
    let others = state.instances.values().map(AsRef::as_ref).filter(|i| i.id != *granted);
    others.filter(|i| is_equal(i)).find(|i| has(i) > has(chosen)).map(|i| i.id.clone())
}
