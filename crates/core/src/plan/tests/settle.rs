//! A plan settles: applied in a world without faults, it stops changing anything.

use std::time::Duration;

use proptest::prelude::*;

use crate::attempt::{Closed, End};
use crate::event::Change;
use crate::images::{FoundImage, SeenImages};
use crate::instance::{Answer, Instance, Phase, Release};
use crate::invariants::check;
use crate::inventory::{Listed, Status, Tags};
use crate::notation::{World, cleaned, endpoint, render, world};
use crate::plan::{Effect, Plan, checks, request, warm};
use crate::report::WaitingOn;

/// Number of passes that may act before the plan must have settled.
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
                let instance = instance.clone();
                let attempt = launch.attempt;
                let tags = Tags {
                    pool: crate::ids::PoolName::new("p"),
                    owner: self.observed.owner.clone(),
                    generation: launch.generation,
                    number: launch.number,
                };
                if let Ok(listing) = &mut self.observed.listing {
                    let id = instance.clone();
                    let tags = Some(tags);
                    let status = Status::Running;
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
                let instance = instance.clone();
                let endpoint = endpoint();
                let capacity = capacity.unwrap_or(self.policy.capacity_per_instance);
                let uses_left = self.policy.max_use_count;
                self.tell(now, Change::Adopted { instance, endpoint, capacity, uses_left });
            }
            Effect::CheckHealth { instance } => drop(self.observed.healthy.insert(instance.clone(), now)),
            Effect::Check { instance, kind } => {
                self.carry(&checks::begun(&self.state, instance, *kind, now));
            }
            Effect::Recheck { instance } => {
                let left = self.state.instance(instance).and_then(|i| i.released).expect("a job has left");
                self.carry(&checks::recheck_passed(&self.state, instance, left, now));
            }
            Effect::Warm { instance, image } => {
                let found = vec![FoundImage { name: image.clone(), digest: None, bytes: 1 }];
                let seen = SeenImages { found, removed: Vec::new() };
                self.carry(&warm::seen_by_keeper(&self.state, instance, &seen, now));
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
                    let attempt = attempt.clone();
                    let how = End::GivenBack;
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
        let held = world.state.granted.len();
        let recorded = world.state.instances.len();
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
        seen.closed = Some(cleaned(now));
        seen.used = true;
        seen.lease_held = false;
        let rest = world.settle().unwrap();
        assert_eq!(rest.effects, []);
    }
    assert!(world.state.granted.is_empty() && world.state.waiting.is_empty());
}

// Random worlds, written as lines: a failing case prints as one.

fn span() -> impl Strategy<Value = String> {
    prop_oneof![(0..90_u32).prop_map(|s| format!("{s}s")), (1..40_u32).prop_map(|m| format!("{m}m")),]
}

fn project() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c"])
}

fn protection() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", " protected"])
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(words)
}

/// Something after an item; usually nothing.
fn maybe(text: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::option::weighted(0.25, text).prop_map(|t| t.map_or_else(String::new, |t| format!(" {t}")))
}

fn status() -> impl Strategy<Value = String> {
    prop_oneof![
        one_of(&["starting", "stopping", "running", "suspended", "gone", "denied"]).prop_map(str::to_owned),
        span().prop_map(|s| format!("missing {s}")),
        span().prop_map(|s| format!("missing {s} denied")),
    ]
}

fn hindrance() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("old".to_owned()),
        Just("busy".to_owned()),
        Just("announced".to_owned()),
        (1..20_u32).prop_map(|s| format!("failing {s}s")),
        (200..210_u32, one_of(&["named", "user"])).prop_map(|(job, word)| format!("{word} {job}")),
    ]
}

