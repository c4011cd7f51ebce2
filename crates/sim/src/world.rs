//! Everything that exists in a simulation.
//!
//! One world has the cloud, the managers, their processes and the truth about the jobs.
//! Ports read and change it, one step at a time; the checker observes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_ports::provider::{InstanceKeys, LaunchRequest};
use greenroom_testkit::memory_host::{AttemptDir, News, SharedDirectory};

use super::check;
use super::cloud::{Cloud, Due};
use super::cover::Coverage;
use super::fault::Fault;
use super::process::{Exit, Kind, Process};
use super::rng::Streams;
use super::scenario::Scenario;
use super::truth::Truth;
use crate::exec::{Channel, Pid, Steps};
use crate::ports::Journal;
use crate::run::Trace;

/// The wall clock at the start: Monday, 5 January 2026, 08:00 UTC.
pub const EPOCH_MS: i64 = 1_767_600_000_000;

pub type Body = Pin<Box<dyn Future<Output = i32>>>;

/// A runner's process of a [`Manager`].
#[derive(Debug, Clone, Copy)]
pub struct Runner {
    pub alive: bool,
    /// True if the runner is in a namespace of its own: others cannot observe whether it lives.
    pub opaque: bool,
}

/// The records that the managers of an owner share: the journals, and the keys of the instances.
#[derive(Debug, Clone)]
pub struct Ledger {
    pub journals: BTreeMap<PoolName, Journal>,
    pub keys: BTreeMap<InstanceId, InstanceKeys>,
    /// True if the ledger loses nothing in a power cut.
    durable: bool,
}

impl Ledger {
    pub fn new(durable: bool) -> Self {
        Self { journals: BTreeMap::new(), keys: BTreeMap::new(), durable }
    }

    /// A pool's journal; a new one if there is none.
    pub fn journal(&mut self, pool: &PoolName) -> &mut Journal {
        self.journals.entry(pool.clone()).or_insert_with(|| Journal::new(self.durable))
    }
}

/// The identity of a manager, and the [`Ledger`] that it records in.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub id: ManagerId,
    /// The number of the ledger that it records in.
    pub ledger: usize,
    /// The number of the runner host, whose power and clocks it shares with the others there.
    pub host: usize,
    /// The number of the boot.
    pub boot: u64,
}

/// A manager: a state directory that runs jobs.
#[derive(Debug)]
pub struct Manager {
    pub directory: SharedDirectory,
    pub place: Place,
    pub runners: BTreeMap<u32, Runner>,
    /// The TMPDIRs that exist.
    pub tmpdirs: BTreeSet<AttemptName>,
    boot_began: u64,
    wall_offset: i64,
    /// True if the manager's host has power.
    pub on: bool,
}

impl Manager {
    /// A manager without runners. Its host booted just now.
    pub fn new(directory: SharedDirectory, place: Place, now: u64) -> Self {
        Self {
            directory,
            place,
            runners: BTreeMap::new(),
            tmpdirs: BTreeSet::new(),
            boot_began: now,
            wall_offset: 0,
            on: true,
        }
    }

    fn stamp(&self, now: u64) -> Stamp {
        let wall = i64::try_from(now).unwrap_or(i64::MAX);
        Stamp {
            wall_ms: EPOCH_MS + wall + self.wall_offset,
            manager: self.place.id,
            boot: self.boot(),
            uptime_ms: now.saturating_sub(self.boot_began) + 20_000,
        }
    }

    pub fn boot(&self) -> BootId {
        BootId(self.place.boot)
    }

    /// A new boot.
    pub fn reboot(&mut self, now: u64) {
        self.place.boot += 1;
        self.boot_began = now;
    }

    pub fn step_wall(&mut self, by_ms: i64) {
        self.wall_offset += by_ms;
    }
}

/// The whole simulation: the clock, the processes, the cloud, and the [`Truth`] that checks compare with the records.
#[derive(Debug)]
pub struct World {
    /// Milliseconds since the start; never steps.
    pub now: u64,
    pub scenario: Rc<Scenario>,
    pub steps: Steps,
    pub streams: Streams,
    pub story: Trace,
    pub cover: Coverage,
    pub processes: BTreeMap<Pid, Process>,
    /// The managers: those of the operator's state directories come first, then the copies.
    pub managers: Vec<Manager>,
    pub ledgers: Vec<Ledger>,
    pub cloud: Cloud,
    pub truth: Truth,
    /// The operator's configuration.
    pub config: BTreeMap<PoolName, Rc<super::scenario::PoolPlan>>,
    /// The first broken promise.
    pub wrong: Option<String>,
    pub(super) newborn: Newborn,
    pub(super) doomed: Vec<Pid>,
    next_pid: u32,
}

