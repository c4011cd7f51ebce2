//! The steps that could be taken next.
//!
//! A step is one port call, or one wait inside a process. It is in the list of runnable steps until the seed picks it,
//! or sleeps until its deadline or until one of its channels is notified.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::task::Waker;

use greenroom_core::ids::{AttemptName, InstanceId, PoolName};

/// A simulated process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(u64);

/// What a sleeping step can wait for.
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

/// All steps that are not taken yet.
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