/// `number` gives the jobs of different items different IDs.
fn item(number: usize) -> impl Strategy<Value = String> {
    let empty = one_of(&[
        "requested",
        "unknown",
        "refused",
        "booting",
        "checking",
        "idle",
        "idle",
        "idle",
        "suspending",
        "stopped",
        "resuming",
        "draining",
    ]);
    let host = one_of(&["static checking", "static idle", "static cleaning", "static out-of-service"]);
    let held = one_of(&["held", "held", "draining", "static held", "static out-of-service"]);
    let uses = (1..4_u32).prop_map(|uses| format!("uses {uses}"));
    let row = one_of(&["", "", "", " unbegun", " unbegun twice", " unchecked", " unbegun twice unchecked"]);
    let bound = (project(), protection(), row)
        .prop_map(|(project, protection, row)| format!("of {project}{protection}{row}"));
    let job = 10 * (number + 1);
    let word = one_of(&["by", "by", "by", "closing"]);
    let other = one_of(&["orphan", "stranger", "foreign", "host", "orphan"]);
    let waits = (project(), protection(), one_of(&["10m", "1h", "2h"]), any::<bool>());
    prop_oneof![
        6 => (prop_oneof![4 => empty, 1 => host], span(), maybe(uses.clone()), maybe(bound), maybe(status()), maybe(hindrance()))
            .prop_map(|(phase, age, uses, bound, status, hindrance)| {
                let bound = if phase.ends_with("idle") { bound } else { String::new() };
                format!("{phase} {age}{uses}{bound}{status}{hindrance}")
            }),
        4 => (held, span(), word, 1..3_usize, maybe(uses), (project(), protection()), maybe(status()), maybe(hindrance()))
            .prop_map(move |(phase, age, word, jobs, uses, (project, protection), status, hindrance)| {
                let jobs: Vec<String> = (0..jobs).map(|n| (job + n).to_string()).collect();
                let jobs = jobs.join(",");
                format!("{phase} {age} {word} {jobs} cap 3{uses} of {project}{protection}{status}{hindrance}")
            }),
        1 => (other, span()).prop_map(|(kind, age)| format!("{kind} {age}")),
        4 => (waits, span()).prop_map(move |((project, protection, timeout, dead), age)| {
            let dead = if dead && timeout == "2h" { " dead" } else { "" };
            format!("waits {job} {age} of {project}{protection} timeout {timeout}{dead}")
        }),
    ]
}

fn settings() -> impl Strategy<Value = String> {
    let limits = (0..9_u32, 0..5_u32, 1..4_u32, prop::option::of(1..4_u32));
    let reuse = one_of(&["", ", any", ", namespace"]);
    let more = one_of(&[
        "",
        "",
        "",
        ", lifetime 1h",
        ", lifetime 20m",
        ", launching 1",
        ", rate 2, recent 1 20s",
        ", drained",
        ", bound",
        ", hosts",
        ", failures 2 3s",
        ", failures 6 2m",
        ", failures 6 6m",
        ", idle_time 0s",
        ", tier 1",
        ", tier 2",
        ", tier 3, unsuspended 2 3s",
        ", tier 2, unsuspended 6 6m",
        ", tier 2, idle_time 0s",
        ", tier 2 no",
        ", tier 2 unknown",
        ", tier 2, drained",
        ", tier 2, lifetime 20m",
        ", repeats",
        ", factor 0.7",
        ", offerings 2",
        ", offerings 2, out c1 20s",
        ", offerings 2, out c1 20s, quota c2 1m",
    ]);
    let listing =
        one_of(&["", "", "", "", ", partial", ", nowhere", ", unlisted", ", list 20s", ", reap", ", full"]);
    (limits, reuse, more, listing).prop_map(|((max, target, cap, uses), reuse, more, listing)| {
        let uses = uses.map_or_else(String::new, |uses| format!(", uses {uses}"));
        format!("max {max}, target {target}, cap {cap}{uses}{reuse}{more}{listing}")
    })
}

/// A whole world, as a line.
pub(super) fn a_world() -> impl Strategy<Value = String> {
    let items = (0..9_usize).prop_flat_map(|count| (0..count).map(item).collect::<Vec<_>>());
    (settings(), items).prop_map(|(settings, items)| format!("{settings} | {}", items.join("; ")))
}

/// Jobs with orders, and instances that were launched for a job. `number` as in `item`.
fn order(number: usize) -> impl Strategy<Value = String> {
    const PHASES: &[&str] = &["requested", "unknown", "refused", "booting", "checking", "idle"];
    let job = 1_000 + number;
    let waits = move |age: String| format!("waits {job} {age} orders ruby");
    let instance = move |(phase, age, status, hindrance): (&str, String, String, String)| {
        format!("{phase} {age} for {job}{status}{hindrance}")
    };
    let instances = || (one_of(PHASES), span(), maybe(status()), maybe(hindrance())).prop_map(instance);
    prop_oneof![
        3 => span().prop_map(waits),
        2 => instances(),
        4 => (instances(), span()).prop_map(move |(instance, age)| format!("{instance}; {}", waits(age))),
        1 => span().prop_map(move |age| format!("held {age} by {job} for {job}")),
    ]
}

/// A whole world, as a line, of a provider that makes orders.
pub(super) fn a_world_with_orders() -> impl Strategy<Value = String> {
    let items = (0..4_usize).prop_flat_map(|count| (0..count).map(item).collect::<Vec<_>>());
    let orders = (1..5_usize).prop_flat_map(|count| (0..count).map(order).collect::<Vec<_>>());
    (settings(), items, orders).prop_map(|(settings, items, orders)| {
        let all: Vec<String> = items.into_iter().chain(orders).collect();
        format!("orders, {settings} | {}", all.join("; "))
    })
}

#[test]
fn every_random_world_can_be_built() {
    use crate::notation::world;
    proptest!(ProptestConfig::with_cases(200), |(line in a_world())| {
        prop_assert_eq!(crate::invariants::check(&world(&line).state), vec![]);
    });
}
