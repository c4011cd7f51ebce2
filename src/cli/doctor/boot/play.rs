//! One boot, from its launch until it is gone, by the engine that serves jobs; and its timeline, a row for each stage.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::availability::Choice;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::{Answer, DrainReason, Phase};
use greenroom_core::inventory::{Resource, ResourceKind};
use greenroom_core::orphan::Ownership;
use greenroom_core::policy::{IdlePolicy, Policy, Timing};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{FailedBoot, Note};
use greenroom_core::text::clean_line;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_engine::keeper::{self, KeeperMode, Pool};
use greenroom_engine::operate::Target;
use greenroom_engine::reap::Deleted;
use greenroom_manager::runner_host::Role;
use greenroom_ports::connector::{RemoteCommand, StageEnd};
use greenroom_ports::finding::Finding;
use greenroom_ports::host::Host;
use greenroom_ports::setup::{CLOUD_INIT, PoolSetup, Setup};
use greenroom_ports::store::OperatorStore;
use greenroom_ports::tail::Tail;

use super::containers::{ContainerCheck, EngineFacts};
use super::scratch::ScratchStateDir;
use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::setup;
use crate::config::PoolConfig;

/// The interval at which the journal is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time beyond `launch_timeout` and `ready_timeout`, for passes and calls in between.
const SLACK: Duration = Duration::from_mins(1);
/// A cloud takes a minute or two to delete an instance.
const GONE_WITHIN: Duration = Duration::from_mins(10);
/// The report that quotes a console is written by the pass after the termination.
const REPORTED_WITHIN: Duration = Duration::from_secs(3);
/// A command that every instance has.
const COMMAND: &str = "uname -sr";
/// The length at which the output of [`COMMAND`] is cut, in characters.
const ANSWER: usize = 60;

/// The result of a boot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BootResult {
    /// The instance became ready, and a command ran on it. The findings are about its containers, if jobs run in them.
    Up(Option<Vec<Finding>>),
    /// The instance did not become ready, for this reason.
    Failed(String),
}

/// A pool with a state and an owner of its own. Its provider is the pool's.
pub(super) struct Boot<'a> {
    pub(super) ground: &'a ScratchStateDir,
    host: Host,
    pool: Pool,
    store: Rc<dyn OperatorStore>,
    setup: PoolSetup,
    take_over: Duration,
}

/// A [`Setup`] that does not change during the boot.
struct FixedSetup(PoolSetup);

#[async_trait(?Send)]
impl Setup for FixedSetup {
    async fn current(&self) -> (PoolSetup, Option<String>) {
        (self.0.clone(), None)
    }
}

/// The policy of a boot: at most one instance and no second try, whatever the pool's own policy is. There is no job, so
/// the target is one idle instance or none.
fn single(policy: &Policy, wanted: u32) -> Policy {
    let idle = IdlePolicy { idle_count: wanted, scale_factor: 0.0, scale_factor_limit: 0, ..policy.idle };
    let mut single = Policy { max_instances: 1, capacity_per_instance: 1, idle, ..policy.clone() };
    single.schedules.clear();
    single.timing.breaker_failures = 1;
    single
}

impl<'a> Boot<'a> {
    /// Prepares a boot in a directory of its own, made now or by a process that died. `wanted`: the number of instances
    /// to boot.
    pub(super) fn open(
        outer: &Context,
        pool: &PoolConfig,
        ground: &'a ScratchStateDir,
        wanted: u32,
    ) -> Result<Self, CliError> {
        let config = outer.config()?;
        let mut setup = setup::build(config, pool, &outer.surroundings()?)?;
        setup.policy = Arc::new(single(&setup.policy, wanted));
        let place =
            GlobalOptions { config: Some(outer.config_path()), state_dir: Some(ground.path().to_owned()) };
        let inner = Context::open(&place, Role::Operator)?;
        Ok(Self {
            ground,
            host: Host::of(&inner.host),
            pool: Pool::new(inner.engine(&pool.name)?, Rc::new(FixedSetup(setup.clone()))),
            store: inner.stores()?.store(&pool.name)?,
            setup,
            take_over: config.host_timing.keeper_start_timeout,
        })
    }

    /// Runs `work` while a keeper of this boot runs in this process.
    pub(super) async fn kept<T>(
        &self,
        work: impl Future<Output = Result<T, CliError>>,
    ) -> Result<T, CliError> {
        let pools = std::slice::from_ref(&self.pool);
        let keeping = Box::pin(keeper::keep(&self.host, pools, KeeperMode::AsService, self.take_over));
        let work = Box::pin(async {
            // A command that finds no keeper starts one, in another process.
            while !self.host.leadership.keeper_lives().await? {
                self.host.wakeups.pause(POLL_INTERVAL).await;
            }
            work.await
        });
        tokio::select! {
            done = work => done,
            ended = keeping => {
                let ended = ended?;
                Err(CliError::say(format!("the keeper of this boot exited ({ended:?})")).help(unfinished()))
            }
        }
    }

