//! GitLab and its runners: which calls they make, when, and with which faults.
//!
//! Follows the custom executor: `prepare` up to three times, three seconds apart, each with its own TMPDIR and its own
//! `cleanup`; then stage after stage; then `cleanup`, whatever happened.

use std::time::Duration;

use greenroom_core::execution::{Execution, Shell};
use greenroom_core::ids::AttemptName;
use greenroom_core::job_end::{self, JobEnd};
use greenroom_ports::attempts::AttemptRecord;

use super::connector::StagePlan;
use super::fault::Fault;
use super::process::{Exit, Proc, Shared};
use super::rig::{Command, Starter};
use super::scenario::JobPlan;
use super::truth::{JobResult, Live};
use super::world::Runner;
use super::{check, orders};
use crate::exec::{Channel, Pid};

/// Notified when a runner may find work.
pub const QUEUE: Channel = Channel::Work(0);

/// GitLab: jobs come as in the scenario.
pub fn gitlab(world: &Shared) {
    Starter::outside(world, "gitlab".to_owned(), 0, None, |proc| async move {
        let scenario = std::rc::Rc::clone(&proc.world.borrow().scenario);
        for (place, job) in scenario.jobs.iter().enumerate() {
            let wait = job.comes.saturating_sub(proc.now_ms());
            proc.pause(wait).await;
            let mut world = proc.world.borrow_mut();
            world.truth.queue.push_back(place);
            world.steps.notify(&QUEUE);
        }
    });
}

/// Every runner of a manager.
pub fn runners(world: &Shared, starter: &Starter, manager: usize) {
    let scenario = std::rc::Rc::clone(&world.borrow().scenario);
    for number in 0..scenario.runners_of(manager) {
        runner(world, starter, manager, scenario.opaque && manager == 0 && number == 0);
    }
}

/// A runner's process of a manager: takes jobs while it has room.
pub fn runner(world: &Shared, starter: &Starter, manager: usize, opaque: bool) {
    let number = {
        let mut world = world.borrow_mut();
        world.truth.runners += 1;
        let number = world.truth.runners;
        world.managers[manager].runners.insert(number, Runner { alive: true, opaque });
        number
    };
    let starter = starter.clone();
    Starter::outside(world, format!("runner{number}"), manager, Some(number), |proc| async move {
        loop {
            let place = proc.until(&[QUEUE], None, |world| {
                let busy = world.truth.running.values().filter(|r| **r == number).count();
                let room = busy < usize::try_from(world.scenario.concurrent).unwrap_or(1);
                room.then(|| world.truth.queue.pop_front()).flatten()
            });
            let Some(place) = place.await else { return };
            let plan = proc.world.borrow().scenario.jobs[place].clone();
            let id = plan.facts.key.id;
            proc.world.borrow_mut().truth.running.insert(id, number);
            let ends = proc.now_ms() + u64::try_from(plan.facts.timeout.as_millis()).unwrap_or(u64::MAX);
            let call =
                Job { starter: starter.clone(), number, id, plan, ends, attempt: AttemptName::new("") };
            Starter::outside(&proc.world, format!("job{id}"), manager, Some(number), |proc| async move {
                let result = call.work(&proc).await;
                proc.log(format_args!("{result:?}"));
                let mut world = proc.world.borrow_mut();
                world.truth.running.remove(&id);
                world.truth.results.insert(id, result);
                world.steps.notify(&QUEUE);
            });
        }
    });
}

/// One job in a runner.
struct Job {
    starter: Starter,
    number: u32,
    id: u64,
    plan: JobPlan,
    /// The job's timeout, counted from when the runner took it, including the wait.
    ends: u64,
    attempt: AttemptName,
}

/// The result of a call, as the runner sees it.
enum Called {
    Exit(i32),
    Killed,
    /// Stopped on request.
    Stopped,
}

impl Job {
    fn has(&self, fault: Fault) -> bool {
        self.plan.fault == Some(fault)
    }

    fn start(&self, proc: &Proc, command: Command, verb: &str) -> Pid {
        let name = format!("{verb} {} {}", self.id, self.attempt);
        self.starter.start(&proc.world, command, name, proc.manager, Some(self.number))
    }

