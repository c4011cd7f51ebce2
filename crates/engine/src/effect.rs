//! Carries out effects: each one call or a short exchange, its outcome committed after it.

use std::time::Duration;

use greenroom_core::attempt::End;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::Change;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::{AttemptName, InstanceId};
use greenroom_core::images::SeenImages;
use greenroom_core::instance::{Answer, DrainReason, Instance, LaunchRecord, Phase, Release};
use greenroom_core::inventory::Tags;
use greenroom_core::obstacle::{Cause, Obstacle};
use greenroom_core::order::LaunchOrder;
use greenroom_core::plan::{Effect, request, warm};
use greenroom_core::policy::Timing;
use greenroom_core::pool::PoolState;
use greenroom_core::report::FailedBoot;
use greenroom_core::text::clean_line;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_ports::connector::{ConnectError, RemoteCommand, StageEnd};
use greenroom_ports::provider::{LaunchRequest, ProviderError, Termination};
use greenroom_ports::setup::{CLOUD_INIT, PoolSetup};
use greenroom_ports::tail::Tail;

use super::order::Makes;
use crate::{Engine, EngineError, boot, deadline};

/// The longest output of a command that is reported in one line, in characters.
const LINE: usize = 300;

/// The operator's remedy for another host key.
const ACCEPT: &str = "if the new key is legitimate, `greenroom doctor` shows how to accept it";

/// The shortest pause between two probes of an instance that boots on the runner host. A probe costs little there, and
/// the pause adds to what a job waits: it is kept to a small part of the boot.
const CLOSE_INTERVAL: Duration = Duration::from_millis(20);
const PART: u32 = 16;

/// The end of an effect, for the keeper's cache.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) effect: Effect,
    pub(super) outcome: EffectResult,
    /// The failed boot that it ended, if it is a new one.
    pub(super) boot: Option<FailedBoot>,
}

#[derive(Debug)]
pub(super) enum EffectResult {
    /// Nothing to remember.
    Fine,
    /// A launch was refused: it created nothing, so the last list is still valid.
    Refused,
    /// The instance is gone at the provider.
    Gone,
    /// Requested; repeated after a pause.
    Again,
    /// The call failed; its class determines when it is retried.
    Failed(Failure),
    /// A ready instance did not respond.
    NoResponse(Failure, Obstacle),
    /// An instance that is probed was not reached: why, and since when that is so.
    Unreached(Failure, Obstacle, Stamp),
    /// The instance failed the check between jobs: why it is out of use.
    Unfit(String),
}

/// The reason why an instance was not reached.
struct Unreached {
    failure: Failure,
    obstacle: Obstacle,
    /// False for a fault on the runner host or at the provider, which says nothing about the instance.
    by_instance: bool,
}

/// Evidence behind the answer *not found*.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// Lists have proven it, or no record depends on it.
    Proven,
    Unproven,
}

/// The end of a command on an instance.
pub(super) enum CommandResult {
    Passed,
    /// The problem, in one line.
    Failed(String),
    /// The command could not be run, or not to its end: the connection failed.
    Cut(String),
}

