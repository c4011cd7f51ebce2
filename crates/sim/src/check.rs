//! Checks promises 1 to 5 against the truth, after every step.
//!
//! Independent of `plan`: it compares what really exists with what was requested and recorded. What the engine
//! concludes does not count here.

use std::time::Duration;

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, InstanceId, Location, PoolName};
use greenroom_core::instance::{Answer, DrainReason, Instance, Phase};
use greenroom_core::invariants;
use greenroom_core::job::{JobFacts, Reservation};
use greenroom_core::plan::health::HOLD;
use greenroom_core::policy::{Policy, Reuse};
use greenroom_core::pool::PoolState;
use greenroom_core::time::Stamp;
use greenroom_core::unbegun::CheckKind;
use greenroom_ports::provider::LaunchRequest;
use greenroom_testkit::memory_host::AttemptDir;

use super::cloud::Machine;
use super::fault::Fault;
use super::provider::HERE;
use super::rig::Order;
use super::truth::{EARLIER, Live, Session};
use super::world::{Manager, World};
use crate::exec::Pid;
use crate::{early, images, keeping, lists, offerings, orders, sick, stages, stopped};

/// Promise 5 allows this much waiting, besides a poll and a pass: the missing keeper has to be noticed (3 s for its
/// lock), its list and load have to return (up to 1.5 s), and a wake-up may be lost.
pub(super) const ALLOWANCE_MS: u64 = 15_000;
/// A keeper checks an instance within this after its job, although a call of the provider may hang meanwhile.
const UNTIL_CHECKED: Duration = Duration::from_mins(3);
/// The time that a termination may wait on a full disk, besides the pause after a failed call.
const HELD_UP_MS: u64 = 60_000;

/// The jobs that may share, by an independent reading of the policy.
pub(super) fn domain(reuse: Reuse, job: &JobFacts) -> String {
    let protected = if job.protected { " on protected refs" } else { "" };
    match reuse {
        Reuse::Any => "everybody".to_owned(),
        Reuse::Project => format!("{}{protected}", job.project),
        Reuse::Namespace => {
            let namespace = job.project.split('/').next().unwrap_or_default();
            format!("{namespace}{protected}")
        }
    }
}

fn policy(world: &World, pool: &PoolName) -> std::sync::Arc<Policy> {
    std::sync::Arc::clone(&world.config[pool].policy)
}

fn is_moved(world: &World, manager: usize) -> bool {
    world.managers[manager].directory.borrow().moved.is_some()
}

/// The limit that applied when a decision now under way was made.
fn limit(world: &World, pool: &PoolName) -> u32 {
    let old = world.truth.old_limits.get(pool).filter(|(until, _)| world.now < *until).map_or(0, |(_, n)| *n);
    old.max(world.config[pool].policy.max_instances)
}

/// Promises 2 and 3, when a launch is sent to the provider.
pub(super) fn launch_requested(world: &mut World, manager: usize, request: &LaunchRequest) {
    let id = &request.instance;
    let pool = &request.tags.pool;
    if is_moved(world, manager) {
        world.broken(format!("promise 2: a copied state directory launches {id}"));
    }
    match world.truth.requested.get(&request.token) {
        Some(before) if before != request => {
            world.broken(format!("promise 2: token {} is used for two different launches", request.token));
        }
        Some(_) if !world.config[pool].capabilities.idempotent_launch => {
            world.broken(format!("promise 2: {id} is launched again where a token makes no launch unique"));
        }
        _ => {}
    }
    if request.order.is_some() && !world.config[pool].capabilities.orders {
        world.broken(format!("promise 2: {id} is launched for a job where the provider makes no orders"));
    }
    world.truth.requested.insert(request.token.clone(), request.clone());
    let mut counted: std::collections::BTreeSet<&InstanceId> =
        world.cloud.billing(pool).map(|m| &m.id).collect();
    // Launches under way count, too: the cloud may accept each of them.
    counted.extend(world.truth.in_flight.values().filter(|(_, p)| p == pool).map(|(id, _)| id));
    counted.insert(id);
    let count = counted.len();
    let limit = limit(world, pool);
    if count > usize::try_from(limit).unwrap_or(usize::MAX) {
        world.broken(format!("promise 2: launching {id} makes {count} instances, limit {limit}"));
    }
    let intended = |state: &PoolState| {
        let launch = state.instance(id).and_then(|i| i.launch.as_ref());
        launch
            .is_some_and(|l| format!("{id}/{}", l.attempt) == request.token && l.offering == request.offering)
    };
    let journal = world.journal(manager, pool);
    if !intended(journal.state()) {
        world.broken(format!("promise 3: {id} is launched without a recorded intent"));
    } else if !intended(journal.synced()) {
        world.broken(format!("promise 3: {id} is launched before its intent is on the disk"));
    }
}

