//! One pass: observe, plan, commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use greenroom_core::event::{Change, Event};
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::{Generation, InstanceId};
use greenroom_core::instance::Instance;
use greenroom_core::inventory::{Listing, Notice};
use greenroom_core::obstacle::Lasting;
use greenroom_core::plan::{self, Effect, Fresh, InstanceCalls, Observed, Plan, View};
use greenroom_core::policy::{Policy, Timing};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{FailedBoot, Note, Report};
use greenroom_core::time::Stamp;
use greenroom_ports::setup::PoolSetup;

use super::effect::EffectResult;
use super::warm::Warming;
use super::{Engine, EngineError, deadline};

/// Greatest age of the metadata services' notices. A link wakes the keeper until it has been asked.
const ANNOUNCED_AGE: Duration = Duration::from_secs(3);

/// Facts that a keeper caches between passes, for [`Observed`]. Losing them costs time, never correctness.
#[derive(Debug, Default)]
pub(super) struct KeeperCache {
    pub(super) generation: Option<Generation>,
    pub(super) listing: Option<(Stamp, Result<Listing, Failure>)>,
    /// Time at which the last complete list began, once this keeper knows.
    pub(super) listed: Option<Stamp>,
    /// Times at which [`endpoint`](greenroom_ports::provider::Provider::endpoint) denied instances that each list since lacks.
    pub(super) denied: BTreeMap<InstanceId, Stamp>,
    /// The announcements of the instances' metadata services, and the time at which they were read.
    pub(super) announced: Option<(Stamp, BTreeMap<InstanceId, Notice>)>,
    pub(super) first_seen: BTreeMap<InstanceId, Stamp>,
    pub(super) failing_calls: BTreeMap<InstanceId, plan::FailingCall>,
    /// Times until which calls that succeeded are not repeated.
    pub(super) awaited: BTreeMap<InstanceId, Stamp>,
    /// The operator's last `pool resume` that the failing calls know of.
    pub(super) resumed: Option<Stamp>,
    /// Time of the last successful call about each instance.
    pub(super) healthy: BTreeMap<InstanceId, Stamp>,
    /// Time at which each ready instance last did not respond.
    pub(super) unhealthy: BTreeMap<InstanceId, Stamp>,
    /// The reasons why instances are not reached.
    pub(super) obstacles: BTreeMap<InstanceId, Lasting>,
    /// True if the last pass suspected the runner host.
    pub(super) suspects_host: bool,
    /// The last list lacked every instance, although they answer.
    pub(super) doubts_list: bool,
    pub(super) busy: BTreeSet<InstanceId>,
    /// Pulls in advance.
    pub(super) warming: Warming,
    /// Effects about attempts: under way (`None`), or done, with the time of the next try. Otherwise an effect that
    /// finds the lease held would be planned again immediately, for as long as it is held.
    pub(super) tried: BTreeMap<Effect, Option<Stamp>>,
    /// Recent failed boots, oldest first.
    pub(super) boots: Vec<FailedBoot>,
    /// Instances that failed the check between jobs lately, oldest first: when, and why.
    pub(super) unfit: Vec<(Stamp, InstanceId, String)>,
}

/// The permission of a pass to launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launching {
    Yes,
    /// `reap` leaves launches to a keeper.
    No,
}

/// A committed pass: its [`Plan`], and the state after its events.
#[derive(Debug)]
pub(super) struct PassResult {
    pub(super) plan: Plan,
    pub(super) state: PoolState,
}

