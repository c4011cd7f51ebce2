//! The state directory of a manager, as a process uses it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::attempt::{AttemptSeen, Closed, End, Presence};
use greenroom_core::ids::{AttemptName, Generation, PoolName};
use greenroom_core::order::LaunchOrder;
use greenroom_core::report::Report;
use greenroom_ports::attempts::{Assignment, AttemptRecord, Attempts, Closing};
use greenroom_ports::host_error::HostError;
use greenroom_ports::leadership::{Identity, Leadership};
use greenroom_ports::lock::Lock;
use greenroom_ports::reports::Reports;
use greenroom_ports::wakeups::{MailboxName, WakeReason, WakeUps};
use greenroom_testkit::memory_host::{self, AttemptDir, Caller, Mailbox, SharedDirectory};

use super::fault::Fault;
use super::process::{Kind, Proc};
use super::rig::Starter;
use super::world::World;
use super::{check, keeping, stopped};
use crate::exec::Channel;
use crate::offerings;

/// One process's view of its manager's state directory, a [`Directory`](memory_host::Directory) in memory.
#[derive(Debug, Clone)]
pub struct SimHost {
    pub proc: Proc,
    /// The runner that called; a number without a runner for processes that no runner called.
    pub runner: u32,
    /// Starts keepers.
    pub starter: Starter,
}

impl SimHost {
    fn directory(&self) -> SharedDirectory {
        Rc::clone(&self.proc.world.borrow().managers[self.proc.manager].directory)
    }

    fn caller(&self) -> Caller {
        Caller { runner: self.runner, pid: self.proc.pid.0 }
    }

    async fn step(&self, call: &'static str) -> SharedDirectory {
        self.proc.step(call).await;
        self.directory()
    }

    /// Waits while the keeper holds the attempt's lease.
    async fn lease_free(&self, name: &AttemptName) {
        let channels = [self.channel(name)];
        let directory = self.directory();
        let free = |_: &mut World| (!directory.borrow().is_seized(name)).then_some(());
        self.proc.until(&channels, None, free).await;
    }

    fn channel(&self, name: &AttemptName) -> Channel {
        Channel::Attempt(self.proc.manager, name.clone())
    }

    fn log(&self, call: &str, what: &dyn std::fmt::Display) {
        self.proc.log(format_args!("{call} {what}"));
    }

    /// The reason for which this process should stop, if it should.
    fn stop(&self, world: &World) -> Option<WakeReason> {
        let process = world.processes.get(&self.proc.pid)?;
        if process.stop {
            return Some(WakeReason::Stop);
        }
        let called = matches!(process.kind, Kind::Prepare | Kind::Run);
        (called && !world.runner_lives(self.proc.pid)).then_some(WakeReason::RunnerGone)
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait(?Send)]
impl Attempts for SimHost {
    async fn begin_attempt(
        &self,
        name: &AttemptName,
        record: &AttemptRecord,
    ) -> Result<(Lock, AttemptRecord), HostError> {
        let directory = self.step("attempts.begin_attempt").await;
        self.lease_free(name).await;
        let begun = memory_host::begin(&directory, name, record, self.caller());
        self.log("attempts.begin_attempt", name);
        begun
    }

    async fn enter_attempt(&self, name: &AttemptName) -> Result<Option<(Lock, AttemptRecord)>, HostError> {
        let directory = self.step("attempts.enter_attempt").await;
        self.lease_free(name).await;
        self.log("attempts.enter_attempt", name);
        memory_host::enter(&directory, name, self.caller())
    }

    async fn order(&self, name: &AttemptName) -> Result<Option<LaunchOrder>, HostError> {
        self.step("attempts.order").await;
        // Either keeper launches what a job ordered, and the order is a file in the job's attempt directory. Until the
        // order goes through the store, the simulation lets each manager read the directories of the others.
        let order = {
            let world = self.proc.world.borrow();
            let mut managers = world.partners(self.proc.manager).map(|(_, manager)| manager);
            managers.find_map(|manager| manager.directory.borrow().order(name))
        };
        self.log("attempts.order", name);
        Ok(order)
    }

    async fn assign(&self, name: &AttemptName, assignment: Option<&Assignment>) -> Result<(), HostError> {
        let directory = self.step("attempts.assign").await;
        let to = assignment.map_or("nothing", |a| a.instance.as_str());
        self.proc.log(format_args!("attempts.assign {name} {to}"));

        directory.borrow_mut().assign(name, assignment)
    }

    async fn mark_used(&self, name: &AttemptName) -> Result<(), HostError> {
        let directory = self.step("attempts.mark_used").await;
        self.log("attempts.mark_used", name);

        directory.borrow_mut().mark_used(name)
    }

