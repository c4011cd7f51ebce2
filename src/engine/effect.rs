//! Carries out effects: each one call or a short conversation, its outcome committed after it.

use std::time::Duration;

use super::{Engine, EngineError};
use crate::core::attempt::End;
use crate::core::endpoint::Endpoint;
use crate::core::event::Change;
use crate::core::failure::{ErrorClass, Failure};
use crate::core::ids::{AttemptName, InstanceId};
use crate::core::instance::{Answer, DrainReason, Instance, LaunchRecord, Phase, Release};
use crate::core::inventory::Tags;
use crate::core::plan::{Effect, request};
use crate::core::pool::PoolState;
use crate::core::report::FailedBoot;
use crate::core::text::clean_line;
use crate::core::time::Pretty;
use crate::port::connector::{ConnectError, Mark, StageEnd};
use crate::port::provider::{LaunchRequest, ProviderError};
use crate::port::setup::PoolSetup;

/// The most of a command's output that is told in one line, in characters.
const LINE: usize = 300;

/// From one look at an instance that boots on this machine to the next, at least. A look costs little there, and what
/// lies between two of them is added to what a job waits: it is kept to a small part of the boot.
const CLOSE_LOOK: Duration = Duration::from_millis(20);
const PART: u32 = 16;

/// How an effect ended, for the keeper's memory.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) effect: Effect,
    pub(super) outcome: EffectResult,
    /// The failed boot that it ended, where it is news.
    pub(super) boot: Option<FailedBoot>,
}

#[derive(Debug)]
pub(super) enum EffectResult {
    /// Nothing to remember.
    Fine,
    /// A launch was refused: nothing has come into being, so the last list is as good as it was.
    Refused,
    /// The instance is gone at the provider.
    Gone,
    /// Asked for; ask again after a while.
    Again,
    /// The call failed; its class says when to try again.
    Failed(Failure),
}

/// How a command on an instance ended.
enum CommandResult {
    Passed,
    /// What is wrong, in one line.
    Failed(String),
    /// It could not be run, or not to its end: the way there is broken.
    Cut(String),
}

impl Engine {
    /// Carries out one effect. Trouble with our own state ends it; the next pass plans it again.
    pub(super) async fn carry_out(&self, effect: Effect, setup: PoolSetup) -> Done {
        let outcome = match &effect {
            Effect::Launch { instance } => self.launch(instance, &setup).await,
            Effect::Probe { instance } => self.probe(instance, &setup).await,
            Effect::Adopt { instance, capacity } => self.adopt(instance, *capacity, &setup).await,
            Effect::CheckHealth { instance } => self.check_health(instance, &setup).await,
            Effect::Clean { instance } => self.clean(instance, &setup).await,
            Effect::Terminate { instance } => self.terminate(instance, &setup).await,
            Effect::Reap { instance } => {
                self.connector.discard_keys(instance).await;
                Ok(ended(setup.provider.terminate(instance).await))
            }
            Effect::EndAttempt { attempt, how } => self.end_attempt(attempt, *how).await,
            Effect::DropRequest { attempt } => self.drop_request(attempt).await,
            Effect::ForgetAttempt { attempt } => self
                .host
                .forget_attempt(attempt)
                .await
                .map(|()| EffectResult::Fine)
                .map_err(EngineError::from),
        };
        let outcome = outcome.unwrap_or_else(|trouble| {
            let failure = Failure { class: ErrorClass::Transient, message: trouble.to_string() };
            EffectResult::Failed(failure)
        });
        Done { effect, outcome, boot: None }
    }