    /// Waits until the instance is ready, and runs a command on it.
    pub(super) async fn boot(
        &self,
        check: Option<&ContainerCheck>,
        timeline: &mut BootTimeline,
        say: &dyn Fn(&str),
    ) -> Result<BootResult, CliError> {
        let engine = &self.pool.engine;
        let timing = &self.setup.policy.timing;
        let within = timing.launch_timeout + timing.ready_timeout + SLACK;
        let until = engine.clock.now().plus(within);
        timeline.ready_step = match self.setup.ready_command.as_deref() {
            None => "ready",
            Some(CLOUD_INIT) => "cloud-init finished, or is absent",
            Some(_) => "ready command passed",
        };
        say(HEADER);
        let mut has_address = false;
        loop {
            // RACE: the timeline is read second, so that it contains all that the state shows.
            let state = self.store.load().await?;
            self.follow(timeline, say).await?;
            if let Some(why) = timeline.failure(&state, timing, engine.clock.now()) {
                return Ok(BootResult::Failed(why));
            }
            if let Some(ready) = state.instances.values().find(|instance| instance.phase == Phase::Ready) {
                return self.command(check, timeline, &ready.id, say).await;
            }
            if let Some(id) = timeline.accepted.as_ref().filter(|_| !has_address)
                && state.instance(id).is_some_and(|known| known.phase == Phase::Launching)
                && let Ok(endpoint) = self.setup.provider.endpoint(id).await
            {
                has_address = true;
                say(&timeline.row(engine.clock.now(), &format!("has an address, {}", endpoint.address)));
            }
            if engine.clock.now().reached(until) {
                return Ok(BootResult::Failed(format!(
                    "the instance was not ready after {}",
                    Pretty(within)
                )));
            }
            self.host.wakeups.pause(POLL_INTERVAL).await;
        }
    }

    async fn command(
        &self,
        check: Option<&ContainerCheck>,
        timeline: &mut BootTimeline,
        id: &InstanceId,
        say: &dyn Fn(&str),
    ) -> Result<BootResult, CliError> {
        let engine = &self.pool.engine;
        let state = self.store.load().await?;
        let Some(endpoint) = state.instance(id).and_then(|known| known.endpoint.clone()) else {
            return Ok(BootResult::Failed("the instance has no address".to_owned()));
        };
        let within = self.setup.policy.timing.connect_timeout;
        let mut tail = Tail::default();
        let command = RemoteCommand { text: COMMAND, input: "", within, start_within: within, shared: false };
        let end = engine.connector.command(id, &endpoint, command, &mut tail).await;
        let output = clean_line(tail.text().as_bytes(), ANSWER);
        let failed = match end {
            Ok(StageEnd::Exited(0)) => {
                say(&timeline.row(engine.clock.now(), &format!("a command ran: {output}")));
                let found = match check {
                    Some(check) => Some(self.containers(check, timeline, (id, &endpoint), say).await),
                    None => None,
                };
                return Ok(BootResult::Up(found));
            }
            Ok(end) => format!("{end}: {output}"),
            Err(problem) => problem.to_string(),
        };
        Ok(BootResult::Failed(format!("`{COMMAND}` failed on the instance: {failed}")))
    }

    /// Checks whether jobs can run in containers there.
    async fn containers(
        &self,
        check: &ContainerCheck,
        timeline: &mut BootTimeline,
        (id, endpoint): (&InstanceId, &Endpoint),
        say: &dyn Fn(&str),
    ) -> Vec<Finding> {
        let engine = &self.pool.engine;
        let now = u64::try_from(engine.clock.now().wall_ms / 1000).unwrap_or_default();
        let mut tail = Tail::default();
        let end = engine.connector.command(id, endpoint, check.command(), &mut tail).await;
        let output = tail.text();
        let facts = EngineFacts::read(check.engine, &output);
        say(&timeline.row(engine.clock.now(), &facts.row()));
        let said = match end {
            Ok(end) => format!("{end}: {}", clean_line(output.as_bytes(), ANSWER)),
            Err(problem) => problem.to_string(),
        };
        facts.judge(&engine.pool, now, &said, check.limit)
    }