impl Engine {
    /// Runs one pass: observes, plans ([`plan::plan`]) under the store's lock, commits, reports. The caller carries out the
    /// effects.
    pub(super) async fn pass(
        &self,
        memory: &mut KeeperCache,
        setup: &PoolSetup,
        problem: Option<String>,
        launching: Launching,
    ) -> Result<PassResult, EngineError> {
        let observed = self.observe(memory, setup, launching).await?;
        let mut planned = None;
        let now = self.now();
        let generation = memory.generation.clone();
        let committed = self
            .commit(|state| {
                let view = View { recorded: state, observed: &observed };
                let plan = plan::plan(view, &setup.policy, now);
                let mut events = begun(state, generation.as_ref(), &plan, now);
                events.extend(plan.events.iter().cloned());
                planned = Some(plan);
                events
            })
            .await?;
        let mut plan = planned.expect("transact calls `decide` at least once");
        let is_launch = |effect: &Effect| matches!(effect, Effect::Launch { .. });
        if plan.effects.iter().any(is_launch) {
            // CRASH: a launch whose intent is lost would be a stranger to the next keeper. A repeated launch may stem
            // from a keeper that died before this sync.
            if let Err(problem) = self.store.sync().await {
                tracing::warn!(pool = %self.pool, "nothing is launched before its record is durable: {problem}");
                // Recorded, but not requested: a later pass launches them.
                plan.effects.retain(|effect| !is_launch(effect));
            }
        }
        if let Some(problem) = problem {
            plan.report.notes.push(Note::ConfigInvalid { problem });
        }
        plan.report.listed = self.last_list(memory).await;
        plan.report.api_calls = setup.provider.api_calls();
        self.log_suspicion(memory, &plan.report);
        plan.report.notes.extend(memory.unfit_notes(now));
        let boots = memory.failed_boots(now).iter().cloned().map(Note::BootFailed);
        plan.report.notes.extend(boots);
        self.forget_with_events(memory, &committed.events);
        self.report_and_compact(&plan.report).await;
        Ok(PassResult { plan, state: committed.state })
    }

    /// Time at which the last complete list began. Before this keeper's first list, it is that of the keeper before.
    async fn last_list(&self, memory: &mut KeeperCache) -> Option<Stamp> {
        let complete = |listing: &Listing| listing.complete.then_some(listing.begun);
        if let Some((_, Ok(listing))) = &memory.listing
            && let Some(begun) = complete(listing)
        {
            memory.listed = Some(begun);
        } else if memory.listed.is_none() {
            let earlier = self.host.reports.read_report(&self.pool).await;
            memory.listed = earlier.ok().flatten().and_then(|report| report.listed);
        }
        memory.listed
    }

    /// Writes the report, and compacts the journal. On a full disk, neither holds up the pass's effects: machines that
    /// cost money are still terminated.
    async fn report_and_compact(&self, report: &Report) {
        if let Err(problem) = self.host.reports.write_report(&self.pool, report).await {
            tracing::warn!(pool = %self.pool, "cannot write the report of this pass: {problem}");
        }
        if let Err(problem) = self.store.compact().await {
            tracing::warn!(pool = %self.pool, "cannot compact the journal: {problem}");
        }
    }

    /// Logs when the runner host becomes suspected of a fault, or a list is implausible, and when that is over.
    fn log_suspicion(&self, memory: &mut KeeperCache, report: &Report) {
        let note = report.notes.iter().find(|note| matches!(note, Note::HostSuspected { .. }));
        match note {
            Some(note) if !memory.suspects_host => tracing::warn!(pool = %self.pool, "{note}"),
            None if memory.suspects_host => {
                tracing::info!(pool = %self.pool, "the runner host is no longer suspected of a fault");
            }
            _ => {}
        }
        memory.suspects_host = note.is_some();
        let note = report.notes.iter().find(|note| matches!(note, Note::ListImplausible { .. }));
        match note {
            Some(note) if !memory.doubts_list => tracing::warn!(pool = %self.pool, "{note}"),
            None if memory.doubts_list => {
                tracing::info!(pool = %self.pool, "the provider's list no longer lacks every instance that answers");
            }
            _ => {}
        }
        memory.doubts_list = note.is_some();
    }

    /// The plan of a pass without launches, as it would be now; commits nothing.
    pub(super) async fn preview(&self, setup: &PoolSetup) -> Result<Plan, EngineError> {
        let observed = self.observe(&mut KeeperCache::default(), setup, Launching::No).await?;
        let state = self.store.load().await?;
        Ok(plan::plan(View { recorded: &state, observed: &observed }, &setup.policy, self.now()))
    }