    async fn launch(&self, id: &InstanceId, setup: &PoolSetup) -> Result<EffectResult, EngineError> {
        let state = self.store.load().await?;
        let Some(launch) = state.instance(id).and_then(|i| i.launch.clone()) else {
            return Ok(EffectResult::Fine);
        };
        let answer = match self.ask(id, &launch, setup).await {
            Ok(()) => Answer::Accepted { at: self.now() },
            Err(error) if error.class().is_definite() => {
                Answer::Refused { at: self.now(), failure: error.failure }
            }
            Err(_) => Answer::Unknown { at: self.now() },
        };
        // CRASH: without this record the launch is repeated with the same token (rows 1 to 4).
        let at = self.now();
        self.commit(|state| {
            let asked = state.instance(id).and_then(|i| i.launch.as_ref());
            if asked.is_none_or(|l| l.attempt != launch.attempt) {
                return Vec::new();
            }
            let (instance, attempt) = (id.clone(), launch.attempt);
            vec![Change::LaunchAnswered { instance, attempt, answer: answer.clone() }.at(at)]
        })
        .await?;
        Ok(if matches!(answer, Answer::Refused { .. }) { EffectResult::Refused } else { EffectResult::Fine })
    }

    async fn ask(
        &self,
        id: &InstanceId,
        launch: &LaunchRecord,
        setup: &PoolSetup,
    ) -> Result<(), ProviderError> {
        let local = |what: String| ProviderError::new(ErrorClass::Transient, what);
        let keys = self.connector.keys(id).await.map_err(|e| local(e.to_string()))?;
        let identity = self.host.identity().await.map_err(|e| local(e.to_string()))?;
        let tags = Tags {
            pool: self.pool.clone(),
            owner: identity.owner,
            generation: launch.generation.clone(),
            number: launch.number,
        };
        let token = format!("{id}/{}", launch.attempt);
        let (instance, offering) = (id.clone(), launch.offering.clone());
        // The recorded lifetime counts from ready: what boots slowly must not end under a job that it was promised to.
        let timing = &setup.policy.timing;
        let lifetime = setup.policy.max_lifetime.map(|most| most.0.saturating_add(timing.launch_timeout));
        let request = LaunchRequest { instance, token, tags, offering, keys, lifetime };
        setup.provider.launch(&request).await
    }

    /// Tries to reach an instance until it answers or the next pass is due; then runs the ready command.
    async fn probe(&self, id: &InstanceId, setup: &PoolSetup) -> Result<EffectResult, EngineError> {
        let timing = &setup.policy.timing;
        let begun = self.now();
        let until = begun.plus(timing.pass_interval);
        let boots_here = setup.provider.capabilities().boots_here.is_some();
        loop {
            let problem = match self.reach(id, setup).await? {
                Ok(()) => return self.make_ready(id, setup).await,
                Err(problem) => problem,
            };
            let now = self.now();
            // Nobody knows when a host of the operator's is back: it is asked now and then, not all the time.
            if now.reached(until) || problem.class == ErrorClass::NotFound || setup.has_fixed_hosts() {
                return Ok(EffectResult::Failed(problem));
            }
            let close = (now.since(begun) / PART).max(CLOSE_LOOK).min(timing.probe_interval);
            self.host.pause(if boots_here { close } else { timing.probe_interval }).await;
            let state = self.store.load().await?;
            let boots = |i: &Instance| matches!(i.phase, Phase::Launching | Phase::Checking);
            if !state.instance(id).is_some_and(boots) {
                return Ok(EffectResult::Fine);
            }
        }
    }

    async fn reach(&self, id: &InstanceId, setup: &PoolSetup) -> Result<Result<(), Failure>, EngineError> {
        let endpoint = match self.look_up(id, setup).await? {
            Ok(endpoint) => endpoint,
            Err(failure) => return Ok(Err(failure)),
        };
        let within = setup.policy.timing.connect_timeout;
        if let Err(problem) = self.connector.check(id, &endpoint, within).await {
            // What we made has the key that we gave it; a host of the operator's may have been installed anew.
            let message = match problem {
                ConnectError::HostKey { .. } if setup.has_fixed_hosts() => {
                    format!(
                        "{problem}; if the new key is legitimate, `greenroom doctor` shows how to accept it"
                    )
                }
                _ => problem.to_string(),
            };
            return Ok(Err(Failure { class: ErrorClass::Transient, message }));
        }
        let at = self.now();
        self.commit(|state| match state.instance(id).map(|i| &i.phase) {
            Some(Phase::Launching) => {
                let (instance, endpoint) = (id.clone(), endpoint.clone());
                vec![Change::Reached { instance, endpoint }.at(at)]
            }
            _ => Vec::new(),
        })
        .await?;
        Ok(Ok(()))
    }

