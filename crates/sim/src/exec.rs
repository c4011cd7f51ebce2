//! The loop in which the seed picks the next step.
//!
//! One thread, no runtime: a process is polled only when one of its steps was picked. When no step is runnable, the
//! clock moves to the next deadline. To kill a process is to drop its future, which releases what it held.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use greenroom_core::ids::{AttemptName, InstanceId, PoolName};

use crate::fault::Fault;
use crate::process::{Exit, Kind, Shared};
use crate::world::{Body, World};
use crate::{check, keeping};

/// A planned kill: hits the process of that kind that is about to make its n-th call from then on.
#[derive(Debug, Clone, Copy)]
pub struct PlannedKill {
    pub kind: Kind,
    pub from: u64,
    pub calls: u64,
}

/// The highest number of steps. If there are more, processes must be looping.
const MOST_STEPS: u64 = 2_000_000;

/// A running world.
#[derive(Debug)]
pub struct Executor {
    world: Shared,
    bodies: Bodies,
    kills: Vec<PlannedKill>,
    /// Steps taken.
    pub steps: u64,
}

#[derive(Default)]
struct Bodies(BTreeMap<Pid, Body>);

impl std::fmt::Debug for Bodies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Executor {
    pub fn new(world: Shared) -> Self {
        let kills = world.borrow().scenario.kills.clone();
        Self { world, bodies: Bodies::default(), kills, steps: 0 }
    }

    /// Runs until `end`, until a promise is broken, or until nothing can happen any more.
    pub fn run_until(&mut self, end: u64) {
        self.admit();
        loop {
            let place = {
                let mut world = self.world.borrow_mut();
                let now = world.now;
                world.steps.elapse(now);
                if world.wrong.is_some() || now >= end {
                    return;
                }
                if world.steps.runnable() == 0 {
                    if !move_clock(&mut world, end) {
                        return;
                    }
                    continue;
                }
                let count = world.steps.runnable();
                world.streams.scheduling.index(count)
            };
            self.take_step(place);
        }
    }

    fn take_step(&mut self, place: usize) {
        let taken = self.world.borrow_mut().steps.take(place);
        let Some((id, pid, call)) = taken else { return };
        if self.stalls(id, pid, call) {
            return;
        }
        self.steps += 1;
        if self.steps == MOST_STEPS {
            self.world.borrow_mut().broken(format!("{MOST_STEPS} steps: somebody runs in circles"));
        }
        if self.killed_here(pid, call) {
            self.kill(pid);
        } else {
            let waker = self.world.borrow_mut().steps.pick(id);
            if let Some(waker) = waker {
                waker.wake();
            }
            self.poll(pid);
        }
        self.settle();
    }

    /// Does what follows each step: new and doomed processes, wake-ups, the clock, the checker.
    fn settle(&mut self) {
        self.admit();
        loop {
            let doomed = std::mem::take(&mut self.world.borrow_mut().doomed);
            if doomed.is_empty() {
                break;
            }
            for pid in doomed {
                self.kill(pid);
            }
        }
        let mut world = self.world.borrow_mut();
        world.deliver_news();
        check::after_step(&mut world);
        // A step takes a moment, so that deadlines fall due between the steps of other processes.
        let took = world.streams.scheduling.below(3) / 2;
        let to = world.now + took;
        set_clock(&mut world, to);
    }

    fn admit(&mut self) {
        loop {
            let born = std::mem::take(&mut self.world.borrow_mut().newborn.0);
            if born.is_empty() {
                return;
            }
            for (pid, body) in born {
                self.bodies.0.insert(pid, body);
                self.poll(pid);
            }
        }
    }