/// Processes started in this step.
#[derive(Default)]
pub(super) struct Newborn(pub(super) Vec<(Pid, Body)>);

impl fmt::Debug for Newborn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Newborn({})", self.0.len())
    }
}

impl World {
    pub fn new(seed: u64, scenario: Rc<Scenario>, keep_story: bool) -> Self {
        Self {
            now: 0,
            steps: Steps::default(),
            streams: Streams::new(seed),
            story: Trace::new(keep_story),
            cover: Coverage::default(),
            processes: BTreeMap::new(),
            managers: Vec::new(),
            ledgers: Vec::new(),
            cloud: Cloud::default(),
            truth: Truth::default(),
            config: scenario.pools.clone(),
            wrong: None,
            newborn: Newborn::default(),
            doomed: Vec::new(),
            next_pid: 0,
            scenario,
        }
    }

    /// The ledger of a manager.
    pub fn ledger(&self, manager: usize) -> &Ledger {
        &self.ledgers[self.managers[manager].place.ledger]
    }

    pub fn ledger_mut(&mut self, manager: usize) -> &mut Ledger {
        &mut self.ledgers[self.managers[manager].place.ledger]
    }

    /// A pool's journal, as a manager has it.
    pub fn journal(&mut self, manager: usize, pool: &PoolName) -> &mut Journal {
        self.ledger_mut(manager).journal(pool)
    }

    /// The managers that record in the same ledger, by number.
    pub fn partners(&self, manager: usize) -> impl Iterator<Item = (usize, &Manager)> {
        let ledger = self.managers[manager].place.ledger;
        self.managers.iter().enumerate().filter(move |(_, other)| other.place.ledger == ledger)
    }

    /// The managers on a runner host.
    pub fn on_host(&mut self, host: usize) -> impl Iterator<Item = &mut Manager> {
        self.managers.iter_mut().filter(move |manager| manager.place.host == host)
    }

    /// The directory of an attempt, whichever manager of the ledger has it.
    pub fn attempt<T>(
        &self,
        manager: usize,
        name: &AttemptName,
        read: impl FnOnce(&Manager, &AttemptDir) -> T,
    ) -> Option<T> {
        let (_, owner) =
            self.partners(manager).find(|(_, m)| m.directory.borrow().attempts.contains_key(name))?;
        owner.directory.borrow().attempts.get(name).map(|dir| read(owner, dir))
    }

    /// True if the directory of an open attempt names the instance, whichever manager of the ledger has it.
    pub fn is_named(&self, manager: usize, id: &InstanceId) -> bool {
        let names = |dir: &AttemptDir| {
            let assigned = dir.record.as_ref().and_then(|record| record.assignment.as_ref());
            dir.closed.is_none() && assigned.is_some_and(|assigned| assigned.instance == *id)
        };
        self.partners(manager).any(|(_, m)| m.directory.borrow().attempts.values().any(names))
    }

    /// True for a copy of a state directory: it has a ledger of its own.
    pub fn is_copy(&self, manager: usize) -> bool {
        self.managers[manager].place.ledger != 0
    }

    /// True if nothing that followed a record of this moment can be lost.
    pub fn trusts(&self, manager: usize, recorded: Stamp) -> bool {
        self.ledger(manager).durable || recorded.boot == self.managers[manager].boot()
    }

    /// The time on the clocks of a manager.
    pub fn stamp(&self, manager: usize) -> Stamp {
        self.managers[manager].stamp(self.now)
    }

    pub fn log(&mut self, pid: Pid, what: fmt::Arguments<'_>) {
        let name = self.processes.get(&pid).map_or("?", |p| p.name.as_str());
        self.story.line(self.now, format_args!("{name}"), what);
    }

    /// A line about something that no process did.
    pub fn log_as(&mut self, who: &str, what: fmt::Arguments<'_>) {
        self.story.line(self.now, format_args!("{who}"), what);
    }