    async fn closed(&self, name: &AttemptName) -> Result<Option<Closed>, HostError> {
        let directory = self.step("attempts.closed").await;
        let closed = directory.borrow().closed(name);
        Ok(closed)
    }

    async fn close_attempt(&self, name: &AttemptName, how: End) -> Result<Closing, HostError> {
        let directory = self.step("attempts.close_attempt").await;
        self.lease_free(name).await;
        let closing = memory_host::close(&directory, name, how, self.caller());
        self.proc.log(format_args!(
            "attempts.close_attempt {name} used={} calls_remain={}",
            closing.used, closing.calls_remain
        ));
        Ok(closing)
    }

    async fn attempts_of(&self, pool: &PoolName) -> Result<BTreeMap<AttemptName, AttemptSeen>, HostError> {
        let directory = self.step("attempts.attempts_of").await;
        let seen = {
            let world = self.proc.world.borrow();
            let manager = &world.managers[self.proc.manager];
            let observe = |name: &AttemptName, dir: &AttemptDir| {
                let Some(runner) = dir.runner.and_then(|number| manager.runners.get(&number)) else {
                    return (Presence::Unknown, Presence::Unknown);
                };
                if runner.opaque {
                    return (Presence::Unknown, Presence::Unknown);
                }
                let there = |is: bool| if is { Presence::There } else { Presence::Gone };
                (there(runner.alive), there(manager.tmpdirs.contains(name)))
            };
            directory.borrow().seen(pool, observe)
        };
        // One directory after the other: during the rest, those already read may change.
        let took = self.proc.world.borrow_mut().streams.latency.within(1..20);
        self.proc.pause(took).await;
        Ok(seen)
    }

    async fn seize_attempt(&self, name: &AttemptName) -> Result<Option<Lock>, HostError> {
        let directory = self.step("attempts.seize_attempt").await;
        let seized = memory_host::seize(&directory, name);
        self.proc.log(format_args!("attempts.seize_attempt {name}: {}", seized.is_some()));
        Ok(seized)
    }

    async fn mark_closed(&self, name: &AttemptName, how: End) -> Result<bool, HostError> {
        let directory = self.step("attempts.mark_closed").await;
        let used = directory.borrow_mut().mark_closed(name, how)?;
        self.proc.log(format_args!("attempts.mark_closed {name}"));
        Ok(used)
    }

    async fn remove_tmpdir(&self, name: &AttemptName) -> Result<(), HostError> {
        self.step("attempts.remove_tmpdir").await;
        self.log("attempts.remove_tmpdir", name);
        self.proc.world.borrow_mut().managers[self.proc.manager].tmpdirs.remove(name);
        Ok(())
    }

    async fn forget_attempt(&self, name: &AttemptName) -> Result<(), HostError> {
        let directory = self.step("attempts.forget_attempt").await;
        self.log("attempts.forget_attempt", name);
        super::check::attempt_forgotten(&mut self.proc.world.borrow_mut(), self.proc.manager, name);
        directory.borrow_mut().attempts.remove(name);
        Ok(())
    }
}

#[async_trait(?Send)]
impl Leadership for SimHost {
    async fn identity(&self) -> Result<Identity, HostError> {
        let directory = self.step("leadership.identity").await;
        let identity = directory.borrow().identity();
        Ok(identity)
    }

    async fn begin_generation(&self) -> Result<Generation, HostError> {
        let directory = self.step("leadership.begin_generation").await;
        let nonce = self.proc.world.borrow_mut().streams.ids.word();
        let generation = Generation::new(format!("{:06x}", nonce & 0x00ff_ffff));
        directory.borrow_mut().generations.insert(generation.clone());
        self.log("leadership.begin_generation", &generation);
        Ok(generation)
    }

    async fn lock_keeper(&self, within: Duration) -> Result<Option<Lock>, HostError> {
        let directory = self.step("leadership.lock_keeper").await;
        let channels = [Channel::KeeperLock(self.proc.manager)];
        let deadline = self.proc.now_ms() + ms(within);
        let lock = self.proc.until(&channels, Some(deadline), |_| memory_host::lock_keeper(&directory)).await;
        if lock.is_some() {
            keeping::locked(&mut self.proc.world.borrow_mut(), self.proc.manager, self.proc.pid);
        }
        self.proc.log(format_args!("leadership.lock_keeper: {}", lock.is_some()));
        Ok(lock)
    }

    async fn keeper_lives(&self) -> Result<bool, HostError> {
        let directory = self.step("leadership.keeper_lives").await;
        let lives = directory.borrow().keeper_lives();
        if lives {
            keeping::relied_on(&mut self.proc.world.borrow_mut(), self.proc.manager);
        }
        Ok(lives)
    }