    fn poll(&mut self, pid: Pid) {
        let Some(mut body) = self.bodies.0.remove(&pid) else { return };
        match body.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => {
                self.bodies.0.insert(pid, body);
                let mut world = self.world.borrow_mut();
                if !world.steps.has_step(pid) {
                    let name = world.processes[&pid].name.clone();
                    world.broken(format!("{name} waits for something that is no port call"));
                }
            }
            Poll::Ready(code) => {
                drop(body);
                self.ended(pid, Exit::Code(code));
            }
        }
    }

    fn ended(&mut self, pid: Pid, exit: Exit) {
        let mut world = self.world.borrow_mut();
        if world.processes.get(&pid).is_none_or(|p| p.exit.is_some()) {
            return;
        }
        world.log(pid, format_args!("{exit}"));
        if let Some(process) = world.processes.get_mut(&pid) {
            process.exit = Some(exit);
        }
        keeping::process_ended(&mut world, pid, exit);
        world.steps.notify(&Channel::Exit(pid));
    }

    fn kill(&mut self, pid: Pid) {
        let Some(body) = self.bodies.0.remove(&pid) else { return };
        let directory = {
            let world = self.world.borrow();
            Rc::clone(&world.managers[world.processes[&pid].manager].directory)
        };
        directory.borrow_mut().killing = true;
        drop(body);
        directory.borrow_mut().killing = false;
        self.ended(pid, Exit::Killed);
    }

    /// Counts this step against the planned kills.
    fn killed_here(&mut self, pid: Pid, call: &'static str) -> bool {
        let mut world = self.world.borrow_mut();
        let now = world.now;
        let Some(process) = world.processes.get_mut(&pid) else { return false };
        process.steps += 1;
        let kind = process.kind;
        if kind == Kind::Outside {
            return false;
        }
        let Some(plan) = self.kills.iter_mut().find(|k| k.kind == kind && k.from <= now) else {
            return false;
        };
        plan.calls = plan.calls.saturating_sub(1);
        if plan.calls > 0 {
            return false;
        }
        let done = *plan;
        self.kills.retain(|k| k.calls != done.calls || k.from != done.from || k.kind != done.kind);
        world.cover.fault(Fault::Kill);
        world.cover.kill(call);
        world.truth.excused = now;
        world.log(pid, format_args!("KILL -9 at {call}"));
        true
    }

    /// True if this process is stalled now.
    fn stalls(&mut self, id: StepId, pid: Pid, call: &str) -> bool {
        let mut world = self.world.borrow_mut();
        let now = world.now;
        let owned = world.processes.get(&pid).is_some_and(|p| p.kind != Kind::Outside);
        if owned && world.strikes(Fault::Stall) {
            let ms = world.streams.faults.within(1_000..20_000);
            world.log(pid, format_args!("stands still for {ms} ms"));
            if let Some(process) = world.processes.get_mut(&pid) {
                process.stalled = now + ms;
            }
            world.truth.excused = now + ms;
        }
        if is_leaving(&world, pid, call) && world.strikes(Fault::LeavesSlowly) {
            let ms = world.streams.faults.within(1_000..10_000);
            world.log(pid, format_args!("leaves slowly, {ms} ms"));
            if let Some(process) = world.processes.get_mut(&pid) {
                process.stalled = process.stalled.max(now + ms);
            }
            world.truth.excused = world.truth.excused.max(now + ms);
        }
        let until = world.processes.get(&pid).map_or(0, |p| p.stalled);
        if until > now {
            world.steps.postpone(id, until);
        }
        until > now
    }
}

/// True for a background keeper in its last pass or its check after it: its reports show nothing left to do.
fn is_leaving(world: &World, pid: Pid, call: &str) -> bool {
    if world.scenario.service || !matches!(call, "store.compact" | "store.load") {
        return false;
    }
    let Some(process) = world.processes.get(&pid).filter(|p| p.kind == Kind::Keep) else { return false };
    let directory = world.managers[process.manager].directory.borrow();
    let settled = directory.reports.values().all(|r| r.next.is_none() && r.waiting.is_empty());
    settled && !directory.reports.is_empty()
}

/// Moves the clock to the next moment at which something happens. False if there is none.
fn move_clock(world: &mut World, end: u64) -> bool {
    let timer = world.steps.next_deadline();
    let cloud = world.cloud.next_due();
    let Some(next) = timer.into_iter().chain(cloud).min() else { return false };
    let to = next.clamp(world.now, end);
    set_clock(world, to);
    true
}

fn set_clock(world: &mut World, to: u64) {
    world.now = to;
    for number in 0..world.managers.len() {
        let now = world.stamp(number);
        world.managers[number].directory.borrow_mut().now = now;
    }
    world.advance_cloud();
}

// The steps that could be taken next.
//
// A step is one port call, or one wait inside a process. It is in the list of runnable steps until the seed picks it,
// or sleeps until its deadline or until one of its channels is notified.

/// The number of a simulated [`Process`](crate::process::Process).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(u64);

/// An event that a sleeping step can wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// A signal for the process, or the end of its runner.
    Signal(Pid),
    Exit(Pid),
    /// Mail, marks and locks: the number of the manager, and the mailbox.
    Keeper(usize, PoolName),
    KeeperLock(usize),
    Attempt(usize, AttemptName),
    /// Something happened to an instance.
    Instance(InstanceId),
    /// Something that a workload waits for.
    Work(u32),
}

#[derive(Debug)]
struct Entry {
    pid: Pid,
    waker: Waker,
    picked: bool,
    call: &'static str,
}

/// All steps that the [`Executor`] has not taken yet.
#[derive(Debug, Default)]
pub struct Steps {
    next: u64,
    entries: BTreeMap<StepId, Entry>,
    runnable: Vec<StepId>,
    timers: BinaryHeap<Reverse<(u64, StepId)>>,
    listeners: BTreeMap<Channel, Vec<StepId>>,
}