    /// Records that a promise is broken. Only the first one counts.
    pub fn broken(&mut self, what: String) {
        self.log_as("CHECK", format_args!("{what}"));
        self.wrong.get_or_insert(what);
    }

    /// True if this fault occurs now.
    pub fn strikes(&mut self, fault: Fault) -> bool {
        let Some(window) = self.scenario.windows.open(fault, self.now) else { return false };
        let strikes = self.streams.faults.chance(window.per_mille);
        if strikes {
            self.cover.fault(fault);
        }
        strikes
    }

    /// The number of the next process.
    pub fn reserve_pid(&mut self) -> Pid {
        self.next_pid += 1;
        Pid(self.next_pid)
    }

    /// Starts a process with the next step.
    pub fn start(&mut self, pid: Pid, process: Process, body: Body) {
        self.processes.insert(pid, process);
        self.newborn.0.push((pid, body));
    }

    /// Kills a process at the end of this step.
    pub fn doom(&mut self, pid: Pid) {
        self.doomed.push(pid);
    }

    /// Sends SIGTERM.
    pub fn terminate(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.stop = true;
            self.steps.notify(&Channel::Signal(pid));
        }
    }

    pub fn exit_of(&self, pid: Pid) -> Option<Exit> {
        self.processes.get(&pid).and_then(|p| p.exit)
    }

    /// Processes that live, of a kind.
    pub fn living(&self, kind: Kind) -> Vec<Pid> {
        let lives = |p: &Process| p.exit.is_none() && p.kind == kind;
        self.processes.iter().filter(|(_, p)| lives(p)).map(|(pid, _)| *pid).collect()
    }

    pub fn lives(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|p| p.exit.is_none())
    }

    /// True if the runner that this process belongs to is alive.
    pub fn runner_lives(&self, pid: Pid) -> bool {
        let Some(process) = self.processes.get(&pid) else { return false };
        let runner = |number| self.managers[process.manager].runners.get(&number);
        process.runner.is_none_or(|number| runner(number).is_some_and(|r| r.alive))
    }

    /// Carries out everything that is due in the cloud.
    pub fn advance_cloud(&mut self) {
        while let Some((at, due)) = self.cloud.take_due(self.now) {
            match due {
                Due::Launch { request, plan, lie } => self.launch_arrives(&request, plan, lie, at),
                Due::Terminate { id } => {
                    self.cloud.begin_end(&id, at);
                    self.steps.notify(&Channel::Instance(id));
                }
                Due::Suspend { id, takes } => {
                    self.log_as("cloud", format_args!("{id} is being suspended"));
                    self.cloud.suspend(&id, takes, at);
                    self.steps.notify(&Channel::Instance(id));
                }
                Due::Resume { id, takes } => {
                    self.log_as("cloud", format_args!("{id} is being resumed"));
                    self.cloud.resume(&id, takes, at);
                    self.steps.notify(&Channel::Instance(id));
                }
                Due::Gone { id } => {
                    self.log_as("cloud", format_args!("{id} is gone"));
                    self.cloud.end(&id, at);
                    self.steps.notify(&Channel::Instance(id));
                }
            }
        }
    }

    fn launch_arrives(&mut self, request: &LaunchRequest, plan: super::cloud::BootPlan, lie: bool, at: u64) {
        let made = self.cloud.make(request, plan, at, true);
        self.truth.in_flight.remove(&request.token);
        let id = &request.instance;
        let lied = if lie { " though it was refused" } else { "" };
        match (made, plan.takes) {
            (false, _) => {
                self.log_as("cloud", format_args!("{id} exists with another token"));
                check::launched_twice(self, request);
            }
            (true, Some(ms)) => self.log_as("cloud", format_args!("{id} boots within {ms} ms{lied}")),
            (true, None) => self.log_as("cloud", format_args!("{id} will never boot{lied}")),
        }
    }

    /// Delivers wake-ups about changes in the directories.
    pub(super) fn deliver_news(&mut self) {
        for number in 0..self.managers.len() {
            let news = self.managers[number].directory.borrow_mut().news();
            for item in news {
                match item {
                    News::Attempt(name) => self.steps.notify(&Channel::Attempt(number, name)),
                    News::Keeper(pool) => self.steps.notify(&Channel::Keeper(number, pool)),
                    News::KeeperLock => self.steps.notify(&Channel::KeeperLock(number)),
                }
            }
        }
    }
}