/// Promise 2, when a launch arrives whose instance exists with another token: a second instance. Excused if the cloud
/// denied the first one.
pub(super) fn launched_twice(world: &mut World, request: &LaunchRequest) {
    let id = &request.instance;
    let Some(first) = world.cloud.machines.get(id).map(|machine| machine.token.clone()) else { return };
    if !world.truth.lies.contains(&first) {
        world.broken(format!("promise 2: {} launches {id} a second time, after {first}", request.token));
    }
}

/// Promise 3, when a pass cannot reserve room or write its report: a full disk holds up no termination.
pub(super) fn disk_full(world: &mut World, manager: usize, pool: &PoolName) {
    // An effect that hangs holds up its own instance.
    if is_moved(world, manager) || world.scenario.windows.have(Fault::Hangs) {
        return;
    }
    let state = world.journal(manager, pool).state().clone();
    // No call reaches the other account, which has nothing.
    let is_reached = |i: &Instance| !i.is_static() && !i.is_outside(&Location::new(HERE));
    let is_due =
        |i: &Instance| matches!(i.phase, Phase::Draining { .. }) && i.holders.is_empty() && is_reached(i);
    for instance in state.instances.values().filter(|i| is_due(i)) {
        let now = world.now;
        // A call that failed before is repeated only after a pause.
        if world.truth.pauses.get(&instance.id).is_some_and(|until| now < *until) {
            world.truth.held_up.remove(&instance.id);
            continue;
        }
        let (since, errors) = world.truth.held_up.entry(instance.id.clone()).or_insert((now, 0));
        *errors += 1;
        // Two errors a pass.
        if *errors > 10 && now > *since + HELD_UP_MS {
            let id = instance.id.clone();
            world.broken(format!("promise 3: a full disk holds up the termination of {id}"));
        }
    }
}

/// A termination was answered. After a failure, the next call may wait for the longest pause.
pub(super) fn terminate_answered(world: &mut World, pool: &PoolName, id: &InstanceId, failed: bool) {
    let longest = policy(world, pool).timing.launch_backoff_max;
    let until = world.now + u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    if failed {
        world.truth.pauses.insert(id.clone(), until);
    } else {
        world.truth.pauses.remove(id);
    }
}

/// Promise 4, when a termination is sent to the provider.
pub(super) fn terminate_requested(world: &mut World, manager: usize, id: &InstanceId) {
    world.truth.held_up.remove(id);
    if is_moved(world, manager) {
        world.broken(format!("promise 4: a copied state directory terminates {id}"));
    }
    let Some(target) = world.cloud.machines.get(id) else { return };
    let owner = world.managers[manager].directory.borrow().owner.clone();
    let owner_text = match &target.tags {
        None => Some("the operator's own host"),
        Some(tags) if tags.owner != owner => Some("somebody else's"),
        Some(_) if !target.owned => Some("another manager's"),
        Some(_) => None,
    };
    if let Some(owner_text) = owner_text {
        world.broken(format!("promise 4: {id}, {owner_text}, is terminated"));
        return;
    }
    let dead = target.down || target.going;
    if dead {
        return; // its job has lost it already
    }
    let holder = world.truth.jobs_on(id).next().map(|live| live.job);
    if let Some(job) = holder.or_else(|| prepares_on(world, manager, id)) {
        world.broken(format!("promise 4: {id} is terminated while job {job} holds it"));
    }
}