    /// Everything that a pass needs beside the state. The list comes first: what is recorded after its beginning is newer
    /// than the list, and the plan can tell that by its time.
    async fn observe(
        &self,
        memory: &mut KeeperCache,
        setup: &PoolSetup,
        launching: Launching,
    ) -> Result<Observed, EngineError> {
        let identity = self.host.leadership.identity().await?;
        let mut listing = self.list(memory, setup).await;
        let state = self.store.load().await?;
        // A list that succeeded is as good as one after the resume.
        if memory.heed_resume(&state, setup) && listing.is_err() {
            memory.distrust_list();
            listing = self.list(memory, setup).await;
        }
        if self.confirm_absences(memory, setup, &state, &listing).await {
            // The account may have changed before `endpoint` answered: the list after the answer decides.
            memory.distrust_list();
            listing = self.list(memory, setup).await;
            memory.review_denials(&state, &listing, &setup.policy);
        }
        let attempts_at = self.now();
        let attempts = self.host.attempts.attempts_of(&self.pool).await?;
        let mut observed = Observed {
            listing,
            denied: memory.denied.clone(),
            first_seen: memory.first_seen.clone(),
            manager: attempts_at.manager,
            attempts,
            attempts_at,
            orphaned_builds: self.host.attempts.orphaned_builds().await,
            announced: self.ask_metadata(memory, setup, &state).await,
            capabilities: setup.provider.capabilities(),
            owner: identity.owner,
            moved: identity.moved,
            generations: identity.generations,
            launching: None,
            unrecordable: None,
            // `reap` ends soon.
            pulls: (launching == Launching::Yes).then(|| memory.warming.seen()),
            failing_calls: memory.failing_calls.clone(),
            awaited: memory.awaited.clone(),
            healthy: memory.healthy.clone(),
            unhealthy: memory.unhealthy.clone(),
            obstacles: memory.obstacles.clone(),
            busy: memory.busy.clone(),
        };
        if launching == Launching::Yes
            && let Err(problem) = self.allow_launches(memory, setup, &state, &mut observed).await
        {
            observed.launching = None;
            observed.unrecordable = Some(problem.to_string());
        }
        Ok(observed)
    }

    /// Calls `endpoint` for the instances whose absence lists leave open; again when its answer is old. True if it denies
    /// one.
    async fn confirm_absences(
        &self,
        memory: &mut KeeperCache,
        setup: &PoolSetup,
        state: &PoolState,
        listing: &Result<Listing, Failure>,
    ) -> bool {
        let missing = memory.review_denials(state, listing, &setup.policy);
        let now = self.now();
        let interval = setup.policy.timing.absence_interval;
        memory.denied.retain(|_, at| now.since(*at) < interval);
        let open = missing.into_iter().filter(|id| !memory.denied.contains_key(id)).map(async |id| {
            let answer = setup.provider.endpoint(&id).await;
            answer.is_err_and(|e| *e.class() == ErrorClass::NotFound).then_some(id)
        });
        // Concurrently, so that a provider that does not answer costs one timeout.
        let answers = self.within(deadline::CALL, join_all(open)).await;
        let at = self.now();
        let before = memory.denied.len();
        memory.denied.extend(answers.into_iter().flatten().flatten().map(|id| (id, at)));
        memory.denied.len() > before
    }

    /// A generation begins with the first launch, not with each keeper. An error forbids launches, and nothing else.
    async fn allow_launches(
        &self,
        memory: &mut KeeperCache,
        setup: &PoolSetup,
        state: &PoolState,
        observed: &mut Observed,
    ) -> Result<(), EngineError> {
        let fresh = |generation| Some(Fresh { pool: self.pool.clone(), generation });
        self.store.reserve().await?;
        if memory.generation.is_none() {
            observed.launching = fresh(Generation::new("none-yet"));
            let view = View { recorded: state, observed };
            let dry = plan::plan(view, &setup.policy, self.now());
            // A repeated launch counts too: it keeps its own generation, but the pass must be allowed to launch.
            if !dry.effects.iter().any(|effect| matches!(effect, Effect::Launch { .. })) {
                // Nothing to launch now: if that changes before the commit, the next pass launches.
                observed.launching = None;
                return Ok(());
            }
            let begun = self.host.leadership.begin_generation().await?;
            observed.generations.insert(begun.clone());
            memory.generation = Some(begun);
        }
        observed.launching = memory.generation.clone().and_then(fresh);
        Ok(())
    }

