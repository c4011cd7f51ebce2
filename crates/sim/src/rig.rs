//! Connects the product with the simulation.
//!
//! The simulation starts processes; the product runs inside them: the real engine, or a small fake in tests.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::job_end::JobEnd;
use greenroom_ports::attempts::AttemptRecord;
use greenroom_ports::clock::Clock;
use greenroom_ports::connector::Connector;
use greenroom_ports::host::Host;
use greenroom_ports::setup::Setup;
use greenroom_ports::store::Store;

use super::connector::{SimConnector, StagePlan};
use super::host::SimHost;
use super::ports::{SimClock, SimSetup, SimStore};
use super::process::{Kind, Proc, Process, Shared};
use crate::exec::Pid;

/// The command of a process, which a [`Product`] carries out.
#[derive(Debug, Clone)]
pub enum Command {
    Prepare {
        attempt: AttemptName,
        record: Box<AttemptRecord>,
    },
    Run {
        pool: PoolName,
        stage: StagePlan,
    },
    Cleanup {
        attempt: AttemptName,
        end: Option<JobEnd>,
    },
    Keep {
        service: bool,
    },
    Reap,
    Order {
        pool: PoolName,
        order: Order,
    },
    /// The operator releases a static host from its trust domain.
    Unbind {
        pool: PoolName,
        instance: InstanceId,
    },
}

/// A command of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    Drain,
    Resume,
    /// One instance returns to service.
    Return(InstanceId),
    /// Records of instances in another account are dropped.
    ForgetElsewhere,
}

/// One pool's ports.
#[derive(Clone)]
pub struct PoolPorts {
    pub store: Rc<dyn Store>,
    pub setup: Rc<dyn Setup>,
}

impl fmt::Debug for PoolPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolPorts")
    }
}

/// Everything that a process may use, with [`PoolPorts`] for each pool.
#[derive(Clone)]
pub struct Ports {
    pub host: Host,
    pub clock: Rc<dyn Clock>,
    pub connector: Rc<dyn Connector>,
    pub pools: BTreeMap<PoolName, PoolPorts>,
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ports")
    }
}

/// Runs inside the processes. Exit codes are those of the custom executor: 0, 1 (the script failed), 2 (system
/// failure).
pub trait Product {
    fn body(&self, command: Command, ports: Ports) -> LocalBoxFuture<'static, i32>;
}

/// Starts processes of the [`Product`].
#[derive(Clone)]
pub struct Starter {
    pub product: Rc<dyn Product>,
}

impl fmt::Debug for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Starter")
    }
}

/// The runner number of processes that no runner called.
pub const NOBODY: u32 = u32::MAX;

impl Starter {
    /// Starts a process of a manager; `runner` is the one that calls it, or whose control group it is in.
    pub fn start(
        &self,
        world: &Shared,
        command: Command,
        name: String,
        manager: usize,
        runner: Option<u32>,
    ) -> Pid {
        let kind = match &command {
            Command::Prepare { .. } => Kind::Prepare,
            Command::Run { .. } => Kind::Run,
            Command::Cleanup { .. } => Kind::Cleanup,
            Command::Keep { .. } => Kind::Keep,
            Command::Reap | Command::Order { .. } | Command::Unbind { .. } => Kind::Reap,
        };
        let stage = match &command {
            Command::Run { stage, .. } => Some(stage.clone()),
            _ => None,
        };
        let pid = world.borrow_mut().reserve_pid();
        let proc = Proc { world: Rc::clone(world), pid, manager };
        let ports = self.ports(&proc, runner.unwrap_or(NOBODY), stage);
        let body = self.product.body(command, ports);
        let process = Process { name, kind, manager, runner, stop: false, exit: None, stalled: 0, steps: 0 };
        let mut world = world.borrow_mut();
        world.start(pid, process, body);
        world.log(pid, format_args!("starts"));
        pid
    }

    fn ports(&self, proc: &Proc, runner: u32, stage: Option<StagePlan>) -> Ports {
        let names: Vec<PoolName> = proc.world.borrow().config.keys().cloned().collect();
        let pool = |name: PoolName| {
            let store: Rc<dyn Store> = Rc::new(SimStore { proc: proc.clone(), pool: name.clone() });
            let setup: Rc<dyn Setup> = Rc::new(SimSetup::new(proc, &name));
            (name, PoolPorts { store, setup })
        };
        Ports {
            host: Host::of(&Rc::new(SimHost { proc: proc.clone(), runner, starter: self.clone() })),
            clock: Rc::new(SimClock(proc.clone())),
            connector: Rc::new(SimConnector { proc: proc.clone(), stage }),
            pools: names.into_iter().map(pool).collect(),
        }
    }

    /// Starts a background keeper, in the control group of its parent.
    pub fn start_keeper(&self, by: &Proc) -> Pid {
        let (runner, number) = {
            let mut world = by.world.borrow_mut();
            world.truth.keepers += 1;
            (world.processes.get(&by.pid).and_then(|p| p.runner), world.truth.keepers)
        };
        self.start(&by.world, Command::Keep { service: false }, format!("keep{number}"), by.manager, runner)
    }

    /// Starts a process that is not Greenroom's.
    pub fn outside<F, A>(world: &Shared, name: String, manager: usize, runner: Option<u32>, body: F) -> Pid
    where
        F: FnOnce(Proc) -> A,
        A: Future<Output = ()> + 'static,
    {
        let pid = world.borrow_mut().reserve_pid();
        let proc = Proc { world: Rc::clone(world), pid, manager };
        let future = body(proc);
        let process = Process {
            name,
            kind: Kind::Outside,
            manager,
            runner,
            stop: false,
            exit: None,
            stalled: 0,
            steps: 0,
        };
        let body = Box::pin(async move {
            future.await;
            0
        });
        world.borrow_mut().start(pid, process, body);
        pid
    }
}
