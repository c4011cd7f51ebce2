//! The faults that happen at a moment.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use greenroom_core::ids::{Generation, InstanceId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_core::policy::{IdlePolicy, Policy};
use greenroom_ports::provider::{InstanceKeys, LaunchRequest};

use super::cloud::{BootPlan, Machine};
use super::fault::Fault;
use super::process::{Kind, Proc, Shared};
use super::rig::{Command, Order, Starter};
use super::scenario::{Moment, PoolPlan};
use super::truth::JobResult;
use super::workload::{self, QUEUE};
use super::world::{Manager, Place, World};
use super::{early, lists, operator, second, sick, stages};
use crate::exec::{Channel, Pid};
use crate::offerings;

const DAY_MS: i64 = 86_400_000;

/// Starts every moment of the scenario, which waits for its time.
pub fn begin(world: &Shared, starter: &Starter) {
    let moments = world.borrow().scenario.moments.clone();
    for (number, moment) in moments.into_iter().enumerate() {
        let starter = starter.clone();
        Starter::outside(world, format!("fate{number}"), 0, None, move |proc| async move {
            proc.pause(moment.at).await;
            strike(&proc, &starter, moment).await;
        });
    }
}

async fn strike(proc: &Proc, starter: &Starter, moment: Moment) {
    let dice = moment.dice;
    proc.log(format_args!("{}", moment.fault));
    match moment.fault {
        Fault::DiesLeased => dies_leased(proc, dice).await,
        Fault::DiesIdle => unused(proc, dice, |world, id| {
            let now = world.now;
            world.cloud.end(id, now);
        }),
        Fault::LosesAll => lists::lost(proc).await,
        Fault::StoppedOutside => unused(proc, dice, |world, id| {
            let suspends = world.cloud.machines.get(id).map(|m| m.pool.clone());
            let suspends = suspends.is_some_and(|pool| world.config[&pool].policy.idle_stopped > 0);
            let now = world.now;
            if let Some(m) = world.cloud.machines.get_mut(id) {
                if suspends && dice.is_multiple_of(3) && m.answers(now) {
                    m.asleep = Some(now);
                } else {
                    m.down = true;
                }
            }
        }),
        Fault::Reboots => reboots(proc, dice),
        Fault::BeginsNoStage => breaks(proc, dice, "begins no more stages", |m| m.begins_no_stage = true),
        Fault::EngineBroken => breaks(proc, dice, "starts no more containers", |m| m.engine_broken = true),
        Fault::FailsEarly => breaks(proc, dice, "lets each job fail early", |m| m.fails_early = true),
        Fault::FallsSick => sick::falls(proc, dice).await,
        Fault::PowerCut => power_cut(proc, starter, dice).await,
        Fault::RecordLost => record_lost(proc, dice),
        Fault::WallSteps => {
            let by = if dice.is_multiple_of(2) { DAY_MS } else { -DAY_MS };
            let mut world = proc.world.borrow_mut();
            world.on_host(0).for_each(|manager| manager.step_wall(by));
            world.cover.fault(Fault::WallSteps);
        }
        Fault::Copied => copied(proc, starter).await,
        Fault::Twin => twin(proc, dice).await,
        Fault::RunnerDies => runner_dies(proc, starter, dice, Fault::RunnerDies).await,
        Fault::ServiceDies => runner_dies(proc, starter, dice, Fault::ServiceDies).await,
        Fault::ConfigChanges => config_changes(proc, dice),
        Fault::Drained => drained(proc, starter, dice).await,
        other => proc.world.borrow_mut().broken(format!("`{other}` is no moment")),
    }
}

fn choose<T: Clone>(choices: &[T], dice: u64) -> Option<T> {
    let len = u64::try_from(choices.len()).ok().filter(|len| *len > 0)?;
    choices.get(usize::try_from(dice % len).ok()?).cloned()
}