    /// The provider's list, at most once per [`list_interval`](Timing::list_interval).
    async fn list(&self, memory: &mut KeeperCache, setup: &PoolSetup) -> Result<Listing, Failure> {
        let now = self.now();
        if let Some((at, listing)) = &memory.listing
            && now.since(*at) < setup.policy.timing.list_interval
        {
            return listing.clone();
        }
        let mut listing = self.call(deadline::CALL, setup.provider.list(&self.pool)).await;
        if let Ok(listing) = &mut listing {
            listing.instances.sort_by(|a, b| a.id.cmp(&b.id));
            let seen: BTreeMap<InstanceId, Stamp> = listing
                .instances
                .iter()
                .map(|l| (l.id.clone(), memory.first_seen.get(&l.id).copied().unwrap_or(now)))
                .collect();
            memory.first_seen = seen;
        }
        memory.listing = Some((now, listing.clone()));
        listing
    }

    /// Reads what the metadata services of instances announce, at most once per [`ANNOUNCED_AGE`]. The connector knows it,
    /// and sends nothing to an instance.
    async fn ask_metadata(
        &self,
        memory: &mut KeeperCache,
        setup: &PoolSetup,
        state: &PoolState,
    ) -> BTreeMap<InstanceId, Notice> {
        let now = self.now();
        if let Some((at, known)) = &memory.announced
            && now.since(*at) < ANNOUNCED_AGE
        {
            return known.clone();
        }
        let has_service = |instance: &&Arc<Instance>| {
            instance.endpoint.as_ref().is_some_and(|endpoint| endpoint.metadata.is_some())
        };
        let with = state.instances.values().filter(has_service).map(|instance| instance.id.clone());
        let with: Vec<InstanceId> = with.collect();
        let answers = if with.is_empty() { BTreeMap::new() } else { self.connector.metadata(&with).await };
        let notice = |(id, answers)| Some((id, setup.provider.announced(&answers)?));
        let known: BTreeMap<InstanceId, Notice> = answers.into_iter().filter_map(notice).collect();
        memory.announced = Some((now, known.clone()));
        known
    }

    /// Drops what is cached about instances whose records are gone: in the cached list, they would look like orphans.
    fn forget_with_events(&self, memory: &mut KeeperCache, events: &[Event]) {
        for event in events {
            if let Change::Forgotten { instance } | Change::RecordDropped { instance, .. } = &event.change {
                memory.forget(instance);
            }
        }
        let now = self.now();
        memory.awaited.retain(|_, until| !now.reached(*until));
    }
}

impl KeeperCache {
    /// True if no call about the instance of this effect is under way, and none has just failed or is awaited.
    pub(super) fn is_free(&self, effect: &Effect, now: Stamp) -> bool {
        let calls = InstanceCalls { busy: &self.busy, failing: &self.failing_calls, awaited: &self.awaited };
        effect.instance().is_none_or(|id| calls.are_free(id, now))
    }

    /// Makes no call about an instance until then, because what the last one requested takes its time. It has not failed.
    pub(super) fn wait_for(&mut self, id: InstanceId, until: Stamp) {
        self.failing_calls.remove(&id);
        self.awaited.insert(id, until);
    }

    /// Ends all back-offs and waits.
    pub(super) fn retry_all(&mut self) {
        self.failing_calls.clear();
        self.awaited.clear();
    }

    /// True if this effect about an attempt may be started now; it then counts as under way.
    pub(super) fn may_try(&mut self, effect: &Effect, now: Stamp) -> bool {
        self.tried.retain(|_, until| until.is_none_or(|until| !now.reached(until)));
        if self.tried.contains_key(effect) {
            return false;
        }
        self.tried.insert(effect.clone(), None);
        true
    }

    /// Drops each denial that the list does not confirm. Returns the instances whose absence it leaves to `endpoint`.
    fn review_denials(
        &mut self,
        state: &PoolState,
        listing: &Result<Listing, Failure>,
        policy: &Policy,
    ) -> Vec<InstanceId> {
        let missing = listing.as_ref().map(|listing| plan::unconfirmed_absences(state, listing, policy));
        let missing = missing.unwrap_or_default();
        self.denied.retain(|id, _| missing.contains(id));
        missing
    }