/// A job whose `prepare` still lives and was granted the instance.
fn prepares_on(world: &World, manager: usize, id: &InstanceId) -> Option<u64> {
    let granted = world.ledger(manager).journals.values().flat_map(|j| &j.state().granted);
    let mut there = granted.filter(|(_, grant)| grant.instance == *id);
    let lives = |pid: Pid| world.lives(pid) && world.runner_lives(pid);
    let prepares = |manager: &Manager, dir: &AttemptDir| {
        let open = dir.closed.is_none() && dir.boot == manager.boot();
        open && dir.shared.values().any(|pid| lives(Pid(*pid)))
    };
    let found = there.find(|(name, _)| world.attempt(manager, name, prepares) == Some(true));
    found.map(|(_, grant)| grant.reservation.job.key.id)
}

/// Promise 1, when a session begins on an instance.
pub(super) fn session_begun(world: &mut World, pid: Pid, session: Session) {
    let id = session.instance.clone();
    if let Some(attempt) = &session.attempt
        && let Some((pool, facts)) = world.truth.attempts.get(attempt).cloned()
    {
        let policy = policy(world, &pool);
        let domain = domain(policy.reuse, &facts);
        let guests = world.truth.guests.entry(id.clone()).or_default();
        guests.ever.insert(attempt.clone());
        let uses = guests.ever.len();
        let before = guests.domain.replace(domain.clone());
        if let Some(before) = before.filter(|before| *before != domain) {
            world.broken(format!("promise 1: {id} served `{before}` and now serves `{domain}`"));
        }
        if policy.max_use_count.is_some_and(|most| uses > usize::try_from(most).unwrap_or(usize::MAX)) {
            world.broken(format!("promise 1: {id} is used {uses} times"));
        }
    }
    if let Some(attempt) = &session.attempt {
        orders::session_begun(world, &id, attempt);
    }
    world.truth.sessions.insert(pid, session);
    let on_it = world.truth.sessions.values().filter(|s| s.instance == id);
    let guests: std::collections::BTreeSet<_> = on_it.filter_map(|s| s.attempt.as_ref()).collect();
    let capacity = capacity(world, &id);
    if guests.len() > capacity {
        let count = guests.len();
        world.broken(format!("promise 1: {count} jobs run on {id}, capacity {capacity}"));
    }
}

fn capacity(world: &World, id: &InstanceId) -> usize {
    let pool = world.cloud.machines.get(id).map(|m| &m.pool);
    pool.map_or(usize::MAX, |pool| {
        usize::try_from(world.config[pool].policy.capacity_per_instance).unwrap_or(usize::MAX)
    })
}

/// Promise 1, when `prepare` has reported its instance to a job.
pub(super) fn promised(world: &mut World, attempt: &AttemptName, live: Live) {
    let id = live.instance.clone();
    world.truth.live.insert(attempt.clone(), live);
    let jobs = world.truth.jobs_on(&id).count();
    let capacity = capacity(world, &id);
    if jobs > capacity {
        world.broken(format!("promise 1: {id} is promised to {jobs} jobs, capacity {capacity}"));
    }
}

/// A command of the operator's begins.
pub(super) fn command_begun(world: &mut World, id: &InstanceId, command: &str) {
    let job = world.truth.jobs_on(id).next().map(|l| l.job);
    if let Some(job) = job.filter(|_| command == "clean") {
        world.broken(format!("promise 4: {id} is cleaned while job {job} holds it"));
    }
    if let Some(guests) = world.truth.guests.get_mut(id).filter(|_| command == "clean") {
        guests.cleaned_unbound = guests.unbound;
    }
}