/// An instance with a job dies: stopped, used up by what runs there, or gone altogether.
async fn dies_leased(proc: &Proc, dice: u64) {
    // Waits some time for an instance with a job.
    for _ in 0..60 {
        let struck = {
            let mut world = proc.world.borrow_mut();
            let held: Vec<InstanceId> = world
                .truth
                .live
                .values()
                .filter(|l| {
                    world.cloud.machines.get(&l.instance).is_some_and(|m| m.tags.is_some() && !m.down)
                })
                .map(|l| l.instance.clone())
                .collect();
            choose(&held, dice).map(|id| {
                world.cover.fault(Fault::DiesLeased);
                excuse_jobs(&mut world, &id, "its instance died");
                let runs = world.truth.sessions.values().any(|s| s.instance == id && s.attempt.is_some());
                let used_up = runs && dice.is_multiple_of(2) && !dice.is_multiple_of(3);
                let now = world.now;
                if dice.is_multiple_of(3) {
                    world.cloud.end(&id, now);
                } else if let Some(m) = world.cloud.machines.get_mut(&id) {
                    m.down = true;
                    m.used_up = used_up;
                }
                if used_up {
                    world.cover.fault(Fault::UsedUp);
                }
                let why = if used_up { "is used up" } else { "dies in use" };
                world.log_as("cloud", format_args!("{id} {why}"));
                world.steps.notify(&Channel::Instance(id));
            })
        };
        if struck.is_some() {
            return;
        }
        proc.pause(5_000).await;
    }
}

/// Excuses every job that may be affected by what happens to this instance.
pub(super) fn excuse_jobs(world: &mut World, id: &InstanceId, why: &'static str) {
    let mut jobs: Vec<u64> = world.truth.jobs_on(id).map(|l| l.job).collect();
    let granted = world.ledgers[0].journals.values().flat_map(|j| j.state().granted.values());
    jobs.extend(granted.filter(|g| g.instance == *id).map(|g| g.reservation.job.key.id));
    for job in jobs {
        world.truth.excuse(job, why);
    }
}

/// Something happens to an instance without a live job.
fn unused(proc: &Proc, dice: u64, act: impl FnOnce(&mut World, &InstanceId)) {
    let mut world = proc.world.borrow_mut();
    let held = |id: &InstanceId| world.truth.jobs_on(id).next().is_some();
    let free: Vec<InstanceId> = world
        .cloud
        .machines
        .values()
        .filter(|m| m.owned && !m.going && !held(&m.id))
        .map(|m| m.id.clone())
        .collect();
    let Some(id) = choose(&free, dice) else { return };
    let fault = if dice.is_multiple_of(2) { "is taken away" } else { "is touched" };
    world.log_as("cloud", format_args!("{id} {fault} from outside"));
    excuse_jobs(&mut world, &id, "its instance was touched from outside");
    act(&mut world, &id);
    let struck = if world.cloud.machines.contains_key(&id) { Fault::StoppedOutside } else { Fault::DiesIdle };
    world.cover.fault(struck);
    world.steps.notify(&Channel::Instance(id));
}

fn reboots(proc: &Proc, dice: u64) {
    let mut world = proc.world.borrow_mut();
    let now = world.now;
    // Static hosts matter most, because they return in the same state.
    let matters = |m: &Machine| dice.is_multiple_of(3) || m.tags.is_none();
    let up = world.cloud.machines.values().filter(|m| m.answers(now) && matters(m));
    let all: Vec<InstanceId> = up.map(|m| m.id.clone()).collect();
    let Some(id) = choose(&all, dice >> 8) else { return };
    world.log_as("cloud", format_args!("{id} reboots"));
    excuse_jobs(&mut world, &id, "its instance rebooted");
    if let Some(m) = world.cloud.machines.get_mut(&id) {
        m.up = Some(now + 4_000 + dice % 40_000);
        m.rebooted = true;
    }
    world.cover.fault(Fault::Reboots);
    world.steps.notify(&Channel::Instance(id));
}

