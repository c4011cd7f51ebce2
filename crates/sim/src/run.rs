//! Runs one seed from its first job to rest.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::rc::Rc;

use greenroom_core::ids::{InstanceId, OwnerId};
use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_testkit::memory_host::Directory;

use crate::cloud::BootPlan;
use crate::cover::Coverage;
use crate::exec::{Channel, Executor};
use crate::process::Shared;
use crate::rig::{Command, Product, Starter};
use crate::scenario::Scenario;
use crate::truth::{EARLIER, Guests, JobResult};
use crate::world::{Ledger, Manager, Place, World};
use crate::{fate, operator, rest, second, workload};

/// The result of a seed, as [`run()`] returns it.
#[derive(Debug)]
pub struct SeedResult {
    pub seed: u64,
    /// The first broken promise.
    pub wrong: Option<String>,
    pub cover: Coverage,
    /// Length and hash of the trace.
    pub digest: (u64, u64),
    pub story: Option<String>,
    pub steps: u64,
    pub jobs: usize,
    pub passed: usize,
}

impl SeedResult {
    /// The problem of this seed: a broken promise, or too few jobs to judge one.
    pub fn problem(&self) -> Option<String> {
        let tame = || {
            let kinds = self.cover.fault_kinds();
            let kills = self.cover.kills();
            let enough = self.jobs >= 200 && kinds >= 5 && kills >= 3;
            (!enough).then(|| format!("too tame: {} jobs, {kinds} kinds of fault, {kills} kills", self.jobs))
        };
        self.wrong.clone().or_else(tame)
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let Self { seed, steps, jobs, passed, .. } = self;
        let kinds = self.cover.fault_kinds();
        let kills = self.cover.kills();
        let problem = self.problem().unwrap_or_else(|| "ok".to_owned());
        format!(
            "seed {seed}: {jobs} jobs, {passed} passed, {steps} steps, {kinds} kinds of fault, {kills} kills: {problem}"
        )
    }
}

/// Runs a seed. `keep` keeps the trace's text.
pub fn run(seed: u64, product: Rc<dyn Product>, keep: bool) -> SeedResult {
    let scenario = Rc::new(Scenario::draw(seed));
    let world: Shared = Rc::new(RefCell::new(World::new(seed, Rc::clone(&scenario), keep)));
    let starter = Starter { product };
    furnish(&world, &scenario);
    workload::gitlab(&world);
    workload::runners(&world, &starter, 0);
    fate::begin(&world, &starter);
    cron(&world, &starter, Cron { manager: 0, first: 300_000, every: 300_000 });
    operator::begin(&world, &starter);
    if scenario.service {
        service(&world, &starter, 0);
    }
    if let Some(second) = scenario.second {
        second.begin(&world, &starter);
    }
    let mut executor = Executor::new(Rc::clone(&world));
    executor.run_until(scenario.calm);
    // No fault occurs from here on. First the jobs end, then the grace passes, then everything must be at rest.
    while world.borrow().wrong.is_none()
        && !rest::jobs_ended(&world.borrow())
        && world.borrow().now < scenario.end
    {
        let next = world.borrow().now + 60_000;
        executor.run_until(next);
    }
    // Not while a `reap` runs: those come every five minutes.
    let settled = (world.borrow().now + rest::GRACE_MS).next_multiple_of(300_000) + 150_000;
    executor.run_until(settled);
    // An instance that reaches `max_lifetime` is just being replaced: everything is at rest before or after that.
    for minutes in [3, 4] {
        if rest::problem(&world.borrow()).is_some() && world.borrow().wrong.is_none() {
            let later = world.borrow().now + minutes * 60_000;
            executor.run_until(later);
        }
    }
    let mut world = world.borrow_mut();
    if world.wrong.is_none()
        && let Some(problem) = rest::problem(&world)
    {
        world.broken(problem);
    }
    let passed = world.truth.results.values().filter(|v| **v == JobResult::Passed).count();
    SeedResult {
        seed,
        wrong: world.wrong.clone(),
        cover: world.cover.clone(),
        digest: world.story.digest(),
        story: world.story.text().map(str::to_owned),
        steps: executor.steps,
        jobs: world.truth.results.len(),
        passed,
    }
}

