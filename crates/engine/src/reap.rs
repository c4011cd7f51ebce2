//! `reap`: one pass in the foreground, for cron and for operators.
//!
//! Launches nothing. It retires, terminates and cleans up; launches are left to a keeper, which it wakes or starts.

use std::time::Duration;

use greenroom_core::plan::{Plan, warm};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Note, Report};

use super::EngineError;
use super::keeper::{OwnPasses, Pool, PoolKeeper};
use super::pass::Launching;

/// Passes in a row: the next one forgets what the previous one drained.
const ROUNDS: usize = 4;

/// How often a command that waits looks whether a keeper runs.
const KEEPER_LOOK: Duration = Duration::from_secs(2);

/// The result of `reap`.
#[derive(Debug)]
pub enum Reaped {
    /// The passes of this process.
    Here(Box<OwnPasses>),
    /// A keeper is running: the report of its pass that began after the wake-up.
    Keeper(Box<Report>),
    /// A keeper is running, but it made no pass in time.
    NoPass,
}

/// One pass over a pool, or the report of a running keeper's next one (waited for `within`).
pub async fn reap(pool: &Pool, within: Duration) -> Result<Reaped, EngineError> {
    let host = &pool.engine.host;
    if let Some(lock) = host.leadership.lock_keeper(Duration::ZERO).await? {
        let mut keeper = PoolKeeper::new(pool.clone());
        keeper.shown = Some(OwnPasses::default());
        let (setup, problem) = pool.setup.current().await;
        for _ in 0..ROUNDS {
            keeper.step(&setup, problem.clone(), Launching::No).await?;
            if keeper.is_quiet() {
                break;
            }
            keeper.finish(&setup).await;
        }
        drop(lock);
        return Ok(Reaped::Here(Box::new(keeper.shown.unwrap_or_default())));
    }
    let requested_at = pool.engine.now();
    let until = requested_at.plus(within);
    loop {
        host.wakeups.wake_keeper(&pool.engine.pool).await;
        let report = host.reports.read_report(&pool.engine.pool).await?;
        if let Some(report) =
            report.filter(|r| r.at.boot == requested_at.boot && r.at.uptime_ms > requested_at.uptime_ms)
        {
            return Ok(Reaped::Keeper(Box::new(report)));
        }
        let now = pool.engine.now();
        if now.reached(until) {
            return Ok(Reaped::NoPass);
        }
        host.wakeups.pause(Duration::from_millis(50).min(now.until(until))).await;
    }
}

/// Starts a keeper if a pool needs one, after the last `reap` of a process.
///
/// RACE: while a `reap` held the keeper's lock, other processes took it for a keeper and relied on it.
pub async fn hand_on(pools: &[Pool]) -> Result<(), EngineError> {
    for pool in pools {
        if pool.engine.wants_keeper().await? {
            pool.engine.summon().await?;
        }
    }
    Ok(())
}

/// The plan that `reap` would carry out now.
pub async fn preview(pool: &Pool) -> Result<Plan, EngineError> {
    let (setup, _) = pool.setup.current().await;
    pool.engine.preview(&setup).await
}

impl PoolKeeper {
    /// True if no effect is under way.
    fn is_quiet(&self) -> bool {
        self.under_way() == 0
    }
}

impl super::Engine {
    /// True if there is work that only a keeper does: a job waits or holds an instance, an instance is under way, or
    /// idle capacity, one of its images or a stopped instance is missing.
    async fn wants_keeper(&self) -> Result<bool, EngineError> {
        let state = self.store.load().await?;
        let (idle, target) = state.policy.as_ref().map_or((0, 0), |policy| {
            let spare = state.instances.values().map(|i| i.usable()).sum();
            (spare, policy.in_force(self.now()).0.target(state.in_use()))
        });
        let jobs = !state.waiting.is_empty() || !state.granted.is_empty();
        Ok(jobs
            || idle < target
            || warm::is_missing(&state)
            || state.instances.values().any(|i| i.is_under_way())
            || self.lacks_stopped(&state).await)
    }

    /// True if the tier *stopped* is not full, and the last pass did not find that the provider cannot suspend.
    async fn lacks_stopped(&self, state: &PoolState) -> bool {
        let wanted = state.policy.as_ref().map_or(0, |policy| policy.idle_stopped);
        let stopped = state.instances.values().filter(|i| i.phase.is_of_tier()).count();
        if stopped >= usize::try_from(wanted).unwrap_or(usize::MAX) {
            return false;
        }
        let report = self.host.reports.read_report(&self.pool).await.ok().flatten();
        report.is_none_or(|report| !report.notes.contains(&Note::CannotSuspend))
    }

    /// Waits until `done` holds for the state, polling every 200 ms; false after `within`. Starts a keeper where none
    /// runs: the one that was there at first may have ended.
    pub async fn wait_until(
        &self,
        within: Duration,
        mut done: impl FnMut(&PoolState) -> bool,
    ) -> Result<bool, EngineError> {
        let until = self.now().plus(within);
        let mut look_at = self.now().plus(KEEPER_LOOK);
        loop {
            if done(&self.store.load().await?) {
                return Ok(true);
            }
            let now = self.now();
            if now.reached(until) {
                return Ok(false);
            }
            if now.reached(look_at) {
                self.ensure_keeper().await?;
                look_at = now.plus(KEEPER_LOOK);
            }
            self.host.wakeups.pause(Duration::from_millis(200).min(now.until(until))).await;
        }
    }
}
