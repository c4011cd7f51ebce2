//! Keeps pools: one keeper in each state directory, one loop for each pool. No wake-up is lost when it exits.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Abortable, Aborted, Either, LocalBoxFuture, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use greenroom_core::ids::InstanceId;
use greenroom_core::plan::{self, Effect, backoff};
use greenroom_core::pool::PoolState;
use greenroom_core::report::Report;
use greenroom_core::time::Stamp;
use greenroom_ports::host::Host;
use greenroom_ports::setup::{PoolSetup, Setup};
use greenroom_ports::wakeups::{MailboxName, WakeReason};

use crate::accept::{Accepted, ActiveSetup};
use crate::effect::{Done, EffectResult};
use crate::pass::{KeeperCache, Launching, PassResult};
use crate::{Engine, EngineError, deadline};

/// Longest wait after a failed pass, or a failed wait.
const AFTER_ERROR: Duration = Duration::from_secs(10);
/// The pause after the first failed wait; it doubles with each failure in a row.
const AFTER_FAILED_WAIT: Duration = Duration::from_secs(1);
/// After a pass, a keeper rests this many times as long as the pass took, but at most [`LONGEST_REST`]. Under many wake-ups
/// (hundreds of concurrent jobs) this leaves the processor, and the lock of the state, to the calls.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_millis(200);
/// Longest sleep of an idle keeper of a settled pool between two passes.
const IDLE_INTERVAL: Duration = Duration::from_hours(1);

/// The reason why a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// Nothing to do, no request waiting, no wake-up scheduled.
    Settled,
    /// A wake-up came to a settled pool.
    Woken,
    /// The process has to exit, for this reason: [`WakeReason::Stop`], [`WakeReason::Unneeded`], [`WakeReason::Replaced`]
    /// or [`WakeReason::Evicted`].
    Stopped(WakeReason),
}

/// A pool to be kept.
#[derive(Clone)]
pub struct Pool {
    pub engine: Engine,
    pub setup: Rc<dyn Setup>,
    /// The state's revision after the last pass.
    pub(super) revision: Rc<Cell<u64>>,
}