    /// Terminates the instance, waits until it is gone, and checks whether the provider has anything left of it; true if
    /// not.
    pub(super) async fn end(
        &self,
        timeline: &mut BootTimeline,
        say: &dyn Fn(&str),
    ) -> Result<bool, CliError> {
        let engine = &self.pool.engine;
        if let Some(problem) = self.host.leadership.identity().await?.moved {
            return Err(CliError::say(problem));
        }
        engine.drain(&Target::Pool, false).await?;
        let until = engine.clock.now().plus(GONE_WITHIN);
        while self.store.load().await?.alive() > 0 {
            self.follow(timeline, say).await?;
            if engine.clock.now().reached(until) {
                let what = format!("the instance still exists after {}", Pretty(GONE_WITHIN));
                return Err(CliError::say(what).help(unfinished()));
            }
            self.host.wakeups.pause(POLL_INTERVAL).await;
        }
        self.follow(timeline, say).await?;
        self.delete_rest(timeline, say).await
    }

    /// The rows so far, without printing them.
    pub(super) async fn timeline_so_far(&self) -> Result<BootTimeline, CliError> {
        let mut timeline = BootTimeline::default();
        self.follow(&mut timeline, &|_| ()).await?;
        Ok(timeline)
    }

    /// Deletes volumes that were not deleted with the instance, and an instance whose launch outlived its caller.
    async fn delete_rest(&self, timeline: &mut BootTimeline, say: &dyn Fn(&str)) -> Result<bool, CliError> {
        let engine = &self.pool.engine;
        let owned = |ownership: Ownership| {
            !matches!(ownership, Ownership::Foreign | Ownership::Untagged | Ownership::Copied)
        };
        let found = engine.resources(&self.setup).await.map_err(|error| {
            CliError::say(format!("cannot determine whether anything is left of the instance: {error}"))
                .help(unfinished())
        })?;
        let left: Vec<Resource> =
            found.into_iter().filter(|(_, ownership)| owned(*ownership)).map(|(one, _)| one).collect();
        let mut is_clean = true;
        engine
            .delete(&self.setup, left, GONE_WITHIN, &mut |resource, end| {
                let Resource { kind, name, .. } = resource;
                match end {
                    Deleted::Gone if *kind == ResourceKind::Instance => {}
                    Deleted::Gone => {
                        let what = format!("{kind} {name} was orphaned: deleted");
                        say(&timeline.row(engine.clock.now(), &what));
                    }
                    Deleted::Stays(why) => {
                        is_clean = false;
                        say(&format!("cannot delete {kind} {name}: {why}\n"));
                    }
                }
            })
            .await;
        Ok(is_clean)
    }

    /// The failure of a boot with the last lines of its console, as far as the keeper has read them.
    pub(super) async fn failed_boot(&self) -> Option<FailedBoot> {
        let engine = &self.pool.engine;
        let until = engine.clock.now().plus(REPORTED_WITHIN);
        loop {
            let report = self.host.reports.read_report(&engine.pool).await.ok().flatten();
            let mut notes = report.into_iter().flat_map(|report| report.notes);
            let reported =
                notes.find_map(|note| if let Note::BootFailed(boot) = note { Some(boot) } else { None });
            if reported.is_some() || engine.clock.now().reached(until) {
                return reported;
            }
            self.host.wakeups.pause(POLL_INTERVAL).await;
        }
    }

    async fn follow(&self, timeline: &mut BootTimeline, say: &dyn Fn(&str)) -> Result<(), CliError> {
        for recorded in self.store.history().await?.skip(timeline.taken) {
            if let Some(row) = timeline.take(&recorded?.event) {
                say(&row);
            }
        }
        Ok(())
    }
}

/// The help for an interrupted boot: how to clean up.
pub(super) fn unfinished() -> &'static str {
    "run `greenroom doctor --boot` again, or `greenroom pool leaks --terminate`, to clean up"
}

/// The header of the rows.
pub(super) const HEADER: &str = "    AFTER       TOOK  STAGE\n";

/// The state of a boot, from whose events [`take`](Self::take) makes the rows of the timeline.
#[derive(Debug, Default)]
pub(super) struct BootTimeline {
    /// The number of events taken.
    pub(super) taken: usize,
    /// The launched instance, once the launch is accepted.
    pub(super) accepted: Option<InstanceId>,
    /// The reason for which the instance will not become ready.
    given_up: Option<DrainReason>,
    /// The name of the step at whose end the instance is ready.
    pub(super) ready_step: &'static str,
    begun: Option<Stamp>,
    last: Option<Stamp>,
}