impl Engine {
    /// Carries out one effect. An error of the state or the host ends it; the next pass plans it again.
    pub(super) async fn carry_out(&self, effect: &Effect, setup: &PoolSetup) -> EffectResult {
        let outcome = match effect {
            Effect::Launch { instance, repeated } => self.launch(instance, *repeated, setup).await,
            Effect::Probe { instance } => self.probe(instance, setup).await,
            Effect::Suspend { instance } => self.suspend(instance, setup).await,
            Effect::Resume { instance } => self.resume_stopped(instance, setup).await,
            Effect::Adopt { instance, capacity } => self.adopt(instance, *capacity, setup).await,
            Effect::CheckHealth { instance } => self.check_health(instance, setup).await,
            Effect::Check { instance, kind } => self.check(instance, *kind, setup).await,
            Effect::Recheck { instance } => self.recheck(instance, setup).await,
            Effect::Warm { instance, image } => self.warm(instance, image, setup).await,
            Effect::Clean { instance } => self.clean(instance, setup).await,
            Effect::Terminate { instance } => self.terminate(instance, setup, Absence::Unproven).await,
            Effect::Forget { instance } => self.terminate(instance, setup, Absence::Proven).await,
            Effect::Reap { instance } => {
                self.connector.discard_keys(instance).await;
                Ok(ended(setup.provider.terminate(instance).await, Absence::Proven))
            }
            Effect::EndAttempt { attempt, how } => self.end_attempt(attempt, *how).await,
            Effect::DropRequest { attempt } => self.drop_request(attempt).await,
            Effect::ForgetAttempt { attempt } => self
                .host
                .attempts
                .forget_attempt(attempt)
                .await
                .map(|()| EffectResult::Fine)
                .map_err(EngineError::from),
        };
        outcome.unwrap_or_else(|error| {
            let failure = Failure { class: ErrorClass::Transient, message: error.to_string() };
            EffectResult::Failed(failure)
        })
    }

    /// Makes the call of a recorded launch, with the token of its attempt, and records the answer. An error is an answer,
    /// too: its class tells whether an instance may exist.
    async fn launch(
        &self,
        id: &InstanceId,
        repeated: bool,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        let state = self.store.load().await?;
        let Some((known, launch)) = state.instance(id).and_then(|i| Some((i, i.launch.clone()?))) else {
            return Ok(EffectResult::Fine);
        };
        let order = match self.makes(known).await? {
            Makes::Shared => None,
            Makes::Order(order) => Some(order),
            Makes::Nothing => return Ok(EffectResult::Fine),
        };
        let asked = self.ask(id, &launch, order, setup).await;
        let refused = asked.as_ref().err().and_then(ProviderError::refused_order);
        let refused = known.ordered.as_ref().zip(refused);
        let (answer, result) = match asked {
            Ok(()) => (Answer::Accepted { at: self.now() }, EffectResult::Fine),
            Err(error) if error.class().created_nothing(repeated) => {
                (Answer::Refused { at: self.now(), failure: error.failure }, EffectResult::Refused)
            }
            // The refusal of a repeat: the first try may have created it.
            Err(error) if error.class().is_definite() => {
                (Answer::Unknown { at: self.now() }, EffectResult::Failed(error.failure))
            }
            Err(_) => (Answer::Unknown { at: self.now() }, EffectResult::Fine),
        };
        // CRASH: without this record the launch is repeated with the same token (rows 1 to 4).
        let at = self.now();
        self.commit(|state| {
            let recorded = state.instance(id).and_then(|i| i.launch.as_ref());
            if recorded.is_none_or(|l| l.attempt != launch.attempt) {
                return Vec::new();
            }
            let instance = id.clone();
            let attempt = launch.attempt;
            let mut events =
                vec![Change::LaunchAnswered { instance, attempt, answer: answer.clone() }.at(at)];
            if let Some((ordered, refused)) = &refused {
                events.extend(request::refuse_order(state, &ordered.attempt, refused, at));
            }
            events
        })
        .await?;
        Ok(result)
    }

    /// Builds the request and makes the call. A failure before the call, on the runner host, is definite: this call has
    /// sent nothing.
    async fn ask(
        &self,
        id: &InstanceId,
        launch: &LaunchRecord,
        order: Option<LaunchOrder>,
        setup: &PoolSetup,
    ) -> Result<(), ProviderError> {
        let local = |what: String| ProviderError::new(ErrorClass::Transient, what);
        let keys = self.connector.keys(id).await.map_err(|e| local(e.to_string()))?;
        let identity = self.host.leadership.identity().await.map_err(|e| local(e.to_string()))?;
        let tags = Tags {
            pool: self.pool.clone(),
            owner: identity.owner,
            generation: launch.generation.clone(),
            number: launch.number,
        };
        let token = id.token(launch.attempt);
        let instance = id.clone();
        let offering = launch.offering.clone();
        // The recorded lifetime counts from ready: a slow boot must not shorten it for the jobs on the instance.
        let timing = &setup.policy.timing;
        let lifetime = launch.lifetime.map(|most| most.0.saturating_add(timing.launch_timeout));
        let request = LaunchRequest { instance, token, tags, offering, keys, lifetime, order };
        setup.provider.launch(&request).await
    }