impl Pool {
    pub fn new(engine: Engine, setup: Rc<dyn Setup>) -> Self {
        Self { engine, setup, revision: Rc::default() }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// Effects under way.
type Running = FuturesUnordered<LocalBoxFuture<'static, Done>>;

/// The loop that keeps one pool.
pub(super) struct PoolKeeper {
    pub(super) engine: Engine,
    setup: Rc<dyn Setup>,
    accepted: ActiveSetup,
    revision: Rc<Cell<u64>>,
    memory: KeeperCache,
    running: Running,
    /// True if an instance was idle after the last pass.
    has_idle: bool,
    /// No pass before this moment.
    rest_until: Option<Stamp>,
    /// Failed waits in a row.
    failed_waits: u32,
    /// The results of the passes, if the caller shows it.
    pub(super) shown: Option<OwnPasses>,
}

/// The work that the passes of this process started.
#[derive(Debug, Default)]
pub struct OwnPasses {
    /// The effects as text.
    pub did: Vec<String>,
    /// The last pass's [`Report`], whether it could be written or not.
    pub report: Option<Report>,
}

impl std::fmt::Debug for PoolKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolKeeper").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl PoolKeeper {
    pub(super) fn new(pool: Pool) -> Self {
        let Pool { engine, setup, revision } = pool;
        Self {
            engine,
            setup,
            accepted: ActiveSetup::default(),
            revision,
            memory: KeeperCache::default(),
            running: FuturesUnordered::new(),
            has_idle: false,
            rest_until: None,
            failed_waits: 0,
            shown: None,
        }
    }

    /// Runs passes until the pool is settled, or this process is stopped.
    pub(super) async fn until_settled(&mut self) -> RoundEnd {
        loop {
            let Accepted { setup, problem, is_new } = self.accepted.read(&self.engine, &*self.setup).await;
            if is_new {
                // What failed with the earlier configuration may succeed with this one.
                self.memory.distrust_list();
                self.memory.forget_failures(&setup);
                if let Err(problem) = self.engine.retry_launches().await {
                    tracing::warn!(pool = %self.engine.pool, "the launch back-off stays: {problem}");
                }
            }
            self.begin_rechecks(&setup).await;
            self.rest(&setup).await;
            let began = self.engine.now();
            let stepped = self.step(&setup, problem, Launching::Yes).await;
            let ended = self.engine.now();
            self.rest_until = Some(ended.plus((ended.since(began) * REST).min(LONGEST_REST)));
            let wait = match stepped {
                Ok(None) if self.running.is_empty() => return RoundEnd::Settled,
                Ok(wait) => wait.unwrap_or(IDLE_INTERVAL),
                Err(error) => {
                    tracing::error!(pool = %self.engine.pool, "pass failed: {error}");
                    AFTER_ERROR
                }
            };
            if let Some(end) = self.wait(wait, &setup).await {
                if matches!(end, RoundEnd::Stopped(WakeReason::Unneeded)) {
                    // The next keeper may start much later: effects under way are completed.
                    self.finish(&setup).await;
                }
                return end;
            }
        }
    }

    /// Begins the checks between jobs that are due. An error ends nothing: the pass meets it, too.
    async fn begin_rechecks(&mut self, setup: &PoolSetup) {
        let engine = self.engine.clone();
        let due = Box::pin(async move {
            let state = engine.store.load().await.ok()?;
            Some((engine.due_rechecks(&state).await.ok()?, state))
        });
        let (due, ended) = beside(&mut self.running, due).await;
        self.note_all(ended, setup);
        let Some((effects, state)) = due else { return };
        for effect in effects {
            if self.memory.is_free(&effect, self.engine.now()) {
                self.start(effect, &state, setup);
            }
        }
    }

    /// Rests until the moment that the last pass set. Wake-ups stay in the mailbox meanwhile, and effects continue.
    async fn rest(&mut self, setup: &PoolSetup) {
        let Some(until) = self.rest_until.take() else { return };
        let left = self.engine.now().until(until);
        if left.is_zero() {
            return;
        }
        let wakeups = Rc::clone(&self.engine.host.wakeups);
        let ((), ended) = beside(&mut self.running, wakeups.pause(left)).await;
        self.note_all(ended, setup);
    }

    /// A settled pool waits for a wake-up, for as long as other pools have work.
    pub(super) async fn until_woken(&mut self) -> RoundEnd {
        let (setup, _) = self.setup.current().await;
        // Idle instances are still probed while nothing else is due.
        let within = if self.has_idle {
            IDLE_INTERVAL.min(setup.policy.timing.health_interval)
        } else {
            IDLE_INTERVAL
        };
        match self.engine.host.wakeups.wait(MailboxName::Keeper(&self.engine.pool), within).await {
            Ok(reason) => stop(reason).unwrap_or(RoundEnd::Woken),
            Err(error) => {
                tracing::error!(pool = %self.engine.pool, "waiting failed: {error}");
                self.engine.host.wakeups.pause(AFTER_ERROR).await;
                RoundEnd::Woken
            }
        }
    }

    /// Runs one pass and starts its effects. Returns how long to wait, `None` if nothing is due.
    pub(super) async fn step(
        &mut self,
        setup: &PoolSetup,
        problem: Option<String>,
        launching: Launching,
    ) -> Result<Option<Duration>, super::EngineError> {
        // RACE: an effect may have been given the store's lock without having been polled since. If it were not polled
        // now, the pass would wait for a lock that this process holds.
        let pass = Box::pin(self.engine.pass(&mut self.memory, setup, problem, launching));
        let (passed, ended) = beside(&mut self.running, pass).await;
        // RACE: the pass counted effects that ended meanwhile as busy, and waits for them.
        let again = (!ended.is_empty()).then_some(Duration::ZERO);
        self.note_all(ended, setup);
        let PassResult { plan, state } = passed?;
        self.revision.set(state.revision);
        self.has_idle = state.instances.values().any(|instance| instance.is_idle());
        self.memory.warming.stop_unfit(&state);
        for effect in &plan.effects {
            self.start(effect.clone(), &state, setup);
        }
        let now = self.engine.now();
        let waiting = !state.waiting.is_empty();
        let next = plan.report.next.map(|next| now.until(next));
        if let Some(shown) = &mut self.shown {
            shown.report = Some(plan.report);
        }
        let heartbeat = waiting.then_some(setup.policy.timing.pass_interval);
        Ok([next, heartbeat, again].into_iter().flatten().min())
    }

    /// Starts an effect beside those under way, unless one about the same instance or attempt is. Effects run in this
    /// process without a thread: the keeper polls them while it waits and while it plans.
    fn start(&mut self, effect: Effect, state: &PoolState, setup: &PoolSetup) {
        if let Effect::Warm { instance, image } = &effect {
            return self.start_pull(instance.clone(), Arc::clone(image), setup);
        }
        let fresh = match effect.instance() {
            Some(id) => self.memory.busy.insert(id.clone()),
            None => self.memory.may_try(&effect, self.engine.now()),
        };
        if !fresh {
            return;
        }
        if let Effect::CheckHealth { .. } = effect {
            tracing::debug!(pool = %self.engine.pool, "{effect}");
        } else {
            tracing::info!(pool = %self.engine.pool, "{effect}");
        }
        if let Some(shown) = &mut self.shown {
            shown.did.push(effect.to_string());
        }
        let engine = self.engine.clone();
        let setup = setup.clone();
        let news = self.memory.news_of_a_boot(&effect, state, self.engine.now());
        self.running.push(Box::pin(async move {
            let boot = match news {
                Some(boot) => Some(engine.with_console(boot, &setup).await),
                None => None,
            };
            let limit = deadline::of(&effect, &setup.policy);
            let work = Box::pin(engine.carry_out(&effect, &setup));
            let outcome = engine.within(limit, work).await;
            let outcome = outcome.unwrap_or_else(|| EffectResult::Failed(deadline::passed(limit)));
            Done { effect, outcome, boot }
        }));
    }

    /// Waits for an effect to end, a wake-up, or the time; `Some` if this process has to exit.
    async fn wait(&mut self, time: Duration, setup: &PoolSetup) -> Option<RoundEnd> {
        let wakeups = Rc::clone(&self.engine.host.wakeups);
        let pool = self.engine.pool.clone();
        let wait = Box::pin(async move { wakeups.wait(MailboxName::Keeper(&pool), time).await });
        let (done, woken) = if self.running.is_empty() {
            (None, Some(wait.await))
        } else {
            match select(self.running.next(), wait).await {
                Either::Left((done, _)) => (done, None),
                Either::Right((woken, _)) => (None, Some(woken)),
            }
        };
        if let Some(done) = done {
            self.note(done, setup);
        }
        match woken? {
            Ok(reason) => {
                self.failed_waits = 0;
                stop(reason)
            }
            Err(error) => {
                tracing::error!(pool = %self.engine.pool, "waiting failed: {error}");
                // Effects continue during the rest before the next pass.
                let pause = AFTER_FAILED_WAIT * 2_u32.pow(self.failed_waits.min(4));
                self.failed_waits = self.failed_waits.saturating_add(1);
                self.rest_until = Some(self.engine.now().plus(pause.min(AFTER_ERROR)));
                None
            }
        }
    }

    /// Number of effects that are under way.
    pub(super) fn under_way(&self) -> usize {
        self.running.len()
    }

    /// Starts a pull in advance, which can be stopped.
    fn start_pull(&mut self, instance: InstanceId, image: Arc<str>, setup: &PoolSetup) {
        let Some(stop) = self.memory.warming.begin(&instance, &image) else { return };
        let effect = Effect::Warm { instance, image };
        tracing::info!(pool = %self.engine.pool, "{effect}");
        let engine = self.engine.clone();
        let setup = setup.clone();
        self.running.push(Box::pin(async move {
            let limit = deadline::of(&effect, &setup.policy);
            let work = Box::pin(engine.within(limit, engine.carry_out(&effect, &setup)));
            let outcome = match Abortable::new(work, stop).await {
                Ok(outcome) => outcome.unwrap_or_else(|| EffectResult::Failed(deadline::passed(limit))),
                Err(Aborted) => EffectResult::Refused,
            };
            Done { effect, outcome, boot: None }
        }));
    }

    /// Runs the started effects to completion, except for pulls in advance, which a later keeper repeats.
    pub(super) async fn finish(&mut self, setup: &PoolSetup) {
        self.memory.warming.stop_all();
        while let Some(done) = self.running.next().await {
            self.note(done, setup);
        }
    }

    /// Notes the ends of several effects.
    fn note_all(&mut self, ended: Vec<Done>, setup: &PoolSetup) {
        for done in ended {
            self.note(done, setup);
        }
    }

    /// Notes the end of an effect in the cache, which decides when the next call about its instance is due. The state has
    /// its outcome already.
    fn note(&mut self, done: Done, setup: &PoolSetup) {
        if let Effect::Warm { instance, image } = done.effect {
            if let EffectResult::Failed(failure) = &done.outcome {
                tracing::warn!(pool = %self.engine.pool, "pull {image} on {instance}: {failure}");
            }
            let now = self.engine.now();
            return self.memory.warming.note((instance, image), done.outcome, now, &setup.policy.timing);
        }
        let Some(id) = done.effect.instance().cloned() else {
            let pause = setup.policy.timing.probe_interval;
            self.memory.tried.insert(done.effect.clone(), Some(self.engine.now().plus(pause)));
            if let EffectResult::Failed(failure) = &done.outcome {
                tracing::warn!(pool = %self.engine.pool, "{}: {failure}", done.effect);
            }
            return;
        };
        self.memory.busy.remove(&id);
        self.memory.awaited.remove(&id);
        let now = self.engine.now();
        let timing = &setup.policy.timing;
        let has_static_hosts = setup.has_static_hosts();
        if let EffectResult::NoResponse(..) = done.outcome {
            self.memory.unhealthy.insert(id.clone(), now);
        }
        let lasting = self.memory.meet(&id, &done.outcome, now, timing);
        if let Some(boot) = done.boot {
            self.memory.remember_boot(boot);
        }
        match done.outcome {
            EffectResult::Fine => {
                self.memory.failing_calls.remove(&id);
                if matches!(
                    done.effect,
                    Effect::CheckHealth { .. } | Effect::Check { .. } | Effect::Recheck { .. }
                ) {
                    self.memory.healthy.insert(id, now);
                }
                if matches!(done.effect, Effect::Launch { .. } | Effect::Resume { .. }) {
                    self.memory.distrust_list();
                }
            }
            EffectResult::Unfit(reason) => {
                tracing::warn!(pool = %self.engine.pool, "{id}: {reason}");
                self.memory.failing_calls.remove(&id);
                self.memory.remember_unfit(id, reason, now);
            }
            EffectResult::Refused => drop(self.memory.failing_calls.remove(&id)),
            EffectResult::Gone => self.memory.forget(&id),
            EffectResult::Again => {
                if matches!(done.effect, Effect::Suspend { .. } | Effect::Resume { .. }) {
                    self.memory.distrust_list();
                }
                self.memory.wait_for(id, now.plus(timing.probe_interval));
            }
            EffectResult::Failed(failure)
            | EffectResult::NoResponse(failure, _)
            | EffectResult::Unreached(failure, ..) => {
                tracing::warn!(pool = %self.engine.pool, "{}: {failure}", done.effect);
                let failures = self.memory.failing_calls.get(&id).map_or(0, |t| t.failures).saturating_add(1);
                let backed_off = backoff::retry_at(&failure.class, failures, now, timing);
                let at_health_check = now.plus(timing.health_interval);
                let until = match done.effect {
                    // Retried when the next health check would be due, at the latest.
                    Effect::CheckHealth { .. } if backed_off.reached(at_health_check) => at_health_check,
                    _ if has_static_hosts && backed_off.reached(at_health_check) => at_health_check,
                    _ if has_static_hosts => backed_off,
                    // A booting instance is probed again at each pass, one that denies the login less and less often; a
                    // failing call backs off by its class.
                    Effect::Probe { .. } | Effect::Resume { .. } if lasting.is_some() => {
                        lasting.map_or(now, |pause| now.plus(pause))
                    }
                    Effect::Probe { .. } => now,
                    _ => backed_off,
                };
                self.memory.failing_calls.insert(id, plan::FailingCall { failures, failure, until });
            }
        }
    }
}

/// Runs `work` while effects continue; also returns those that ended meanwhile.
async fn beside<T>(running: &mut Running, mut work: impl Future<Output = T> + Unpin) -> (T, Vec<Done>) {
    let mut ended = Vec::new();
    while !running.is_empty() {
        match select(work, running.next()).await {
            Either::Left((result, _)) => return (result, ended),
            Either::Right((done, unfinished)) => {
                ended.extend(done);
                work = unfinished;
            }
        }
    }
    (work.await, ended)
}

/// The end of the round that this reason demands; `None` if passes go on.
fn stop(woken: WakeReason) -> Option<RoundEnd> {
    match woken {
        WakeReason::Stop | WakeReason::Unneeded | WakeReason::Replaced | WakeReason::Evicted => {
            Some(RoundEnd::Stopped(woken))
        }
        WakeReason::Message | WakeReason::Timeout | WakeReason::RunnerGone => None,
    }
}

/// The condition on which a keeper exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperMode {
    /// `greenroom keep`: runs until it is stopped.
    AsService,
    /// Started by a call that needed one: runs until all pools are settled.
    UntilSettled,
}