/// Promise 3, when a command of the operator's has succeeded: nobody repeats it, so a power cut must not undo it.
pub(super) fn ordered(world: &mut World, pool: &PoolName, order: &Order) {
    let drained = match order {
        Order::Drain => true,
        Order::Resume => false,
        Order::Return(_) | Order::ForgetElsewhere => return,
    };
    let journal = world.ledgers[0].journal(pool);
    // Another command may have come since.
    let stands = journal.state().drained.is_some() == drained;
    if stands && journal.synced().drained.is_some() != drained {
        world.broken(format!("promise 3: {order:?} of {pool} has succeeded, and a power cut would undo it"));
    }
}

/// A cleaning succeeded.
pub(super) fn cleaned(world: &mut World, id: &InstanceId) {
    images::cleaned(world, id);
    let unbinds = world.cloud.machines.get(id).is_some_and(|m| world.config[&m.pool].policy.clean_unbinds);
    let Some(guests) = world.truth.guests.get_mut(id) else { return };
    if unbinds || guests.cleaned_unbound || guests.domain.as_deref() == Some(EARLIER) {
        guests.domain = None;
        guests.unbound = false;
        guests.cleaned_unbound = false;
    }
}

/// True if each host of the pool is recorded as bound to another trust domain, and stays so. A host that is not recorded,
/// because complete lists omit it, does not exist for Greenroom.
pub(super) fn is_shut_out(world: &World, pool: &PoolName, job: &JobFacts) -> bool {
    let policy = policy(world, pool);
    let Some(journal) = world.ledgers[0].journals.get(pool) else { return false };
    let domain = policy.domain_of(job);
    let hosts = world.cloud.machines.values().filter(|m| m.pool == *pool && m.tags.is_none());
    let mut hosts = hosts
        .map(|m| (&m.id, journal.state().instance(&m.id)))
        .filter(|(id, host)| host.is_some() || !is_omitted(world, pool, id))
        .peekable();
    let bound = |host: Option<&Instance>| host.is_some_and(|host| !host.admits(&domain));
    !policy.clean_unbinds && hosts.peek().is_some() && hosts.all(|(_, host)| bound(host))
}

/// True if the lists of the pool omit the instance now, or the last one did.
fn is_omitted(world: &World, pool: &PoolName, id: &InstanceId) -> bool {
    let until = world.truth.omitted.get(pool).filter(|(_, omitted)| omitted == id).map(|(until, _)| *until);
    let interval = policy(world, pool).timing.list_interval;
    until.is_some_and(|until| Duration::from_millis(world.now.saturating_sub(until)) < interval)
}

/// Promise 3, when an attempt's directory is removed.
pub(super) fn attempt_forgotten(world: &mut World, manager: usize, name: &AttemptName) {
    let open = {
        let directory = world.managers[manager].directory.borrow();
        directory.attempts.get(name).is_some_and(|dir| dir.closed.is_none() || !dir.shared.is_empty())
    };
    if open || world.truth.live.contains_key(name) {
        world.broken(format!("promise 3: the directory of attempt {name} is removed while it is in use"));
    }
}