    /// Probes an instance until it responds or the next pass is due; then runs the ready command.
    pub(super) async fn probe(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        let timing = &setup.policy.timing;
        let begun = self.now();
        let until = begun.plus(timing.pass_interval);
        let boots_here = setup.provider.capabilities().boots_here.is_some();
        if self.store.load().await?.instance(id).is_some_and(|i| i.phase == Phase::Checking) {
            self.connector.has_answered(id);
        }
        let mut met: Option<(Cause, Stamp)> = None;
        loop {
            let Unreached { failure: problem, obstacle, .. } = match self.reach(id, setup).await? {
                Ok(()) => return self.beside_pulls(id, setup, self.make_ready(id, setup)).await,
                Err(unreached) => unreached,
            };
            let since = match met {
                Some((cause, since)) if cause == obstacle.cause => since,
                _ => self.now(),
            };
            met = Some((obstacle.cause, since));
            if let Some(refused) = problem.refused_order() {
                self.refuse(id, &refused).await?;
                return Ok(EffectResult::Fine);
            }
            let now = self.now();
            // Greenroom cannot predict when a static host returns: it is probed at intervals, not continuously. So is a
            // server that answers and denies the login, which would penalize more.
            let waits = obstacle.is_usual() || obstacle.cause == Cause::TurnedAway;
            let is_over = now.reached(until) || problem.class == ErrorClass::NotFound;
            if is_over || !waits || setup.has_static_hosts() {
                return Ok(EffectResult::Unreached(problem, obstacle, since));
            }
            let close = (now.since(begun) / PART).max(CLOSE_INTERVAL).min(timing.probe_interval);
            self.host.wakeups.pause(if boots_here { close } else { timing.probe_interval }).await;
            let state = self.store.load().await?;
            let boots =
                |i: &Instance| matches!(i.phase, Phase::Launching | Phase::Checking) || i.phase.is_resuming();
            if !state.instance(id).is_some_and(boots) {
                return Ok(EffectResult::Fine);
            }
        }
    }

    /// Connects and logs in once. The outer error is one of the state or the host; the inner one says why the instance was
    /// not reached.
    async fn reach(&self, id: &InstanceId, setup: &PoolSetup) -> Result<Result<(), Unreached>, EngineError> {
        let endpoint = match self.look_up(id, setup).await? {
            Ok(endpoint) => endpoint,
            Err(failure) => {
                let by_instance = failure.class == ErrorClass::NotFound;
                let obstacle = boot::no_address_of(failure.message.clone());
                return Ok(Err(Unreached { failure, obstacle, by_instance }));
            }
        };
        let within = setup.policy.timing.connect_timeout;
        let tried = self.connector.check(id, &endpoint, within).await;
        let is_denied = matches!(tried, Err(ConnectError::Refused { .. }));
        let cause = if tried.is_ok() || is_denied { setup.provider.login_tried(id, is_denied) } else { None };
        if let Err(problem) = tried {
            let by_instance = !matches!(problem, ConnectError::HostFault { .. });
            // A launched instance has the key that Greenroom gave it; a static host may have been reinstalled.
            let hint = setup.has_static_hosts().then_some(ACCEPT);
            let mut obstacle = boot::obstacle_of(&problem, hint);
            obstacle.detail.extend(cause.map(|cause| format!("; {cause}")));
            let message = match problem {
                ConnectError::HostKey { .. } if setup.has_static_hosts() => format!("{problem}; {ACCEPT}"),
                _ => problem.to_string(),
            };
            let failure = Failure { class: ErrorClass::Transient, message };
            return Ok(Err(Unreached { failure, obstacle, by_instance }));
        }
        let at = self.now();
        let mut is_new = false;
        self.commit(|state| {
            is_new = state.instance(id).is_some_and(|i| i.phase == Phase::Launching);
            let is_first = |i: &Instance| {
                i.phase == Phase::Launching
                    || (i.phase.is_resuming() && i.endpoint.as_ref() != Some(&endpoint))
            };
            if !state.instance(id).is_some_and(is_first) {
                return Vec::new();
            }
            let instance = id.clone();
            let endpoint = endpoint.clone();
            vec![Change::Reached { instance, endpoint }.at(at)]
        })
        .await?;
        if is_new {
            self.note_brought(id, setup).await?;
        }
        Ok(Ok(()))
    }