/// The reason why a keeper exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperExit {
    /// Another keeper is running.
    Elsewhere,
    Settled,
    /// The keeper was stopped by SIGTERM, or by SIGQUIT once no attempt was open.
    Stopped,
    /// The executable was replaced; a background keeper has started the new one.
    HandedOver,
    /// The state directory was removed or replaced.
    Evicted,
}

/// Keeps pools until settled or stopped. Pools run concurrently: a slow provider delays its own pool only.
///
/// A starting keeper waits `take_over` for the previous one to exit.
pub async fn keep(
    host: &Host,
    pools: &[Pool],
    keeping: KeeperMode,
    take_over: Duration,
) -> Result<KeeperExit, EngineError> {
    loop {
        let Some(lock) = host.leadership.lock_keeper(take_over).await? else {
            return Ok(KeeperExit::Elsewhere);
        };
        let end = side_by_side(pools, keeping).await;
        drop(lock);
        match end {
            RoundEnd::Stopped(WakeReason::Replaced) => {
                // The service manager restarts a service, which finds the state as after a crash.
                if keeping == KeeperMode::UntilSettled {
                    host.leadership.start_keeper().await?;
                }
                return Ok(KeeperExit::HandedOver);
            }
            RoundEnd::Stopped(WakeReason::Evicted) => return Ok(KeeperExit::Evicted),
            RoundEnd::Stopped(_) => return Ok(KeeperExit::Stopped),
            RoundEnd::Settled | RoundEnd::Woken => {}
        }
        // RACE: a request committed before the unlock saw a living keeper and waits for it. One committed later finds
        // none and starts one. So one check after the unlock is enough.
        if !any_news(pools).await? {
            return Ok(KeeperExit::Settled);
        }
    }
}