/// A job has broken its instance for all that follow. Static hosts matter most, because they serve several domains.
fn breaks(proc: &Proc, dice: u64, what: &str, breaks: fn(&mut Machine)) {
    let mut world = proc.world.borrow_mut();
    let now = world.now;
    let matters = |m: &Machine| m.tags.is_none() || (m.owned && dice.is_multiple_of(3));
    let up = world.cloud.machines.values().filter(|m| m.answers(now) && matters(m));
    let all: Vec<InstanceId> = up.map(|m| m.id.clone()).collect();
    let Some(id) = choose(&all, dice >> 8) else { return };
    world.log_as("cloud", format_args!("{id} {what}"));
    if let Some(m) = world.cloud.machines.get_mut(&id) {
        breaks(m);
    }
}

/// The record of an instance with a job is lost; the job continues.
fn record_lost(proc: &Proc, dice: u64) {
    let mut world = proc.world.borrow_mut();
    let held = world.truth.live.values().map(|l| (l.pool.clone(), l.instance.clone()));
    let held: Vec<(PoolName, InstanceId)> = held
        .filter(|(pool, id)| {
            let recorded =
                world.ledgers[0].journals.get(pool).is_some_and(|j| j.state().instance(id).is_some());
            recorded && world.cloud.machines.get(id).is_some_and(|m| m.owned && !m.going)
        })
        .collect();
    let Some((pool, id)) = choose(&held, dice) else { return };
    world.cover.fault(Fault::RecordLost);
    world.log_as("operator", format_args!("mends the journal; {id} is not in it any more"));
    excuse_jobs(&mut world, &id, "the record of its instance was lost");
    if let Some(machine) = world.cloud.machines.get_mut(&id) {
        machine.orphaned = true;
    }
    world.ledgers[0].journal(&pool).mend(|state| {
        state.instances.remove(&id);
        state.granted.retain(|_, grant| grant.instance != id);
    });
}

/// Every process of a runner host dies, and the last records are lost. Some time later it boots again.
async fn power_cut(proc: &Proc, starter: &Starter, dice: u64) {
    let (host, struck) = {
        let mut world = proc.world.borrow_mut();
        let host = second::struck(&world, dice);
        let there = |(number, manager): (usize, &Manager)| (manager.place.host == host).then_some(number);
        let struck: Vec<usize> = world.partners(0).filter_map(there).collect();
        // The host is without power already.
        if struck.iter().any(|manager| !world.managers[*manager].on) {
            return;
        }
        world.cover.fault(Fault::PowerCut);
        let dies = |p: &super::process::Process| p.kind != Kind::Outside || p.runner.is_some();
        let dying: Vec<Pid> = world
            .processes
            .iter()
            .filter(|(_, p)| struck.contains(&p.manager) && p.exit.is_none() && dies(p))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in dying {
            world.doom(pid);
        }
        let now = world.now;
        let mut dead = BTreeSet::new();
        for manager in world.on_host(host) {
            manager.runners.values_mut().for_each(|runner| runner.alive = false);
            dead.extend(manager.runners.keys().copied());
            manager.on = false;
            manager.reboot(now);
            if dice.is_multiple_of(4) {
                // The newest directories were not on disk either.
                let mut directory = manager.directory.borrow_mut();
                let newest = directory.attempts.keys().next_back().cloned();
                newest.map(|name| directory.attempts.remove(&name));
            }
        }
        abandon_jobs(&mut world, &dead);
        let mut lost = 0;
        for (number, journal) in world.ledgers[0].journals.values_mut().enumerate() {
            lost += journal.lose(now, usize::try_from((dice >> (8 * number)) % 12).unwrap_or(0));
        }
        world.truth.resuming.clear();
        offerings::records_lost(&mut world);
        stages::records_lost(&mut world);
        early::records_lost(&mut world);
        // Without power, nobody makes passes.
        world.truth.held_up.clear();
        world.log_as("power", format_args!("cut, {lost} records lost"));
        (host, struck)
    };
    proc.pause(20_000 + dice % 60_000).await;
    {
        let mut world = proc.world.borrow_mut();
        let now = world.now;
        for manager in world.on_host(host) {
            manager.on = true;
            manager.reboot(now);
        }
        world.truth.excused = now;
        world.log_as("power", format_args!("back"));
        world.steps.notify(&Channel::Work(1));
    }
    for manager in struck {
        workload::runners(&proc.world, starter, manager);
    }
    proc.world.borrow_mut().steps.notify(&QUEUE);
}

