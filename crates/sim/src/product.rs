//! The real engine inside the simulated processes.
//!
//! Does what the command line does around the engine: reads the configuration, calls the engine, and turns the result
//! into an exit code of the custom executor.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use greenroom_core::attempt::End;
use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_core::job_end::JobEnd;
use greenroom_engine::Engine;
use greenroom_engine::acquire::AcquireError;
use greenroom_engine::container::ContainerError;
use greenroom_engine::keeper::{KeeperMode, Pool, keep};
use greenroom_engine::operate::Target;
use greenroom_engine::reap::{hand_on, reap};
use greenroom_engine::stage::StageKind;
use greenroom_ports::attempts::AttemptRecord;
use greenroom_ports::connector::{Output, StageEnd, Stream};

use super::connector::StagePlan;
use super::images;
use super::rig::{Command, Order, Ports, Product};

/// A starting keeper waits this long for the previous one to exit.
const TAKE_OVER: Duration = Duration::from_secs(3);

const OK: i32 = 0;
const SCRIPT_FAILED: i32 = 1;
const SYSTEM_FAILURE: i32 = 2;

/// The real engine as a [`Product`].
#[derive(Debug, Clone, Copy)]
pub struct Greenroom;

impl Product for Greenroom {
    fn body(&self, command: Command, ports: Ports) -> LocalBoxFuture<'static, i32> {
        Box::pin(async move {
            match command {
                Command::Prepare { attempt, record } => prepare(&ports, &attempt, &record).await,
                Command::Run { pool, stage } => run(&ports, &pool, &stage).await,
                Command::Cleanup { attempt, end } => cleanup(&ports, &attempt, end.as_ref()).await,
                Command::Keep { service } => keeper(&ports, service).await,
                Command::Reap => reap_all(&ports).await,
                Command::Order { pool, order } => operate(&ports, &pool, order).await,
                Command::Unbind { pool, instance } => {
                    let done = engine(&ports, &pool).unbind(&instance, false).await;
                    if done.is_ok() { OK } else { SYSTEM_FAILURE }
                }
            }
        })
    }
}

fn engine(ports: &Ports, pool: &PoolName) -> Engine {
    Engine {
        pool: pool.clone(),
        store: Rc::clone(&ports.pools[pool].store),
        host: ports.host.clone(),
        connector: Rc::clone(&ports.connector),
        clock: Rc::clone(&ports.clock),
    }
}

fn pools(ports: &Ports) -> Vec<Pool> {
    ports.pools.iter().map(|(name, p)| Pool::new(engine(ports, name), Rc::clone(&p.setup))).collect()
}

async fn prepare(ports: &Ports, attempt: &AttemptName, record: &AttemptRecord) -> i32 {
    let (setup, _) = ports.pools[&record.pool].setup.current().await;
    let engine = engine(ports, &record.pool);
    let acquired = match engine.acquire(attempt, record, &|| Ok(setup.policy.clone()), &mut |_| {}).await {
        Ok(acquired) => acquired,
        Err(AcquireError::Impossible(_)) => return SCRIPT_FAILED,
        Err(_) => return SYSTEM_FAILURE,
    };
    let Ok(Some(job)) = images::containers(record.job.images.names().iter().map(|name| &**name)) else {
        return OK;
    };
    match engine.prepare_container(attempt, &acquired, &job, &[], &mut |_| {}).await {
        Ok(_) => OK,
        Err(ContainerError::Impossible(_)) => SCRIPT_FAILED,
        Err(_) => SYSTEM_FAILURE,
    }
}

/// An output that discards everything.
struct Nowhere;

#[async_trait(?Send)]
impl Output for Nowhere {
    async fn write(&mut self, _stream: Stream, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

async fn run(ports: &Ports, pool: &PoolName, plan: &StagePlan) -> i32 {
    // The simulated instance decides what the script does; its text is empty.
    let Ok(script) = std::fs::File::open("/dev/null") else { return SYSTEM_FAILURE };
    let kind = StageKind { prepares: plan.first.then_some("get_sources"), ..StageKind::default() };
    match engine(ports, pool).stage(&plan.attempt, (script, kind), &mut Nowhere, &|_| ()).await {
        Ok(StageEnd::Exited(0)) => OK,
        Ok(StageEnd::Exited(_) | StageEnd::Signalled(_) | StageEnd::Impossible(_)) => SCRIPT_FAILED,
        Err(error) if error.is_by_job() => SCRIPT_FAILED,
        Ok(StageEnd::Stopped) | Err(_) => SYSTEM_FAILURE,
    }
}

async fn cleanup(ports: &Ports, attempt: &AttemptName, end: Option<&JobEnd>) -> i32 {
    let Ok(closing) = ports.host.attempts.close_attempt(attempt, End::CleanedUp).await else {
        return SYSTEM_FAILURE;
    };
    let Some(pool) = closing.record.as_ref().map(|r| r.pool.clone()) else { return OK };
    match engine(ports, &pool).release(attempt, &closing, end).await {
        Ok(_) => OK,
        Err(_) => SYSTEM_FAILURE,
    }
}

async fn keeper(ports: &Ports, service: bool) -> i32 {
    let keeping = if service { KeeperMode::AsService } else { KeeperMode::UntilSettled };
    match keep(&ports.host, &pools(ports), keeping, TAKE_OVER).await {
        Ok(_) => OK,
        Err(_) => SYSTEM_FAILURE,
    }
}

async fn reap_all(ports: &Ports) -> i32 {
    let mut code = OK;
    let pools = pools(ports);
    for pool in &pools {
        if reap(pool, Duration::from_secs(30)).await.is_err() {
            code = SYSTEM_FAILURE;
        }
    }
    if hand_on(&pools).await.is_err() { SYSTEM_FAILURE } else { code }
}

async fn operate(ports: &Ports, pool: &PoolName, order: Order) -> i32 {
    let engine = engine(ports, pool);
    let done = match order {
        Order::Drain => engine.drain(&Target::Pool, false).await,
        Order::Resume => engine.resume(&Target::Pool, false).await,
        Order::Return(instance) => engine.resume(&Target::Instance(instance), false).await,
        Order::ForgetElsewhere => engine.forget_elsewhere(false).await,
    };
    if done.is_ok() { OK } else { SYSTEM_FAILURE }
}