/// The first manager, the static hosts, and an instance of another owner.
fn furnish(world: &Shared, scenario: &Scenario) {
    let mut world = world.borrow_mut();
    world.ledgers.push(Ledger::new(scenario.durable_store));
    install(&mut world, Place { id: ManagerId(1), ledger: 0, host: 0, boot: 1 });
    let plan = BootPlan { takes: Some(0), passes: true, goes: 0, hidden: 0 };
    for pool in scenario.pools.values() {
        for number in 1..=pool.hosts {
            let name = format!("{}-{number}", pool.name);
            world.cloud.install(&pool.name, &name, plan);
            let earlier = Guests { domain: Some(EARLIER.to_owned()), ..Guests::default() };
            world.truth.guests.insert(InstanceId::new(name), earlier);
        }
        if pool.capabilities.launches {
            world.cloud.stranger(&pool.name, plan);
        }
    }
}

/// An empty state directory of the operator's.
pub(super) fn install(world: &mut World, place: Place) {
    let owner = OwnerId::new("owner-1");
    let start =
        Stamp { wall_ms: super::world::EPOCH_MS, manager: place.id, boot: BootId(place.boot), uptime_ms: 0 };
    let directory = Rc::new(RefCell::new(Directory::new(owner, start)));
    world.managers.push(Manager::new(directory, place, 0));
}

/// The moments of a manager's `reap`s, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cron {
    pub(super) manager: usize,
    pub(super) first: u64,
    pub(super) every: u64,
}

/// Runs `reap` again and again, like cron.
pub(super) fn cron(world: &Shared, starter: &Starter, cron: Cron) {
    let starter = starter.clone();
    let Cron { manager, first, every } = cron;
    Starter::outside(world, format!("cron{}", second::of(manager)), manager, None, move |proc| async move {
        proc.pause(first).await;
        let mut number = 0;
        loop {
            if proc.world.borrow().managers[manager].on {
                number += 1;
                let name = format!("reap{number}{}", second::of(manager));
                starter.start(&proc.world, Command::Reap, name, manager, None);
            }
            proc.pause(every).await;
        }
    });
}

/// `greenroom keep` as a service of a manager: restarted when it exits.
pub(super) fn service(world: &Shared, starter: &Starter, manager: usize) {
    let starter = starter.clone();
    Starter::outside(
        world,
        format!("systemd{}", second::of(manager)),
        manager,
        None,
        move |proc| async move {
            loop {
                let on =
                    proc.until(&[Channel::Work(1)], None, |world| world.managers[manager].on.then_some(()));
                on.await;
                let keep = Command::Keep { service: true };
                let name = format!("keep as a service{}", second::of(manager));
                let pid = starter.start(&proc.world, keep, name, manager, None);
                proc.until(&[Channel::Exit(pid)], None, |world| world.exit_of(pid)).await;
                proc.pause(5_000).await;
            }
        },
    );
}

// The trace: what happened, line by line.
//
// One line per step with its virtual time. Always hashed; kept as text only on request. Two runs of one seed must have
// the same trace, byte for byte.

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    bytes: u64,
    lines: u64,
    text: Option<String>,
}

impl Trace {
    /// `keep` keeps the text.
    pub fn new(keep: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, bytes: 0, lines: 0, text: keep.then(String::new) }
    }

    /// Adds a line: when (milliseconds since the world began), who, and what.
    pub fn line(&mut self, now: u64, who: fmt::Arguments<'_>, what: fmt::Arguments<'_>) {
        self.lines += 1;
        let _infallible = writeln!(self, "{:>8}.{:03} {who}: {what}", now / 1000, now % 1000);
    }

    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The whole text, if it was kept.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Length and hash: equal for equal traces.
    pub fn digest(&self) -> (u64, u64) {
        (self.bytes, self.hash)
    }
}

impl Write for Trace {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.bytes += part.len() as u64;
        // FNV-1a over words of eight bytes: cheap, and every byte counts, as does its position in the part.
        let mut hash = self.hash;
        for chunk in part.as_bytes().chunks(8) {
            let mut word = [0_u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        self.hash = hash;
        if let Some(text) = &mut self.text {
            text.push_str(part);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_same_with_and_without_text_and_sees_every_line() {
        let traced = |keep, last: &str| {
            let mut trace = Trace::new(keep);
            trace.line(12_345, format_args!("keeper"), format_args!("lists"));
            trace.line(12_346, format_args!("keeper"), format_args!("{last}"));
            trace
        };
        assert_eq!(traced(true, "sleeps").digest(), traced(false, "sleeps").digest());
        assert_ne!(traced(true, "sleeps").digest(), traced(true, "sleept").digest());
        assert_eq!(traced(true, "ok").text(), Some("      12.345 keeper: lists\n      12.346 keeper: ok\n"));
        assert_eq!(traced(false, "ok").text(), None);
    }
}