    /// Records the images with which an instance came up, so that jobs that need them prefer it.
    async fn note_brought(&self, id: &InstanceId, setup: &PoolSetup) -> Result<(), EngineError> {
        if setup.pulls.is_none() {
            return Ok(());
        }
        // What is not known is pulled again, which brings only what is missing.
        let found = setup.provider.images(id).await.unwrap_or_default();
        if found.is_empty() {
            return Ok(());
        }
        let seen = SeenImages { found, removed: Vec::new() };
        self.commit(|state| warm::seen_by_keeper(state, id, &seen, self.now())).await?;
        Ok(())
    }

    /// Examines whether an idle instance is well: for the provider, and for the login of a job.
    async fn examine(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
    ) -> Result<Result<(), Unreached>, EngineError> {
        match setup.provider.heartbeat(id).await {
            Ok(Some(message)) => {
                let obstacle = boot::no_address_of(message.clone());
                let failure = Failure { class: ErrorClass::Transient, message };
                Ok(Err(Unreached { failure, obstacle, by_instance: true }))
            }
            // A provider that does not answer says nothing about the instance.
            Ok(None) | Err(_) => self.reach(id, setup).await,
        }
    }

    /// The endpoint of an instance, looked up now. If the operator has changed this for a static host, the new endpoint is
    /// recorded.
    pub(super) async fn look_up(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
    ) -> Result<Result<Endpoint, Failure>, EngineError> {
        // Later than this, a probe that is not answered would hold up the check after the next job.
        let endpoint = match self.call(deadline::CALL, setup.provider.endpoint(id)).await {
            Ok(endpoint) => endpoint,
            Err(failure) => {
                let recorded = match failure.class {
                    // A provider that answers from a wrong list finds none of its instances, although they answer.
                    ErrorClass::NotFound => self.recorded_endpoint(id).await?,
                    _ => None,
                };
                return Ok(recorded.ok_or(failure));
            }
        };
        if setup.has_static_hosts() {
            let at = self.now();
            self.commit(|state| {
                let differs = |i: &&Instance| i.is_static() && i.endpoint.as_ref() != Some(&endpoint);
                let instance = id.clone();
                let endpoint = endpoint.clone();
                let change = || Change::Readdressed { instance, endpoint }.at(at);
                state.instance(id).filter(differs).map(|_| change()).into_iter().collect()
            })
            .await?;
        }
        Ok(Ok(endpoint))
    }

    /// The endpoint at which a launched instance was last reached, if it is ready.
    async fn recorded_endpoint(&self, id: &InstanceId) -> Result<Option<Endpoint>, EngineError> {
        let state = self.store.load().await?;
        let ready = state.instance(id).filter(|i| !i.is_static() && i.phase == Phase::Ready);
        Ok(ready.and_then(|i| i.endpoint.clone()))
    }

