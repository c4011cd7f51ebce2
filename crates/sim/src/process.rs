//! The calls of a simulated process.
//!
//! A process is a future. Each of its external actions is a [`Step`], and the seed picks the next one.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use greenroom_core::time::Stamp;

use super::world::World;
use crate::exec::{Channel, Pid, StepId};

pub type Shared = Rc<RefCell<World>>;

/// The kind of a process, by which faults choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Prepare,
    Run,
    Cleanup,
    Keep,
    Reap,
    /// A process that is not Greenroom's: the runner, GitLab, the operator, a fault.
    Outside,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Killed,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit {code}"),
            Self::Killed => f.write_str("killed"),
        }
    }
}

/// One process in the simulation.
#[derive(Debug)]
pub struct Process {
    pub name: String,
    pub kind: Kind,
    /// The number of its manager.
    pub manager: usize,
    /// The runner that called it, or in whose control group it was started.
    pub runner: Option<u32>,
    /// SIGTERM was sent.
    pub stop: bool,
    pub exit: Option<Exit>,
    /// Stalled until then.
    pub stalled: u64,
    /// Number of steps taken.
    pub steps: u64,
}

/// A process's own handle on the simulation: its number, and the [`World`].
#[derive(Clone)]
pub struct Proc {
    pub world: Shared,
    pub pid: Pid,
    /// The number of the process's manager.
    pub manager: usize,
}

impl fmt::Debug for Proc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proc({:?})", self.pid)
    }
}

impl Proc {
    /// Waits until the seed picks this process for this call.
    pub fn step(&self, call: &'static str) -> Step {
        Step { proc: self.clone(), id: None, sleep: None, call: Some(call) }
    }

    /// Makes one port call: waits for its turn, then does all of it in one step.
    pub async fn call<T>(&self, call: &'static str, act: impl FnOnce(&mut World) -> T) -> T {
        self.step(call).await;
        act(&mut self.world.borrow_mut())
    }

    /// Lets virtual time pass.
    pub fn pause(&self, ms: u64) -> Step {
        let until = self.world.borrow().now.saturating_add(ms);
        Step { proc: self.clone(), id: None, sleep: Some((Some(until), Vec::new())), call: None }
    }

    /// Sleeps until `check` has an answer; checks whenever one of the channels is notified, until `deadline`.
    pub async fn until<T>(
        &self,
        channels: &[Channel],
        deadline: Option<u64>,
        mut check: impl FnMut(&mut World) -> Option<T>,
    ) -> Option<T> {
        loop {
            {
                let mut world = self.world.borrow_mut();
                if let Some(answer) = check(&mut world) {
                    return Some(answer);
                }
                if deadline.is_some_and(|at| world.now >= at) {
                    return None;
                }
            }
            let sleep = Some((deadline, channels.to_vec()));
            Step { proc: self.clone(), id: None, sleep, call: None }.await;
        }
    }

    /// Writes a line of the trace.
    pub fn log(&self, what: fmt::Arguments<'_>) {
        self.world.borrow_mut().log(self.pid, what);
    }

    /// The time on the clocks of this process's manager.
    pub fn now(&self) -> Stamp {
        self.world.borrow().stamp(self.manager)
    }

    pub fn now_ms(&self) -> u64 {
        self.world.borrow().now
    }
}

/// A step that waits for its turn, which the [`Executor`](crate::exec::Executor) gives it.
#[must_use = "a step happens when it is awaited"]
#[derive(Debug)]
pub struct Step {
    proc: Proc,
    id: Option<StepId>,
    /// Deadline and channels; `None`: runnable immediately.
    sleep: Option<(Option<u64>, Vec<Channel>)>,
    call: Option<&'static str>,
}

impl Future for Step {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let world = Rc::clone(&self.proc.world);
        let mut world = world.borrow_mut();
        let Some(id) = self.id else {
            let pid = self.proc.pid;
            let waker = cx.waker().clone();
            self.id = Some(match self.sleep.take() {
                None => world.steps.ready(pid, waker, self.call.unwrap_or("wait")),
                Some((until, channels)) => world.steps.asleep(pid, waker, until, channels),
            });
            return Poll::Pending;
        };
        if !world.steps.taken(id, cx.waker()) {
            return Poll::Pending;
        }
        self.id = None;
        if let Some(call) = self.call {
            world.cover.call(call);
        }
        Poll::Ready(())
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.proc.world.borrow_mut().steps.abandon(id);
        }
    }
}