/// Promises 1, 2 and 5, when events were recorded.
pub(super) fn committed(world: &mut World, manager: usize, pool: &PoolName, events: &[Event]) {
    if events.is_empty() {
        return;
    }
    // Each check gets one event, and the state after the whole transaction.
    let state = world.journal(manager, pool).state().clone();
    for event in events {
        offerings::committed(world, manager, pool, event);
        stages::committed(world, manager, &state, event);
        sick::committed(world, manager, &state, event);
        early::committed(world, manager, &state, event);
        stopped::committed(world, &event.change);
        lists::committed(world, manager, pool, &state, event);
        orders::committed(world, pool, &state, &event.change);
        match &event.change {
            Change::LaunchIntended { instance, location, .. } => {
                world.truth.nowhere.remove(instance);
                let other = state.instances.values().find(|i| i.location != *location && !i.is_refused());
                if let Some(other) = other.filter(|i| location.is_some() && i.location.is_some()) {
                    world.broken(format!(
                        "promise 3: {instance} is launched in another account than {}",
                        other.id
                    ));
                }
                // A refused launch is only a name: nothing was created.
                let count = state.instances.values().filter(|i| !i.is_refused()).count();
                let limit = usize::try_from(limit(world, pool)).unwrap_or(usize::MAX);
                if count > limit {
                    world.broken(format!("promise 2: {instance} makes {count} records, limit {limit}"));
                }
            }
            Change::LaunchAnswered { instance, answer: Answer::Refused { .. }, .. } => {
                world.truth.nowhere.insert(instance.clone());
            }
            Change::Located { instance, .. } => {
                world.truth.nowhere.remove(instance);
            }
            Change::Unbound { instance } => {
                if let Some(guests) = world.truth.guests.get_mut(instance) {
                    guests.unbound = true;
                }
                // They may have been refused just before.
                for job in state.waiting.values().map(|waits| waits.job.key.id) {
                    world.truth.excuse(job, "a host was unbound meanwhile");
                }
            }
            Change::Forgotten { instance } => {
                let runs = |m: &Machine| m.owned && m.tags.is_some() && !m.going && !m.orphaned;
                // A refused launch is nowhere. One that was made after all is reaped once a list of its account shows it.
                let nowhere = world.truth.nowhere.contains(instance)
                    && world.truth.elsewhere.contains(&(manager, pool.clone()));
                if !nowhere && world.cloud.machines.get(instance).is_some_and(runs) {
                    world.broken(format!("promise 3: {instance} is forgotten while it runs"));
                }
            }
            Change::Granted { attempt, instance } => {
                if is_moved(world, manager) {
                    world.broken(format!("promise 4: a copied state directory grants {instance}"));
                }
                let ready = state.instance(instance).and_then(|i| i.ready);
                let trusted = ready.is_some_and(|ready| world.trusts(manager, ready));
                if state.granted.contains_key(attempt) && !trusted {
                    world.broken(format!("promise 1: {instance} of an earlier boot is granted to {attempt}"));
                }
            }
            Change::DrainingBegun { instance, reason: DrainReason::Unresponsive { .. } } => {
                thrown_away(world, manager, &state, instance);
            }
            _ => {}
        }
    }
    images::committed(world, manager, &state, events);
    if let Some(law) = invariants::check(&state).into_iter().next() {
        world.broken(format!("promise 1: {law}"));
    }
    let key = (world.managers[manager].place.ledger, pool.clone());
    // Only the moment is noted here; `after_step` judges how long a job has waited.
    match unserved(world, manager, &state) {
        Some(pair) => {
            let now = world.now;
            world.truth.unserved.entry(key).or_insert((now, pair));
        }
        None => {
            world.truth.unserved.remove(&key);
        }
    }
}

/// Promise 4: while the manager's network fails, instances that look unreachable together are kept.
fn thrown_away(world: &mut World, manager: usize, state: &PoolState, drained: &InstanceId) {
    let Some(cut) = world.scenario.windows.open(Fault::NetworkCut, world.now) else { return };
    let now = world.stamp(manager);
    let since_cut = Duration::from_millis(world.now - cut.from).min(HOLD);
    // One that the provider has lost meanwhile says nothing about the network.
    let is_silent = |i: &Instance| {
        let just_now = i.since == now
            && matches!(&i.phase, Phase::Draining { reason: DrainReason::Unresponsive { .. } });
        (i.phase == Phase::Ready || just_now)
            && i.unreachable.as_ref().is_some_and(|why| now.since(why.since) < since_cut)
    };
    let silent = state.instances.values().filter(|i| is_silent(i)).count();
    if silent >= 3 && state.instance(drained).is_some_and(is_silent) {
        world.broken(format!(
            "promise 4: {drained} is thrown away with {silent} others in a fault of the network"
        ));
    }
}