    /// Probes an idle instance the way a job would reach it. A launched one is probed twice before it counts as
    /// unreachable, because a network may fail briefly.
    async fn check_health(&self, id: &InstanceId, setup: &PoolSetup) -> Result<EffectResult, EngineError> {
        self.connector.has_answered(id);
        let mut reached = self.examine(id, setup).await?;
        if reached.is_err() && !setup.has_static_hosts() {
            self.host.wakeups.pause(setup.policy.timing.probe_interval).await;
            reached = self.examine(id, setup).await?;
        }
        let Err(problem) = reached else {
            let recovered = |i: &Instance| i.unreachable.is_some();
            if self.store.load().await?.instance(id).is_some_and(recovered) {
                self.commit(|state| request::ready(state, id, self.now())).await?;
            }
            return Ok(EffectResult::Fine);
        };
        let Unreached { failure, obstacle, by_instance } = problem;
        if !by_instance && !setup.has_static_hosts() {
            return Ok(EffectResult::Failed(failure));
        }
        self.commit(|state| request::doubt(state, id, &failure.message, self.now())).await?;
        Ok(EffectResult::NoResponse(failure, obstacle))
    }

    /// Runs the ready command, and records the instance as ready. After a failed command or a lost connection, the instance
    /// is drained: nothing tells how much of its setup is done.
    async fn make_ready(&self, id: &InstanceId, setup: &PoolSetup) -> Result<EffectResult, EngineError> {
        let timing = &setup.policy.timing;
        let result = match &setup.ready_command {
            Some(command) => self.command(id, command, "", timing.ready_timeout, timing).await?,
            None => CommandResult::Passed,
        };
        match result {
            CommandResult::Passed => {
                self.record_brought(id, setup).await?;
                self.commit(|state| request::ready(state, id, self.now())).await?;
            }
            CommandResult::Failed(message) | CommandResult::Cut(message) => {
                let by_default = setup.ready_command.as_deref() == Some(CLOUD_INIT);
                let message = if by_default { format!("cloud-init: {message}") } else { message };
                let why = DrainReason::NotReady { message };
                self.commit(|state| request::withdraw(state, id, why.clone(), self.now())).await?;
            }
        }
        Ok(EffectResult::Fine)
    }

    /// Runs a command on an instance.
    pub(super) async fn command(
        &self,
        id: &InstanceId,
        command: &str,
        input: &str,
        within: Duration,
        timing: &Timing,
    ) -> Result<CommandResult, EngineError> {
        let state = self.store.load().await?;
        let Some(endpoint) = state.instance(id).and_then(|i| i.endpoint.clone()) else {
            return Ok(CommandResult::Failed("the instance has no address".to_owned()));
        };
        // The operator's commands have no input, and may change what a login gets. Greenroom's own script does not.
        let start_within = timing.connect_timeout;
        let command = RemoteCommand { text: command, input, within, start_within, shared: !input.is_empty() };
        Ok(match self.command_at(id, &endpoint, command).await {
            Ok(result) => result,
            Err(problem) => CommandResult::Cut(problem.to_string()),
        })
    }

    /// Runs a command over a login that may be another one than that of jobs; an error is one of the connection.
    pub(super) async fn command_at(
        &self,
        id: &InstanceId,
        endpoint: &Endpoint,
        command: RemoteCommand<'_>,
    ) -> Result<CommandResult, ConnectError> {
        let within = command.within;
        let mut tail = Tail::default();
        match self.connector.command(id, endpoint, command, &mut tail).await? {
            StageEnd::Exited(0) => Ok(CommandResult::Passed),
            end => Ok(failed_as(&end, within, &tail.text())),
        }
    }

    /// Records a static host as an instance, with the endpoint that the provider has for it.
    async fn adopt(
        &self,
        id: &InstanceId,
        capacity: Option<u32>,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        let endpoint = match setup.provider.endpoint(id).await {
            Ok(endpoint) => endpoint,
            Err(error) => return Ok(EffectResult::Failed(error.failure)),
        };
        // Its record follows when that of its earlier name is forgotten: until then, jobs may run there.
        if let Some(renamed) = self.store.load().await?.renamed_host(&endpoint) {
            let message = format!("`{id}` waits until its earlier name, `{}`, is forgotten", renamed.id);
            return Ok(EffectResult::Failed(Failure { class: ErrorClass::Transient, message }));
        }
        let at = self.now();
        self.commit(|state| {
            if state.instances.contains_key(id) || state.renamed_host(&endpoint).is_some() {
                return Vec::new();
            }
            let instance = id.clone();
            let endpoint = endpoint.clone();
            let capacity = capacity.unwrap_or(setup.policy.capacity_per_instance);
            let uses_left = setup.policy.max_use_count;
            vec![Change::Adopted { instance, endpoint, capacity, uses_left }.at(at)]
        })
        .await?;
        Ok(EffectResult::Fine)
    }