/// True if a pool's state has changed since its last pass: a call may have committed after the last wait, and found the
/// keeper still alive.
async fn any_news(pools: &[Pool]) -> Result<bool, EngineError> {
    for pool in pools {
        if pool.engine.store.load().await?.revision != pool.revision.get() {
            return Ok(true);
        }
    }
    Ok(false)
}

type Round = LocalBoxFuture<'static, (PoolKeeper, RoundEnd)>;

/// Runs every pool; returns when all are settled at the same time, or when the keeper is stopped.
async fn side_by_side(pools: &[Pool], keeping: KeeperMode) -> RoundEnd {
    let mut rounds: FuturesUnordered<Round> = FuturesUnordered::new();
    for pool in pools {
        rounds.push(Box::pin(working(PoolKeeper::new(pool.clone()))));
    }
    let mut asleep = 0;
    while let Some((keeper, end)) = rounds.next().await {
        match end {
            RoundEnd::Stopped(_) => return end,
            RoundEnd::Woken => {
                asleep -= 1;
                rounds.push(Box::pin(working(keeper)));
            }
            RoundEnd::Settled => {
                asleep += 1;
                if asleep == pools.len() && keeping == KeeperMode::UntilSettled {
                    return RoundEnd::Settled;
                }
                rounds.push(Box::pin(sleeping(keeper)));
            }
        }
    }
    RoundEnd::Settled
}

async fn working(mut keeper: PoolKeeper) -> (PoolKeeper, RoundEnd) {
    let end = keeper.until_settled().await;
    (keeper, end)
}

async fn sleeping(mut keeper: PoolKeeper) -> (PoolKeeper, RoundEnd) {
    let end = keeper.until_woken().await;
    (keeper, end)
}