    /// How an instance is reached now. Where the operator has changed that of a fixed host, it is recorded anew.
    async fn look_up(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
    ) -> Result<Result<Endpoint, Failure>, EngineError> {
        let endpoint = match setup.provider.endpoint(id).await {
            Ok(endpoint) => endpoint,
            Err(error) => return Ok(Err(error.failure)),
        };
        if setup.has_fixed_hosts() {
            let at = self.now();
            self.commit(|state| {
                let differs = |i: &&Instance| i.is_static() && i.endpoint.as_ref() != Some(&endpoint);
                let (instance, endpoint) = (id.clone(), endpoint.clone());
                let change = || Change::Readdressed { instance, endpoint }.at(at);
                state.instance(id).filter(differs).map(|_| change()).into_iter().collect()
            })
            .await?;
        }
        Ok(Ok(endpoint))
    }

    /// A look at an idle instance, the way a job would reach it. What would be replaced is asked twice: a network may
    /// hiccup.
    async fn check_health(&self, id: &InstanceId, setup: &PoolSetup) -> Result<EffectResult, EngineError> {
        let Err(mut problem) = self.reach(id, setup).await? else { return Ok(EffectResult::Fine) };
        if !setup.has_fixed_hosts() {
            self.host.pause(setup.policy.timing.probe_interval).await;
            match self.reach(id, setup).await? {
                Ok(()) => return Ok(EffectResult::Fine),
                Err(again) => problem = again,
            }
        }
        self.commit(|state| request::doubt(state, id, &problem.message, self.now())).await?;
        Ok(EffectResult::Failed(problem))
    }

    async fn make_ready(&self, id: &InstanceId, setup: &PoolSetup) -> Result<EffectResult, EngineError> {
        let timing = &setup.policy.timing;
        let verdict = match &setup.ready_command {
            Some(command) => self.command(id, command, "", timing.ready_timeout).await?,
            None => CommandResult::Passed,
        };
        match verdict {
            CommandResult::Passed => {
                self.commit(|state| request::ready(state, id, self.now())).await?;
            }
            CommandResult::Failed(message) | CommandResult::Cut(message) => {
                let why = DrainReason::NotReady { message };
                self.commit(|state| request::withdraw(state, id, why.clone(), self.now())).await?;
            }
        }
        Ok(EffectResult::Fine)
    }