impl Steps {
    fn enter(&mut self, pid: Pid, waker: Waker, call: &'static str) -> StepId {
        let id = StepId(self.next);
        self.next += 1;
        self.entries.insert(id, Entry { pid, waker, picked: false, call });
        id
    }

    /// A step that may be taken immediately.
    pub fn ready(&mut self, pid: Pid, waker: Waker, call: &'static str) -> StepId {
        let id = self.enter(pid, waker, call);
        self.runnable.push(id);
        id
    }

    /// A step that may be taken at its deadline, or when one of its channels is notified.
    pub fn asleep(&mut self, pid: Pid, waker: Waker, until: Option<u64>, channels: Vec<Channel>) -> StepId {
        let id = self.enter(pid, waker, "wait");
        if let Some(until) = until {
            self.timers.push(Reverse((until, id)));
        }
        for channel in channels {
            let ears = self.listeners.entry(channel).or_default();
            if ears.len() >= 16 {
                ears.retain(|ear| self.entries.contains_key(ear));
            }
            ears.push(id);
        }
        id
    }

    /// Makes every step that waits for this channel runnable.
    pub fn notify(&mut self, channel: &Channel) {
        for id in self.listeners.remove(channel).unwrap_or_default() {
            self.rouse(id);
        }
    }

    fn rouse(&mut self, id: StepId) {
        let live = self.entries.get(&id).is_some_and(|e| !e.picked);
        if live && !self.runnable.contains(&id) {
            self.runnable.push(id);
        }
    }

    /// Makes every step runnable whose deadline has passed.
    pub fn elapse(&mut self, now: u64) {
        while let Some(Reverse((at, id))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            self.rouse(id);
        }
    }

    /// The next deadline of a sleeping step.
    pub fn next_deadline(&mut self) -> Option<u64> {
        while let Some(Reverse((at, id))) = self.timers.peek().copied() {
            if self.entries.contains_key(&id) {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    pub fn runnable(&self) -> usize {
        self.runnable.len()
    }

    /// Takes a runnable step out, by its index in the list.
    pub fn take(&mut self, place: usize) -> Option<(StepId, Pid, &'static str)> {
        let id = self.runnable.swap_remove(place);
        self.entries.get(&id).map(|e| (id, e.pid, e.call))
    }

    /// Puts a step back to sleep: its process is stalled until then.
    pub fn postpone(&mut self, id: StepId, until: u64) {
        self.timers.push(Reverse((until, id)));
    }

    /// Marks the step as taken when its process is polled.
    pub fn pick(&mut self, id: StepId) -> Option<Waker> {
        let entry = self.entries.get_mut(&id)?;
        entry.picked = true;
        Some(entry.waker.clone())
    }

    /// True if it is this step's turn, which is then removed.
    pub fn taken(&mut self, id: StepId, waker: &Waker) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return true };
        if entry.picked {
            self.entries.remove(&id);
            return true;
        }
        entry.waker.clone_from(waker);
        false
    }

    /// The step's future was dropped.
    pub fn abandon(&mut self, id: StepId) {
        self.entries.remove(&id);
        if let Some(place) = self.runnable.iter().position(|r| *r == id) {
            self.runnable.swap_remove(place);
        }
    }

    /// True if a process has a step left; without one it can never continue.
    pub fn has_step(&self, pid: Pid) -> bool {
        self.entries.values().any(|e| e.pid == pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Pid = Pid(1);

    #[test]
    fn a_sleeper_wakes_at_its_deadline_or_by_its_channel_and_only_once() {
        let mut steps = Steps::default();
        let channel = Channel::Work(3);
        steps.asleep(ONE, Waker::noop().clone(), Some(10), vec![channel.clone()]);
        steps.elapse(9);
        assert_eq!((steps.runnable(), steps.next_deadline()), (0, Some(10)));
        steps.notify(&channel);
        steps.elapse(10);
        assert_eq!(steps.runnable(), 1);
        assert!(steps.take(0).is_some());
        steps.notify(&channel);
        assert_eq!(steps.runnable(), 0);
    }

    #[test]
    fn an_abandoned_step_is_never_taken_and_holds_no_clock() {
        let mut steps = Steps::default();
        let gone = steps.asleep(ONE, Waker::noop().clone(), Some(5), Vec::new());
        let ready = steps.ready(ONE, Waker::noop().clone(), "call");
        steps.abandon(gone);
        steps.abandon(ready);
        steps.elapse(5);
        assert_eq!((steps.runnable(), steps.next_deadline(), steps.has_step(ONE)), (0, None, false));
    }
}