    /// Waits for a call to exit; stops it at `cancel`, and reports it if it is still running a minute later.
    async fn wait(&self, proc: &Proc, pid: Pid, cancel: Option<u64>) -> Called {
        let channels = [Channel::Exit(pid)];
        let cancel = Some(cancel.map_or(self.ends, |at| at.min(self.ends)));
        if let Some(exit) = proc.until(&channels, cancel, |world| world.exit_of(pid)).await {
            return called(exit);
        }
        proc.world.borrow_mut().terminate(pid);
        let deadline = proc.now_ms() + 60_000;
        if proc.until(&channels, Some(deadline), |world| world.exit_of(pid)).await.is_none() {
            proc.world.borrow_mut().broken(format!("job {}: a call ignores SIGTERM", self.id));
        }
        Called::Stopped
    }

    async fn work(mut self, proc: &Proc) -> JobResult {
        for _ in 0..3 {
            self.attempt = self.new_tmpdir(proc);
            match self.prepare(proc).await {
                Called::Exit(0) => {
                    let result = self.stages(proc).await;
                    self.cleanup(proc, Some(result)).await;
                    return result;
                }
                Called::Stopped => {
                    self.cleanup(proc, Some(JobResult::Cancelled)).await;
                    return JobResult::Cancelled;
                }
                Called::Exit(1) => {
                    self.cleanup(proc, Some(JobResult::Failed)).await;
                    return JobResult::Failed;
                }
                Called::Exit(_) | Called::Killed => self.cleanup(proc, None).await,
            }
            proc.pause(3_000).await;
        }
        JobResult::SystemFailure
    }

    fn new_tmpdir(&self, proc: &Proc) -> AttemptName {
        let mut world = proc.world.borrow_mut();
        world.truth.tmpdirs += 1;
        let name = AttemptName::new(format!("custom-executor{}", world.truth.tmpdirs));
        world.managers[proc.manager].tmpdirs.insert(name.clone());
        let facts = (self.plan.pool.clone(), self.plan.facts.clone());
        world.truth.attempts.insert(name.clone(), facts);
        name
    }

    async fn prepare(&self, proc: &Proc) -> Called {
        let command = || Command::Prepare {
            attempt: self.attempt.clone(),
            record: Box::new(AttemptRecord {
                job: self.plan.facts.clone(),
                pool: self.plan.pool.clone(),
                execution: Execution::Machine { shell: Shell::Bash.into() },
                begun: proc.now(),
                assignment: None,
                order: orders::complete(&self.plan.facts),
                builds_dir: None,
            }),
        };
        let began = proc.now_ms();
        if self.has(Fault::PrepareRepeated) {
            let pid = self.start(proc, command(), "prepare");
            proc.pause(self.plan.dice % 20_000).await;
            let mut world = proc.world.borrow_mut();
            world.cover.fault(Fault::PrepareRepeated);
            world.doom(pid); // it may have exited by itself: then it is repeated after a success
        }
        let pid = self.start(proc, command(), "prepare");
        let cancel = self.has(Fault::CancelledWaiting).then(|| began + self.plan.dice % 15_000);
        let called = self.wait(proc, pid, cancel).await;
        let mut world = proc.world.borrow_mut();
        match &called {
            Called::Stopped if cancel.is_some() => world.cover.fault(Fault::CancelledWaiting),
            Called::Exit(0) | Called::Stopped => {}
            Called::Killed => world.truth.excuse(self.id, "its prepare was killed"),
            Called::Exit(_) => {
                let patience = world.config[&self.plan.pool].policy.timing.acquire_timeout;
                if Duration::from_millis(world.now - began) >= patience / 2 {
                    world.truth.excuse(self.id, "it waited for too long");
                }
                if world.truth.refused_by_store.contains(&pid) {
                    world.truth.excuse(self.id, "the state was locked, or the disk failed");
                }
                if orders::is_too_large(&self.plan.facts) {
                    world.truth.excuse(self.id, "the provider does not make what it ordered");
                }
                if check::is_shut_out(&world, &self.plan.pool, &self.plan.facts) {
                    world.truth.excuse(self.id, "every host is bound to another domain");
                }
            }
        }
        called
    }