    /// Runs a command on an instance.
    async fn command(
        &self,
        id: &InstanceId,
        command: &str,
        input: &str,
        within: Duration,
    ) -> Result<CommandResult, EngineError> {
        let state = self.store.load().await?;
        let Some(endpoint) = state.instance(id).and_then(|i| i.endpoint.clone()) else {
            return Ok(CommandResult::Failed("the instance has no address".to_owned()));
        };
        let (end, tail) = match self.connector.command(id, &endpoint, command, input, within).await {
            Ok(ended) => ended,
            Err(problem) => return Ok(CommandResult::Cut(problem.to_string())),
        };
        let how = match end {
            StageEnd::Exited(0) => return Ok(CommandResult::Passed),
            StageEnd::Exited(status) => format!("exit status {status}"),
            StageEnd::Signalled(signal) => format!("killed by {signal}"),
            StageEnd::Stopped => format!("not finished within {}", Pretty(within)),
        };
        let said = clean_line(tail.as_bytes(), LINE);
        Ok(CommandResult::Failed(if said.is_empty() { how } else { format!("{how}: {said}") }))
    }

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
        let at = self.now();
        self.commit(|state| {
            if state.instances.contains_key(id) {
                return Vec::new();
            }
            let (instance, endpoint) = (id.clone(), endpoint.clone());
            let capacity = capacity.unwrap_or(setup.policy.capacity_per_instance);
            let uses_left = setup.policy.max_use_count;
            vec![Change::Adopted { instance, endpoint, capacity, uses_left }.at(at)]
        })
        .await?;
        Ok(EffectResult::Fine)
    }

    async fn clean(&self, id: &InstanceId, setup: &PoolSetup) -> Result<EffectResult, EngineError> {
        if let Err(failure) = self.look_up(id, setup).await? {
            return Ok(EffectResult::Failed(failure));
        }
        let verdict = match self.clean_ours(id, setup).await? {
            CommandResult::Passed => {
                let command = setup.clean_command.as_deref().unwrap_or("true");
                self.command(id, command, "", setup.policy.timing.clean_timeout).await?
            }
            other => other,
        };
        let why = match verdict {
            CommandResult::Passed => {
                self.commit(|state| request::ready(state, id, self.now())).await?;
                return Ok(EffectResult::Fine);
            }
            // Nobody can be cleaned who cannot be reached: it waits until it is back.
            CommandResult::Cut(message) => {
                return Ok(EffectResult::Failed(Failure { class: ErrorClass::Transient, message }));
            }
            CommandResult::Failed(why) => format!("cleaning failed: {why}"),
        };
        let at = self.now();
        self.commit(|state| {
            let cleaning = state.instance(id).is_some_and(|i| i.phase == Phase::Cleaning);
            let set_aside = || Change::OutOfService { instance: id.clone(), reason: why.clone() }.at(at);
            cleaning.then(set_aside).into_iter().collect()
        })
        .await?;
        Ok(EffectResult::Fine)
    }

    /// Our own part of a clean, where the provider has one.
    async fn clean_ours(&self, id: &InstanceId, setup: &PoolSetup) -> Result<CommandResult, EngineError> {
        let Some(script) = &setup.clean_script else { return Ok(CommandResult::Passed) };
        let owner = self.host.identity().await?.owner;
        let mark = Mark::new(&owner, &self.pool, id);
        let command = format!("exec /bin/sh -s -- {}", mark.as_str());
        self.command(id, &command, script, setup.policy.timing.clean_timeout).await
    }

    async fn terminate(&self, id: &InstanceId, setup: &PoolSetup) -> Result<EffectResult, EngineError> {
        // CRASH: keys first, while the record still says that there is something to do.
        self.connector.discard_keys(id).await;
        let outcome = ended(setup.provider.terminate(id).await);
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

    async fn end_attempt(&self, name: &AttemptName, how: End) -> Result<EffectResult, EngineError> {
        let Some(_lease) = self.host.seize_attempt(name).await? else { return Ok(EffectResult::Fine) };
        // CRASH: between here and the mark, the missing TMPDIR ends the attempt at the next pass.
        if let Err(problem) = self.host.remove_tmpdir(name).await {
            tracing::warn!(pool = %self.pool, attempt = %name, "cannot remove its remaining files: {problem}");
        }
        // CRASH: between mark and release, the next pass releases what a closed attempt holds.
        let used = self.host.mark_closed(name, how).await?;
        let leaving = Release { how, used, closing: false };
        self.commit(|state| request::release(state, name, leaving, self.now())).await?;
        Ok(EffectResult::Fine)
    }

    async fn drop_request(&self, name: &AttemptName) -> Result<EffectResult, EngineError> {
        let Some(_lease) = self.host.seize_attempt(name).await? else { return Ok(EffectResult::Fine) };
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

/// *Not found* is the goal of a termination, not a failure.
fn ended(answer: Result<(), ProviderError>) -> EffectResult {
    match answer {
        Ok(()) => EffectResult::Again,
        Err(error) if *error.class() == ErrorClass::NotFound => EffectResult::Gone,
        Err(error) => EffectResult::Failed(error.failure),
    }
}
