//! A plan settles: applied in a world without faults, it stops changing anything.

use std::time::Duration;

use proptest::prelude::*;

use super::random::a_world;
use crate::attempt::{Closed, End};
use crate::event::Change;
use crate::images::{FoundImage, SeenImages};
use crate::instance::{Answer, Instance, Phase, Release};
use crate::invariants::check;
use crate::inventory::{Listed, Status, Tags};
use crate::notation::{World, cleaned, endpoint, render, world};
use crate::plan::{Effect, Plan, recheck, request, seen, stages};
use crate::report::WaitingOn;

/// How many passes may act before the plan must have settled.
const PASSES: usize = 40;

impl World {
    /// Observes, plans, commits, and lets every effect succeed immediately.
    fn pass(&mut self) -> Plan {
        self.observe();
        let plan = self.plan();
        self.carry(&plan.events);
        for event in &plan.events {
            if let Change::Granted { attempt, instance } = &event.change
                && let Some(seen) = self.observed.attempts.get_mut(attempt)
            {
                seen.instance = Some(instance.clone());
            }
        }
        for effect in &plan.effects {
            self.succeed(effect);
        }
        assert_eq!(check(&self.state), []);
        plan
    }

    /// A complete list of this moment; the endpoint denies what it lacks.
    fn observe(&mut self) {
        self.observed.busy.clear();
        self.observed.failing_calls.retain(|_, t| !self.now.reached(t.until));
        self.observed.awaited.retain(|_, until| !self.now.reached(*until));
        self.observed.attempts_at = self.now;
        let now = self.now;
        let Ok(listing) = &mut self.observed.listing else { return };
        listing.begun = now;
        for listed in &mut listing.instances {
            let host = listed.tags.is_none();
            if listed.status == Status::Starting || host {
                listed.status = Status::Running;
            }
        }
        let lacks = |i: &&Instance| !listing.instances.iter().any(|l| l.id == i.id);
        let instances = self.state.instances.values().map(AsRef::as_ref);
        self.observed.denied = instances.filter(lacks).map(|i| (i.id.clone(), now)).collect();
    }

    fn listed_as(&mut self, id: &crate::ids::InstanceId, status: Status) {
        let Ok(listing) = &mut self.observed.listing else { return };
        for listed in listing.instances.iter_mut().filter(|listed| listed.id == *id) {
            listed.status = status;
        }
    }

    fn succeed(&mut self, effect: &Effect) {
        let now = self.now;
        match effect {
            Effect::Launch { instance, .. } => {
                let launch = self.state.instance(instance).and_then(|i| i.launch.clone()).expect("intended");
                let (instance, attempt) = (instance.clone(), launch.attempt);
                let tags = Tags {
                    pool: crate::ids::PoolName::new("p"),
                    owner: self.observed.owner.clone(),
                    generation: launch.generation,
                    number: launch.number,
                };
                if let Ok(listing) = &mut self.observed.listing {
                    let (id, tags, status) = (instance.clone(), Some(tags), Status::Running);
                    listing.instances.retain(|l| l.id != id);
                    listing.instances.push(Listed {
                        id,
                        tags,
                        status,
                        created: None,
                        detail: None,
                        by_job: false,
                        refused: None,
                        static_host: None,
                        notice: None,
                    });
                    listing.instances.sort_by(|a, b| a.id.cmp(&b.id));
                }
                let answer = Answer::Accepted { at: now };
                self.tell(now, Change::LaunchAnswered { instance, attempt, answer });
            }
            Effect::Suspend { instance } => self.listed_as(instance, Status::Suspended),
            Effect::Resume { instance } => {
                self.listed_as(instance, Status::Running);
                let reached = Change::Reached { instance: instance.clone(), endpoint: endpoint() };
                self.tell(now, reached);
                self.carry(&request::ready(&self.state, instance, now));
            }
            Effect::Probe { instance } => {
                if self.state.instance(instance).is_some_and(|i| i.phase.is_resuming()) {
                    self.tell(now, Change::Reached { instance: instance.clone(), endpoint: endpoint() });
                }
                if self.state.instance(instance).is_some_and(|i| i.phase == Phase::Launching) {
                    let reached = Change::Reached { instance: instance.clone(), endpoint: endpoint() };
                    self.tell(now, reached);
                }
                self.carry(&request::ready(&self.state, instance, now));
            }
            Effect::Adopt { instance, capacity } => {
                let (instance, endpoint) = (instance.clone(), endpoint());
                let capacity = capacity.unwrap_or(self.policy.capacity_per_instance);
                let uses_left = self.policy.max_use_count;
                self.tell(now, Change::Adopted { instance, endpoint, capacity, uses_left });
            }
            Effect::CheckHealth { instance } => drop(self.observed.healthy.insert(instance.clone(), now)),
            Effect::Check { instance, kind } => {
                self.carry(&stages::begun(&self.state, instance, *kind, now));
            }
            Effect::Recheck { instance } => {
                let left = self.state.instance(instance).and_then(|i| i.released).expect("a job has left");
                self.carry(&recheck::passed(&self.state, instance, left, now));
            }
            Effect::Warm { instance, image } => {
                let found = vec![FoundImage { name: image.clone(), digest: None, bytes: 1 }];
                let seen = SeenImages { found, removed: Vec::new() };
                self.carry(&seen::by_keeper(&self.state, instance, &seen, now));
            }
            Effect::Clean { instance } => {
                let begun = self.state.instance(instance).map_or(now, |host| host.since);
                self.carry(&request::cleaned(&self.state, instance, begun, &[], now));
            }
            Effect::Terminate { instance } | Effect::Forget { instance } | Effect::Reap { instance } => {
                if let Ok(listing) = &mut self.observed.listing {
                    listing.instances.retain(|l| l.id != *instance);
                }
                if self.state.instances.contains_key(instance) {
                    self.tell(now, Change::Forgotten { instance: instance.clone() });
                }
            }
            Effect::EndAttempt { attempt, how } => {
                let seen = self.observed.attempts.get_mut(attempt).expect("it was seen");
                seen.closed = Some(Closed::new(now, *how));
                let leaving = Release { how: *how, used: seen.used, closing: false };
                self.carry(&request::release(&self.state, attempt, leaving, now));
            }
            Effect::DropRequest { attempt } => {
                if self.state.waiting_for(attempt).is_some() {
                    let (attempt, how) = (attempt.clone(), End::GivenBack);
                    self.tell(now, Change::Withdrawn { attempt, how });
                }
            }
            Effect::ForgetAttempt { attempt } => drop(self.observed.attempts.remove(attempt)),
        }
    }