    async fn start_keeper(&self) -> Result<(), HostError> {
        self.step("leadership.start_keeper").await;
        let ms = self.proc.world.borrow_mut().streams.latency.within(2..30);
        self.starter.start_keeper(&self.proc);
        self.proc.pause(ms).await;
        Ok(())
    }
}

#[async_trait(?Send)]
impl WakeUps for SimHost {
    async fn wake_keeper(&self, pool: &PoolName) {
        let directory = self.step("wakeups.wake_keeper").await;
        if directory.borrow().keeper_lives() && !self.proc.world.borrow_mut().strikes(Fault::HintLost) {
            directory.borrow_mut().post(Mailbox::Keeper(pool.clone()));
        }
    }

    async fn wake_attempt(&self, name: &AttemptName) {
        let directory = self.step("wakeups.wake_attempt").await;
        if !self.proc.world.borrow_mut().strikes(Fault::HintLost) {
            directory.borrow_mut().post(Mailbox::Attempt(name.clone()));
        }
    }

    async fn wait(&self, inbox: MailboxName<'_>, within: Duration) -> Result<WakeReason, HostError> {
        let directory = self.step("wakeups.wait").await;
        if let MailboxName::Keeper(pool) = inbox
            && self.proc.world.borrow_mut().strikes(Fault::WaitFails)
        {
            keeping::wait_failed(&mut self.proc.world.borrow_mut(), self.proc.pid, pool);
            return Err(HostError::Io { what: "the mailbox cannot be bound".to_owned() });
        }
        let (mailbox, channel) = match inbox {
            MailboxName::Keeper(pool) => {
                (Mailbox::Keeper(pool.clone()), Channel::Keeper(self.proc.manager, pool.clone()))
            }
            MailboxName::Attempt(name) => (Mailbox::Attempt(name.clone()), self.channel(name)),
        };
        let channels = [channel, Channel::Signal(self.proc.pid)];
        let deadline = self.proc.now_ms().saturating_add(ms(within));
        let check = |world: &mut World| {
            let message = || directory.borrow_mut().mail(&mailbox).then_some(WakeReason::Message);
            self.stop(world).or_else(message)
        };
        let woken = self.proc.until(&channels, Some(deadline), check).await.unwrap_or(WakeReason::Timeout);
        self.proc.log(format_args!("wakeups.wait: {woken:?}"));
        Ok(woken)
    }

    async fn pause(&self, time: Duration) {
        self.step("wakeups.pause").await;
        self.proc.pause(ms(time)).await;
    }

    async fn stopped(&self, name: &AttemptName) -> WakeReason {
        let directory = self.step("wakeups.stopped").await;
        let channels = [self.channel(name), Channel::Signal(self.proc.pid)];
        let check = |world: &mut World| {
            let closed = || directory.borrow().closed(name).map(|_| WakeReason::Message);
            self.stop(world).or_else(closed)
        };
        let woken = self.proc.until(&channels, None, check).await.unwrap_or(WakeReason::Stop);
        self.proc.log(format_args!("wakeups.stopped: {woken:?}"));
        woken
    }
}

#[async_trait(?Send)]
impl Reports for SimHost {
    async fn write_report(&self, pool: &PoolName, report: &Report) -> Result<(), HostError> {
        let directory = self.step("reports.write_report").await;
        let mut world = self.proc.world.borrow_mut();
        if world.strikes(Fault::DiskFull) {
            check::disk_full(&mut world, self.proc.manager, pool);
            return Err(HostError::Io { what: "no space left on device".to_owned() });
        }
        for (_, row) in &report.rows {
            world.cover.row(*row);
        }
        let rows: Vec<String> = report.rows.iter().map(|(id, row)| format!("{id}:{row}")).collect();
        offerings::reported(&mut world, self.proc.manager, pool, report);
        if !world.is_copy(self.proc.manager) {
            let state = world.journal(self.proc.manager, pool).state().clone();
            stopped::reported(&mut world, &state, pool, report);
        }
        let blocked = report.launches.as_ref().map_or(String::new(), |on| format!("; launches: {on}"));
        world.log(self.proc.pid, format_args!("reports.write_report {pool} {}{blocked}", rows.join(" ")));
        directory.borrow_mut().reports.insert(pool.clone(), report.clone());
        Ok(())
    }

    async fn read_report(&self, pool: &PoolName) -> Result<Option<Report>, HostError> {
        let directory = self.step("reports.read_report").await;
        let report = directory.borrow().reports.get(pool).cloned();
        Ok(report)
    }
}
