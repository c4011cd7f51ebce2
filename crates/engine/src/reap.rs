//! `reap`: one pass in the foreground, for cron and for operators.
//!
//! Launches nothing. It retires, terminates and cleans up; launches are left to a keeper, which it wakes or starts.

use std::collections::BTreeSet;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::Location;
use greenroom_core::inventory::{Resource, ResourceKind};
use greenroom_core::orphan::{self, Knowledge, Ownership, instance_of};
use greenroom_core::plan::listing::KnownLaunches;
use greenroom_core::plan::{Plan, warm};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Note, Report};
use greenroom_core::time::Pretty;
use greenroom_ports::provider::ProviderError;
use greenroom_ports::setup::PoolSetup;

use crate::keeper::{OwnPasses, Pool, PoolKeeper};
use crate::pass::Launching;
use crate::{Engine, EngineError};

/// Passes in a row: the next one forgets what the previous one drained.
const ROUNDS: usize = 4;

/// Interval at which a command that waits checks that a keeper runs.
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

// Compares the provider's resources with the record, for `pool leaks`, and deletes orphans on request.
//
// Needs no keeper and disturbs none: it deletes only resources without a record.

/// The reason why the orphans are unknown.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("the provider cannot list its resources: {0}")]
    Provider(#[from] ProviderError),
    #[error("the provider's list is incomplete: there may be more resources")]
    Incomplete,
    #[error("the list is of {here}, but the pool has instances in {location}")]
    Elsewhere { location: Location, here: Location },
    #[error("{problem}")]
    Moved { problem: String },
    #[error(transparent)]
    Trouble(#[from] EngineError),
}

/// The end of an orphan's deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// The provider no longer finds it.
    Gone,
    /// The orphan still exists, for this reason: a refusal that a retry does not change, or the time limit.
    Stays(String),
}

impl Engine {
    /// All of the provider's resources for the pool, each with its ownership.
    pub async fn resources(&self, setup: &PoolSetup) -> Result<Vec<(Resource, Ownership)>, LookError> {
        let identity = self.host.leadership.identity().await.map_err(EngineError::from)?;
        if let Some(problem) = identity.moved {
            return Err(LookError::Moved { problem });
        }
        // RACE: read before and after: a resource launched or terminated meanwhile has its record in one of the two.
        let before = self.store.load().await.map_err(EngineError::from)?;
        let resources = setup.provider.resources(&self.pool).await?;
        if !resources.complete {
            return Err(LookError::Incomplete);
        }
        let recorded = self.store.load().await.map_err(EngineError::from)?;
        if let Some(here) = resources.location
            && let Some(location) = recorded.location_outside(&here)
        {
            return Err(LookError::Elsewhere { location: location.clone(), here });
        }
        let mut denied = BTreeSet::new();
        for id in orphan::possibly_gone(&resources.found, &recorded) {
            if setup.provider.endpoint(&id).await.is_err_and(|e| *e.class() == ErrorClass::NotFound) {
                denied.insert(id);
            }
        }
        let attempts = self.host.attempts.attempts_of(&self.pool).await.map_err(EngineError::from)?;
        let launches = KnownLaunches {
            recorded: &recorded,
            owner: &identity.owner,
            generations: &identity.generations,
            attempts: &attempts,
        };
        let grace = setup.policy.timing.reap_grace;
        let known = Knowledge { launches, before: &before, denied: &denied, grace, now: self.now() };
        let classified = resources.found.into_iter().map(|one| {
            let ownership = orphan::judge(&one, &known);
            (one, ownership)
        });
        let copies = resources.copies.into_iter().map(|one| {
            let ownership = orphan::judge_copy(&one, &identity.owner);
            (one, ownership)
        });
        Ok(classified.chain(copies).collect())
    }

    /// Deletes orphans, instances first. Retries each until the provider no longer finds it, for `within` at most.
    /// `report` receives each result.
    pub async fn delete(
        &self,
        setup: &PoolSetup,
        orphans: Vec<Resource>,
        within: Duration,
        report: &mut dyn FnMut(&Resource, &Deleted),
    ) {
        let until = self.now().plus(within);
        let mut pending = orphans;
        pending.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        loop {
            let is_late = self.now().reached(until);
            let mut left: Vec<Resource> = Vec::new();
            for resource in pending {
                // A resource that an instance uses may be deleted together with it.
                let is_used = left.iter().any(|other| is_instance_of(other, &resource));
                let answer = if is_used { Ok(()) } else { self.delete_once(setup, &resource).await };
                match end(answer, is_late.then_some(within)) {
                    Some(end) => report(&resource, &end),
                    None => left.push(resource),
                }
            }
            if left.is_empty() {
                return;
            }
            pending = left;
            self.host.wakeups.pause(setup.policy.timing.probe_interval).await;
        }
    }

    async fn delete_once(&self, setup: &PoolSetup, resource: &Resource) -> Result<(), ProviderError> {
        if let (ResourceKind::Instance, Some(id)) = (resource.kind, &resource.instance) {
            self.connector.discard_keys(id).await;
        }
        setup.provider.delete(resource).await
    }
}

fn is_instance_of(instance: &Resource, other: &Resource) -> bool {
    let is_one = |resource: &Resource| resource.kind == ResourceKind::Instance;
    is_one(instance) && !is_one(other) && instance_of(instance) == instance_of(other)
}

/// `None`: retry. `late`: the time limit that has passed.
fn end(answer: Result<(), ProviderError>, late: Option<Duration>) -> Option<Deleted> {
    match (answer, late) {
        (Err(error), _) if *error.class() == ErrorClass::NotFound => Some(Deleted::Gone),
        (Err(error), None) if may_pass(error.class()) => None,
        (Err(error), _) => Some(Deleted::Stays(error.to_string())),
        (Ok(()), None) => None,
        (Ok(()), Some(within)) => Some(Deleted::Stays(format!("it still exists after {}", Pretty(within)))),
    }
}

/// True if the same call may succeed a moment later.
fn may_pass(class: &ErrorClass) -> bool {
    matches!(class, ErrorClass::Transient | ErrorClass::Throttled { .. } | ErrorClass::Unknown)
}