    /// Notes what an effect that logs in has met. Returns the pause until the next try, if it needs one.
    pub(super) fn meet(
        &mut self,
        id: &InstanceId,
        outcome: &EffectResult,
        now: Stamp,
        timing: &Timing,
    ) -> Option<Duration> {
        let (obstacle, since) = match outcome {
            EffectResult::NoResponse(_, obstacle) => (obstacle, now),
            EffectResult::Unreached(_, obstacle, since) => (obstacle, *since),
            EffectResult::Fine => {
                self.obstacles.remove(id);
                return None;
            }
            EffectResult::Refused
            | EffectResult::Gone
            | EffectResult::Again
            | EffectResult::Failed(_)
            | EffectResult::Unfit(_) => return None,
        };
        let lasting = Lasting::next(self.obstacles.get(id), obstacle.clone(), since);
        let pause = (!obstacle.is_usual()).then(|| lasting.pause(timing.probe_interval));
        self.obstacles.insert(id.clone(), lasting);
        pause
    }

    /// Drops everything cached about an instance that is gone.
    pub(super) fn forget(&mut self, gone: &InstanceId) {
        if let Some((_, Ok(listing))) = &mut self.listing {
            listing.instances.retain(|l| l.id != *gone);
        }
        self.denied.remove(gone);
        self.first_seen.remove(gone);
        self.failing_calls.remove(gone);
        self.awaited.remove(gone);
        self.healthy.remove(gone);
        self.unhealthy.remove(gone);
        self.obstacles.remove(gone);
        self.warming.forget(gone);
    }

    /// Makes the next pass list again.
    pub(super) fn distrust_list(&mut self) {
        self.listing = None;
    }

    /// Ends the back-off of failing calls: the operator has removed their cause.
    pub(super) fn forget_failures(&mut self, setup: &PoolSetup) {
        self.retry_all();
        self.warming.forget_failures();
        setup.provider.forget_failures();
    }

    /// Forgets failures if the operator has resumed the pool since the last pass, which is the result.
    fn heed_resume(&mut self, state: &PoolState, setup: &PoolSetup) -> bool {
        let is_news = self.resumed != state.resumed;
        if is_news {
            self.resumed = state.resumed;
            self.forget_failures(setup);
        }
        is_news
    }
}

/// The event that begins the generation, in the transaction of its first launch. A generation that launches nothing leaves no
/// trace in the state.
fn begun(state: &PoolState, generation: Option<&Generation>, plan: &Plan, now: Stamp) -> Vec<Event> {
    let launches = plan.events.iter().any(|e| matches!(e.change, Change::LaunchIntended { .. }));
    match generation {
        Some(generation) if launches && !state.generations.contains_key(generation) => {
            vec![Change::GenerationBegun { generation: generation.clone() }.at(now)]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::notation::{NOW, instance, world};

    use super::*;

    #[test]
    fn a_denial_counts_as_long_as_each_list_of_its_account_lacks_the_instance() {
        for (seen, counts) in [
            ("idle 5m missing 31s denied", true),
            ("idle 5m missing 31s running", false),
            ("idle 5m missing 31s denied in there", false),
            ("partial | idle 5m missing 31s denied", false),
            ("unlisted | idle 5m missing 31s denied", false),
        ] {
            let world = world(seen);
            let denied = BTreeMap::from([(instance("i1"), NOW)]);
            let mut memory = KeeperCache { denied, ..KeeperCache::default() };
            let open = memory.review_denials(&world.state, &world.observed.listing, &world.policy);
            assert_eq!(memory.denied.contains_key(&instance("i1")), counts, "{seen}");
            assert_eq!(open.contains(&instance("i1")), counts, "{seen}");
        }
    }

    #[test]
    fn a_request_that_is_awaited_has_not_failed_and_is_not_repeated_before_its_time() {
        let effect = Effect::Terminate { instance: instance("i1") };
        let until = NOW.plus(Duration::from_secs(5));
        let failure = Failure { class: ErrorClass::Transient, message: "no answer".to_owned() };
        let failing = plan::FailingCall { failures: 3, failure, until };
        let failing_calls = BTreeMap::from([(instance("i1"), failing)]);
        let mut memory = KeeperCache { failing_calls, ..KeeperCache::default() };
        memory.wait_for(instance("i1"), until);
        assert!(memory.failing_calls.is_empty());
        assert!(!memory.is_free(&effect, NOW) && memory.is_free(&effect, until));
        memory.retry_all();
        assert!(memory.is_free(&effect, NOW));
    }
}