/// GitLab gives up the jobs of dead runners.
fn abandon_jobs(world: &mut World, dead: &BTreeSet<u32>) {
    let running = world.truth.running.iter().filter(|(_, runner)| dead.contains(*runner));
    let gone: Vec<u64> = running.map(|(id, _)| *id).collect();
    world.truth.live.retain(|_, live| !gone.contains(&live.job));
    for id in gone {
        world.truth.running.remove(&id);
        world.truth.results.insert(id, JobResult::Abandoned);
    }
}

/// A runner dies: alone, or with everything in its control group.
async fn runner_dies(proc: &Proc, starter: &Starter, dice: u64, fault: Fault) {
    let (manager, opaque) = {
        let mut world = proc.world.borrow_mut();
        let runners = world.partners(0).flat_map(|(number, m)| m.runners.iter().map(move |r| (number, r)));
        let alive = runners.filter(|(_, (_, runner))| runner.alive);
        let alive: Vec<(usize, u32)> = alive.map(|(manager, (number, _))| (manager, *number)).collect();
        let Some((manager, number)) = choose(&alive, dice) else { return };
        world.cover.fault(fault);
        world.log_as("fate", format_args!("runner{number} dies"));
        let whole = fault == Fault::ServiceDies;
        let dying: Vec<Pid> = world
            .processes
            .iter()
            .filter(|(_, p)| p.exit.is_none() && p.runner == Some(number))
            .filter(|(_, p)| whole || p.kind == Kind::Outside)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in dying {
            world.doom(pid);
        }
        let now = world.now;
        world.truth.excused = now;
        abandon_jobs(&mut world, &BTreeSet::from([number]));
        let opaque = world.managers[manager].runners.get_mut(&number).is_some_and(|r| {
            r.alive = false;
            r.opaque
        });
        let left: Vec<Pid> =
            world.processes.iter().filter(|(_, p)| p.runner == Some(number)).map(|(pid, _)| *pid).collect();
        for pid in left {
            world.steps.notify(&Channel::Signal(pid));
        }
        (manager, opaque)
    };
    proc.pause(2_000 + dice % 30_000).await;
    if proc.world.borrow().managers[manager].on {
        workload::runner(&proc.world, starter, manager, opaque);
    }
}

/// A copy of the state directory starts on a second machine, with a keeper and a reap of its own.
async fn copied(proc: &Proc, starter: &Starter) {
    let manager = {
        let mut world = proc.world.borrow_mut();
        world.cover.fault(Fault::Copied);
        let now = world.stamp(0);
        let copy = world.managers[0]
            .directory
            .borrow()
            .copied(now, "the state directory was copied to another machine");
        let ledger = world.ledgers[0].clone();
        let place = Place {
            ledger: world.ledgers.len(),
            host: world.managers.len(),
            boot: 1_000_000,
            ..world.managers[0].place
        };
        let began = world.now;
        world.ledgers.push(ledger);
        world.managers.push(Manager::new(Rc::new(RefCell::new(copy)), place, began));
        world.managers.len() - 1
    };
    for _ in 0..3 {
        starter.start(&proc.world, Command::Reap, "reap of the copy".to_owned(), manager, None);
        let keep = Command::Keep { service: false };
        starter.start(&proc.world, keep, "keep of the copy".to_owned(), manager, None);
        proc.pause(200_000).await;
    }
    let mut world = proc.world.borrow_mut();
    let left: Vec<Pid> = world
        .processes
        .iter()
        .filter(|(_, p)| p.manager == manager && p.exit.is_none())
        .map(|(pid, _)| *pid)
        .collect();
    for pid in left {
        world.doom(pid);
    }
}