    async fn stages(&self, proc: &Proc) -> JobResult {
        if !self.hold(proc) {
            return JobResult::SystemFailure;
        }
        let last = self.plan.stages.len() - 1;
        for (place, (takes, exit)) in self.plan.stages.iter().enumerate() {
            proc.pause(20 + self.plan.dice % 300).await;
            let stubborn = self.has(Fault::RunAbandoned) && place == last;
            let takes = if stubborn { 30_000 } else { *takes };
            let stage =
                StagePlan { attempt: self.attempt.clone(), takes, exit: *exit, stubborn, first: place == 0 };
            let pid = self.start(proc, Command::Run { pool: self.plan.pool.clone(), stage }, "run");
            if stubborn {
                return self.abandon(proc, pid).await;
            }
            let cancelled = self.has(Fault::CancelledRunning) && place == last;
            let cancel = cancelled.then(|| proc.now_ms() + self.plan.dice % takes);
            match self.wait(proc, pid, cancel).await {
                Called::Exit(0) => {}
                Called::Exit(1) => return JobResult::Failed,
                Called::Stopped => {
                    if cancelled {
                        proc.world.borrow_mut().cover.fault(Fault::CancelledRunning);
                    }
                    return JobResult::Cancelled;
                }
                Called::Exit(_) => return JobResult::SystemFailure,
                Called::Killed => {
                    proc.world.borrow_mut().truth.excuse(self.id, "its run was killed");
                    return JobResult::SystemFailure;
                }
            }
        }
        JobResult::Passed
    }

    /// The runner relies on the result of `prepare`: the attempt has an instance now.
    fn hold(&self, proc: &Proc) -> bool {
        let mut world = proc.world.borrow_mut();
        let instance = {
            let directory = world.managers[proc.manager].directory.borrow();
            let record = directory.attempts.get(&self.attempt).and_then(|dir| dir.record.as_ref());
            record.and_then(|r| r.assignment.as_ref()).map(|a| a.instance.clone())
        };
        let Some(instance) = instance else {
            world.broken(format!("job {}: prepare succeeded without an instance", self.id));
            return false;
        };
        let facts = self.plan.facts.clone();
        let pool = self.plan.pool.clone();
        let live = Live { job: self.id, facts, pool, manager: proc.manager, instance };
        check::promised(&mut world, &self.attempt, live);
        if proc.manager != 0 {
            world.cover.second_job();
        }
        true
    }

    /// A call that does not react: the runner abandons it and continues with `cleanup`.
    async fn abandon(&self, proc: &Proc, pid: Pid) -> JobResult {
        let give_up = proc.now_ms() + 5_000 + self.plan.dice % 10_000;
        let exit = proc.until(&[Channel::Exit(pid)], Some(give_up), |world| world.exit_of(pid)).await;
        let mut world = proc.world.borrow_mut();
        if exit.is_none() {
            world.cover.fault(Fault::RunAbandoned);
        }
        JobResult::Cancelled
    }

    /// Calls `cleanup`, unless a fault prevents it. `result`: the job's, if this attempt decided it.
    async fn cleanup(&self, proc: &Proc, result: Option<JobResult>) {
        if self.has(Fault::CleanupLate) {
            proc.world.borrow_mut().cover.fault(Fault::CleanupLate);
            proc.pause(self.plan.dice % 240_000).await;
        }
        proc.world.borrow_mut().truth.live.remove(&self.attempt);
        if self.has(Fault::CleanupMissing) {
            proc.world.borrow_mut().cover.fault(Fault::CleanupMissing);
        } else {
            let end = result.and_then(end_of);
            let pid = self.start(proc, Command::Cleanup { attempt: self.attempt.clone(), end }, "cleanup");
            proc.until(&[Channel::Exit(pid)], None, |world| world.exit_of(pid)).await;
        }
        proc.world.borrow_mut().managers[proc.manager].tmpdirs.remove(&self.attempt);
    }
}

/// The end of a job as `cleanup` learns it from the runner.
fn end_of(result: JobResult) -> Option<JobEnd> {
    let result = match result {
        JobResult::Passed => job_end::JobResult::Passed,
        JobResult::Failed => job_end::JobResult::Failed,
        JobResult::Cancelled => job_end::JobResult::Canceled,
        JobResult::SystemFailure | JobResult::Abandoned => return None,
    };
    Some(JobEnd::new(result, ""))
}

fn called(exit: Exit) -> Called {
    match exit {
        Exit::Code(code) => Called::Exit(code),
        Exit::Killed => Called::Killed,
    }
}