impl BootTimeline {
    /// The row of an event; `None`: it is not a stage.
    pub(super) fn take(&mut self, event: &Event) -> Option<String> {
        self.taken += 1;
        let stage = match &event.change {
            Change::LaunchIntended { instance, offering, .. } => {
                let how = offering.as_ref().map(|offering| format!(" ({offering})"));
                format!("launch of {instance} requested{}", how.unwrap_or_default())
            }
            Change::LaunchAnswered { instance, answer, .. } => match answer {
                Answer::Accepted { .. } => {
                    self.accepted = Some(instance.clone());
                    "launch accepted".to_owned()
                }
                Answer::Refused { failure, .. } => format!("launch refused: {failure}"),
                Answer::Unknown { .. } => "no answer to the launch: it is repeated".to_owned(),
                Answer::Pending => return None,
            },
            Change::Reached { .. } => "reachable by SSH".to_owned(),
            Change::BecameReady { .. } => self.ready_step.to_owned(),
            Change::DrainingBegun { reason: DrainReason::ByOperator, .. } => {
                "termination requested".to_owned()
            }
            Change::DrainingBegun { reason: why, .. } => {
                self.given_up = Some(why.clone());
                format!("given up: {why}")
            }
            Change::Forgotten { .. } => "gone".to_owned(),
            _ => return None,
        };
        Some(self.row(event.at, &stage))
    }

    /// The reason for which the boot failed; `None`: it has not. `state` is not newer than the last event.
    pub(super) fn failure(&self, state: &PoolState, timing: &Timing, now: Stamp) -> Option<String> {
        if let Some(why) = &self.given_up {
            return Some(why.to_string());
        }
        if let Some((_, failure)) = state.launches.last.as_ref().filter(|_| state.launches.failures > 0) {
            return Some(format!("the launch was refused: {failure}"));
        }
        let is_refused = state.instances.values().all(|instance| instance.is_refused());
        match state.availability.choice(timing, now) {
            Choice::Wait { first, .. } if is_refused => {
                Some(format!("all offerings are unavailable; {}: {}", first.offering, first.refusal.failure))
            }
            Choice::Wait { .. } | Choice::Only | Choice::Take(_) => None,
        }
    }

    /// A row for a stage that the journal does not record.
    pub(super) fn row(&mut self, at: Stamp, stage: &str) -> String {
        let begun = *self.begun.get_or_insert(at);
        let last = self.last.replace(at).unwrap_or(at);
        let after = Pretty(at.since(begun)).to_string();
        let took = Pretty(at.since(last)).to_string();
        format!("{after:>9}  {took:>9}  {stage}\n")
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::failure::{ErrorClass, Failure};
    use greenroom_core::policy::Policy;

    use super::*;
    use crate::cli::fixture::{EventFixture, at, id};

    fn rows(story: &EventFixture, ready_step: &'static str) -> String {
        let mut timeline = BootTimeline { ready_step, ..BootTimeline::default() };
        story.events.iter().filter_map(|event| timeline.take(event)).collect()
    }

    #[test]
    fn each_stage_has_a_row_with_its_time() {
        let mut story = EventFixture::of(Policy::default());
        story.ready(1, 0.0);
        story.then(30.0, Change::PoolDrained);
        story.then(30.0, Change::DrainingBegun { instance: id(1), reason: DrainReason::ByOperator });
        story.then(92.0, Change::Forgotten { instance: id(1) });
        let expected = "     0 ms       0 ms  launch of linux-7f3a-1 requested
    1.4 s      1.4 s  launch accepted
   23.9 s     22.5 s  reachable by SSH
   24.7 s     800 ms  ready command passed
     30 s      5.3 s  termination requested
   1m 32s      1m 2s  gone
";
        assert_eq!(rows(&story, "ready command passed"), expected);
        assert!(rows(&story, "ready").contains("  ready\n"));
    }

    #[test]
    fn a_refusal_and_what_follows_are_told() {
        let mut story = EventFixture::of(Policy::default());
        story.offerings(&["a spot", "b"]);
        let none =
            Failure { class: ErrorClass::NoCapacity { scope: "a".into() }, message: "none left".into() };
        story.refused(1, 1, none, 0.0).intended(1, 2, 1.0);
        let why = DrainReason::NeverReady;
        story.then(601.0, Change::DrainingBegun { instance: id(1), reason: why });
        let rows = rows(&story, "ready");
        assert!(rows.contains("launch of linux-7f3a-1 requested (a spot)\n"), "{rows}");
        assert!(rows.contains("launch refused: no capacity (a): none left\n"), "{rows}");
        assert!(rows.contains("launch of linux-7f3a-1 requested (b)\n"), "{rows}");
        assert!(rows.ends_with("given up: not ready within `launch_timeout`\n"), "{rows}");
    }

    #[test]
    fn what_was_measured_beside_the_journal_stands_between_its_rows() {
        let mut timeline = BootTimeline::default();
        timeline.row(at(0.0), "asked");
        assert_eq!(timeline.row(at(2.5), "has an address"), "    2.5 s      2.5 s  has an address\n");
    }
}