/// True if it gets no job until the keeper's own stage has begun there, or until the keeper has had time to check it after
/// its last job.
fn waits_for_keeper(world: &World, now: Stamp, instance: &Instance) -> bool {
    let is_new = |left: Stamp| now.since(left) < UNTIL_CHECKED;
    if instance.awaits_recheck() && instance.released.is_some_and(is_new) {
        return true;
    }
    match instance.awaits_check() {
        None => false,
        Some(CheckKind::Stages) => world.truth.unbegun.get(&instance.id).is_some_and(|row| row.len() > 1),
        Some(CheckKind::Engine | CheckKind::Network) => world.truth.suspect.contains(&instance.id),
    }
}

/// A waiting job whose `prepare` lives, and a healthy idle instance that it could have.
fn unserved(world: &World, manager: usize, state: &PoolState) -> Option<String> {
    if state.drained.is_some() || state.waiting.is_empty() || is_moved(world, manager) {
        return None;
    }
    let now = world.stamp(manager);
    let prepares = |_: &Manager, dir: &AttemptDir| dir.closed.is_none() && !dir.shared.is_empty();
    for job in state.waiting.values() {
        if world.attempt(manager, &job.attempt, prepares) != Some(true) {
            continue;
        }
        let free = state
            .instances
            .values()
            .find(|i| !waits_for_keeper(world, now, i) && may_serve(world, manager, state, (job, i)));
        if let Some(free) = free {
            return Some(format!("job {} waits, {} is free", job.job.key, free.id));
        }
    }
    None
}

/// True if the job could have the instance now, which responds. That it has to be checked first does not count.
pub(super) fn may_serve(
    world: &World,
    manager: usize,
    state: &PoolState,
    (job, instance): (&Reservation, &Instance),
) -> bool {
    let Some(policy) = state.policy.as_ref() else { return false };
    let id = &instance.id;
    let room = instance.free_slots().min(instance.uses_left.unwrap_or(u32::MAX)) > 0;
    let here = instance.ready.is_some_and(|ready| world.trusts(manager, ready));
    let trusted = instance.domain.as_ref().is_none_or(|d| *d == job.domain);
    let lifetime = instance.lifetime(policy).is_none_or(|most| {
        world.stamp(manager).since(instance.created).saturating_add(job.job.timeout) <= most
    });
    // An instance that an open attempt's directory names is not idle, whatever the record has.
    let idle = !instance.holders.is_empty() || !world.is_named(manager, id);
    let own = instance.ordered.as_ref().map(|ordered| &ordered.attempt);
    let wants_own = job.job.order.as_ref().map(|_| &job.attempt);
    let healthy = world.cloud.machines.get(id).is_some_and(|m| m.answers(world.now));
    instance.phase == Phase::Ready
        && instance.unreachable.is_none()
        && own == wants_own
        && room
        && here
        && trusted
        && lifetime
        && idle
        && healthy
}

/// Promises 3 and 5, after every step: no job waits beside a free instance for longer than it takes to notice, and a
/// keeper is running while there is work.
pub(super) fn after_step(world: &mut World) {
    keeping::after_step(world);
    unserved_for_long(world);
}

fn unserved_for_long(world: &mut World) {
    if world.truth.unserved.is_empty() {
        return;
    }
    let mut late = None;
    for ((ledger, pool), (since, pair)) in &world.truth.unserved {
        let timing = &world.config[pool].policy.timing;
        let interval = timing.waiter_poll_interval + timing.pass_interval;
        let allowed = ALLOWANCE_MS + u64::try_from(interval.as_millis()).unwrap_or(0);
        let begun = (*since).max(world.truth.excused);
        if world.now > begun + allowed {
            let problem = format!("promise 5: {pair} since {} ms", world.now - since);
            late = Some((*ledger, pool.clone(), problem));
        }
    }
    let Some((ledger, pool, problem)) = late else { return };
    let Some(manager) = world.managers.iter().position(|m| m.place.ledger == ledger) else { return };
    // An event since the last commit (an instance died, a call exited) may have changed this.
    let state = world.journal(manager, &pool).state().clone();
    if unserved(world, manager, &state).is_some() {
        world.broken(problem);
    } else {
        world.truth.unserved.remove(&(ledger, pool));
    }
}