    async fn terminate(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
        absence: Absence,
    ) -> Result<EffectResult, EngineError> {
        // CRASH: keys first, while the record still requires this termination.
        self.connector.discard_keys(id).await;
        let outcome = ended(setup.provider.terminate(id).await, absence);
        if !matches!(outcome, EffectResult::Gone) {
            return Ok(outcome);
        }
        let at = self.now();
        self.commit(|state| {
            let leaving = |i: &Instance| {
                matches!(i.phase, Phase::Draining { .. }) && i.holders.values().all(|h| h.closing.is_some())
            };
            if !state.instance(id).is_some_and(leaving) {
                return Vec::new();
            }
            vec![Change::Forgotten { instance: id.clone() }.at(at)]
        })
        .await?;
        Ok(outcome)
    }

    /// Closes an attempt whose calls are gone. A held lease means that one is still alive: then nothing happens, and a
    /// later pass tries again.
    async fn end_attempt(&self, name: &AttemptName, how: End) -> Result<EffectResult, EngineError> {
        let Some(_lease) = self.host.attempts.seize_attempt(name).await? else {
            return Ok(EffectResult::Fine);
        };
        // CRASH: between here and the mark, the missing TMPDIR ends the attempt at the next pass.
        match self.within(deadline::ASIDE, self.host.attempts.remove_tmpdir(name)).await {
            Some(Ok(())) => {}
            Some(Err(problem)) => {
                tracing::warn!(pool = %self.pool, attempt = %name, "cannot remove its remaining files: {problem}");
            }
            None => {
                tracing::warn!(pool = %self.pool, attempt = %name, "removing its remaining files takes long");
            }
        }
        // CRASH: between mark and release, the next pass releases what a closed attempt holds.
        let used = self.host.attempts.mark_closed(name, how).await?;
        let leaving = Release { how, used, closing: false };
        self.commit(|state| request::release(state, name, leaving, self.now())).await?;
        Ok(EffectResult::Fine)
    }

    /// Takes the request of a dead call out of the queue. The job keeps its place for its next attempt.
    async fn drop_request(&self, name: &AttemptName) -> Result<EffectResult, EngineError> {
        let Some(_lease) = self.host.attempts.seize_attempt(name).await? else {
            return Ok(EffectResult::Fine);
        };
        let at = self.now();
        self.commit(|state: &PoolState| {
            if state.waiting_for(name).is_none() {
                return Vec::new();
            }
            vec![Change::Withdrawn { attempt: name.clone(), how: End::GivenBack }.at(at)]
        })
        .await?;
        Ok(EffectResult::Fine)
    }
}

/// A command that ended in another way than with success.
pub(super) fn failed_as(end: &StageEnd, within: Duration, output: &str) -> CommandResult {
    let how = match end {
        StageEnd::Stopped => format!("not finished within {}", Pretty(within)),
        other => other.to_string(),
    };
    let output = clean_line(output.as_bytes(), LINE);
    CommandResult::Failed(if output.is_empty() { how } else { format!("{how}: {output}") })
}

/// *Not found* is the goal of a termination, not a failure. Alone, it does not prove that the instance is gone: the
/// provider may not show it yet.
fn ended(answer: Result<Termination, ProviderError>, absence: Absence) -> EffectResult {
    match answer {
        Ok(Termination::Gone) => EffectResult::Gone,
        Ok(Termination::Requested) => EffectResult::Again,
        Err(error) if *error.class() == ErrorClass::NotFound => match absence {
            Absence::Proven => EffectResult::Gone,
            Absence::Unproven => EffectResult::Again,
        },
        Err(error) => EffectResult::Failed(error.failure),
    }
}