/// Another keeper with the same owner ID launches an instance, and terminates it after a while.
async fn twin(proc: &Proc, dice: u64) {
    let pool = PoolName::new("cloud");
    let id = InstanceId::new(format!("cloud-twin-{}", proc.pid.0));
    {
        let mut world = proc.world.borrow_mut();
        world.cover.fault(Fault::Twin);
        let owner = world.managers[0].directory.borrow().owner.clone();
        let known = world.managers[0].directory.borrow().generations.iter().next().cloned();
        // Sometimes a known generation, with a number that was never issued.
        let (generation, number) = match known {
            Some(generation) if dice.is_multiple_of(2) => (generation, 1_000_000),
            _ => (Generation::new("twin"), 1),
        };
        let keys = InstanceKeys {
            authorized_key: String::new(),
            host_key: String::new(),
            host_key_public: "ssh-ed25519 twin".to_owned(),
        };
        let tags = Tags { pool, owner, generation, number };
        let request = LaunchRequest {
            instance: id.clone(),
            token: format!("{id}/1"),
            tags,
            offering: None,
            keys,
            lifetime: None,
            order: None,
        };
        let plan = BootPlan { takes: Some(10_000), passes: true, goes: 1_000, hidden: 0 };
        let now = world.now;
        world.cloud.make(&request, plan, now, false);
    }
    proc.pause(60_000 + dice % 400_000).await;
    let mut world = proc.world.borrow_mut();
    let now = world.now;
    if !world.cloud.machines.contains_key(&id) {
        world.broken(format!("promise 4: {id}, another manager's, is gone"));
    }
    world.cloud.end(&id, now);
}

/// The operator changes the policy.
fn config_changes(proc: &Proc, dice: u64) {
    let mut world = proc.world.borrow_mut();
    world.cover.fault(Fault::ConfigChanges);
    let pool = PoolName::new("cloud");
    let old = Rc::clone(&world.config[&pool]);
    let most = 3 + u32::try_from(dice % 6).unwrap_or(0);
    let idle_count = u32::try_from((dice >> 8) % 4).unwrap_or(0);
    let idle = IdlePolicy { idle_count, ..old.policy.idle };
    let policy = Policy { max_instances: most, idle, ..(*old.policy).clone() };
    // A pass decides by the policy that it began with, and one of its calls may hang for two minutes.
    let until = world.now + 150_000;
    // Twice within a minute: a decision under the first policy may still be under way.
    let before =
        world.truth.old_limits.get(&pool).filter(|(until, _)| world.now < *until).map_or(0, |(_, n)| *n);
    world.truth.old_limits.insert(pool.clone(), (until, before.max(old.policy.max_instances)));
    world.log_as("operator", format_args!("max_instances = {most}, idle_count = {idle_count}"));
    let plan = PoolPlan { policy: Arc::new(policy), ..(*old).clone() };
    world.config.insert(pool, Rc::new(plan));
}

/// The operator drains a pool and resumes it some minutes later.
async fn drained(proc: &Proc, starter: &Starter, dice: u64) {
    let pool = PoolName::new("cloud");
    proc.world.borrow_mut().cover.fault(Fault::Drained);
    operator::command(proc, starter, &pool, Order::Drain).await;
    proc.pause(30_000 + dice % 200_000).await;
    operator::command(proc, starter, &pool, Order::Resume).await;
}
