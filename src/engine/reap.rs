//! `reap`: one pass in the foreground, for cron and for operators.
//!
//! Launches nothing. It retires, terminates and cleans up; launches are left to a keeper, which it wakes or starts.

use std::time::Duration;

use super::EngineError;
use super::keeper::{Pool, PoolKeeper};
use super::pass::Launching;
use crate::core::plan::Plan;
use crate::core::report::Report;

/// Passes in a row: what one pass drains, the next one sees gone.
const ROUNDS: usize = 4;

/// What reaping did.
#[derive(Debug)]
pub enum Reaped {
    /// We made the passes ourselves: what they did, and the report of the last one.
    Here(Vec<String>, Box<Option<Report>>),
    /// A keeper is at work; the report of its pass that began after we asked.
    Keeper(Box<Report>),
    /// A keeper is at work, but it made no pass in time.
    NoPass,
}

/// One pass over a pool, or the report of a running keeper's next one (waited for `within`).
pub async fn reap(pool: &Pool, within: Duration) -> Result<Reaped, EngineError> {
    let host = &pool.engine.host;
    if let Some(lock) = host.lock_keeper(Duration::ZERO).await? {
        let mut keeper = PoolKeeper::new(pool.clone());
        keeper.did = Some(Vec::new());
        let (setup, problem) = pool.setup.current().await;
        for _ in 0..ROUNDS {
            keeper.step(&setup, problem.clone(), Launching::No).await?;
            if keeper.is_quiet() {
                break;
            }
            keeper.finish(&setup).await;
        }
        drop(lock);
        let report = host.read_report(&pool.engine.pool).await?;
        return Ok(Reaped::Here(keeper.did.unwrap_or_default(), Box::new(report)));
    }
    let asked = pool.engine.now();
    let until = asked.plus(within);
    loop {
        host.wake_keeper(&pool.engine.pool).await;
        let report = host.read_report(&pool.engine.pool).await?;
        if let Some(report) = report.filter(|r| r.at.boot == asked.boot && r.at.uptime_ms > asked.uptime_ms) {
            return Ok(Reaped::Keeper(Box::new(report)));
        }
        let now = pool.engine.now();
        if now.reached(until) {
            return Ok(Reaped::NoPass);
        }
        host.pause(Duration::from_millis(50).min(now.until(until))).await;
    }
}

/// Calls a keeper if a pool wants one, after the last `reap` of a process.
///
/// RACE: whoever committed something while a `reap` held the keeper's lock, in whichever pool, took it for a keeper.
pub async fn hand_on(pools: &[Pool]) -> Result<(), EngineError> {
    for pool in pools {
        if pool.engine.wants_keeper().await? {
            pool.engine.summon().await?;
        }
    }
    Ok(())
}

/// The very plan that `reap` would carry out now.
pub async fn preview(pool: &Pool) -> Result<Plan, EngineError> {
    let (setup, _) = pool.setup.current().await;
    pool.engine.preview(&setup).await
}

impl PoolKeeper {
    /// No effect under way.
    fn is_quiet(&self) -> bool {
        self.under_way() == 0
    }
}

impl super::Engine {
    /// Is there work that only a keeper does: somebody waits or has to be watched over, something is under way, or idle
    /// capacity is missing?
    async fn wants_keeper(&self) -> Result<bool, EngineError> {
        let state = self.store.load().await?;
        let (idle, target) = state.policy.as_ref().map_or((0, 0), |policy| {
            let spare = state.instances.values().map(|i| i.usable()).sum();
            (spare, policy.in_force(self.now()).0.target(state.in_use()))
        });
        let jobs = !state.waiting.is_empty() || !state.granted.is_empty();
        Ok(jobs || idle < target || state.instances.values().any(|i| i.is_under_way()))
    }

    /// Waits until `done` holds for the state, looking at least once a second; false when the time is up.
    pub async fn wait_until(
        &self,
        within: Duration,
        mut done: impl FnMut(&crate::core::pool::PoolState) -> bool,
    ) -> Result<bool, EngineError> {
        let until = self.now().plus(within);
        loop {
            if done(&self.store.load().await?) {
                return Ok(true);
            }
            let now = self.now();
            if now.reached(until) {
                return Ok(false);
            }
            self.host.pause(Duration::from_millis(200).min(now.until(until))).await;
        }
    }
}