    /// Runs passes until one does nothing; returns that one's plan.
    fn settle(&mut self) -> Result<Plan, String> {
        let mut story = Vec::new();
        for _ in 0..PASSES {
            let plan = self.pass();
            if plan.events.is_empty() && plan.effects.is_empty() {
                return Ok(plan);
            }
            story.push(render(&plan));
            self.now = self.now.plus(Duration::from_millis(10));
        }
        Err(format!("no rest after {PASSES} passes: {story:#?}"))
    }
}

/// Runs the world for a while, from one wake-up to the next; returns the number of launches.
fn run(world: &mut World, wakes: usize) -> Result<(usize, Plan), String> {
    let before = world.state.revision;
    let numbers = |world: &World| world.state.generations.values().sum::<u32>() as usize;
    let first = numbers(world);
    let mut plan = world.settle()?;
    for _ in 0..wakes {
        let Some(next) = plan.report.next else { break };
        world.now = next;
        plan = world.settle()?;
    }
    assert!(world.state.revision >= before);
    Ok((numbers(world) - first, plan))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn in_a_world_without_faults_every_plan_comes_to_rest(line in a_world()) {
        let mut world = world(&line);
        let (held, recorded) = (world.state.granted.len(), world.state.instances.len());
        let jobs = held + world.state.waiting.len();
        let (launches, plan) = run(&mut world, 30).map_err(TestCaseError::fail)?;
        // No churn: each launch is for a job, for the target, or replaces a lost instance.
        let target = 5 + held + world.policy.idle_stopped as usize;
        let aged = world.policy.max_lifetime.is_some();
        prop_assert!(aged || launches <= jobs + target + recorded, "{launches} launches");
        // An unanswered launch that cannot be listed, or not repeated, waits for its timeout.
        let blind = ["partial", "nowhere", "in there", "unlisted", "repeats", "reap", "full"].iter().any(|word| line.contains(word));
        for (attempt, on) in &plan.report.waiting {
            let stuck = matches!(on, WaitingOn::Boot { .. } | WaitingOn::Cleaning { .. } | WaitingOn::Room { .. });
            prop_assert!(blind || !stuck, "{attempt} still waits: {on}");
        }
    }
}

#[test]
fn a_pool_follows_its_target_up_and_down_and_then_rests() {
    let mut world = world("max 4, target 2, idle_time 60s | ");
    let (launches, plan) = run(&mut world, 20).unwrap();
    assert_eq!((launches, plan.report.next), (2, None), "settled, nothing due");
    world.policy.idle.idle_count = 1;
    let (launches, _) = run(&mut world, 20).unwrap();
    assert_eq!((launches, world.state.instances.len()), (0, 1));
    world.policy.idle.idle_count = 0;
    let (launches, plan) = run(&mut world, 20).unwrap();
    assert_eq!((launches, world.state.instances.len(), plan.report.next), (0, 0, None));
}

#[test]
fn a_full_pool_serves_waiting_projects_one_after_the_other() {
    let mut world = world("max 1, uses 1 | held 5m by 7; waits 8 of b; waits 9 of c");
    for job in [7, 8, 9] {
        let attempt = crate::notation::attempt(job);
        assert!(world.state.granted.contains_key(&attempt), "job {job}");
        let now = world.now;
        let seen = world.seen(job);
        (seen.closed, seen.used, seen.lease_held) = (Some(cleaned(now)), true, false);
        let rest = world.settle().unwrap();
        assert_eq!(rest.effects, []);
    }
    assert!(world.state.granted.is_empty() && world.state.waiting.is_empty());
}
