//! Cleans a static host after its last job, and takes it out of service where that fails.

use super::effect::{CommandResult, EffectResult};
use super::{Engine, EngineError};
use crate::core::endpoint::Endpoint;
use crate::core::event::Change;
use crate::core::failure::{ErrorClass, Failure};
use crate::core::ids::InstanceId;
use crate::core::instance::{Instance, Phase};
use crate::core::plan::request;
use crate::port::connector::{ConnectError, Mark, RemoteCommand};
use crate::port::setup::{KEEP_CACHE, PoolSetup};

impl Engine {
    pub(super) async fn clean(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        let endpoint = match self.look_up(id, setup).await? {
            Ok(endpoint) => endpoint,
            Err(failure) => return Ok(EffectResult::Failed(failure)),
        };
        let state = self.store.load().await?;
        let Some(host) = state.instance(id).filter(|host| host.phase == Phase::Cleaning) else {
            return Ok(EffectResult::Fine);
        };
        let result = match (self.run_clean_script(host, &endpoint, setup).await?, &setup.clean_command) {
            // The script has shown that the host runs commands.
            (Some(CommandResult::Passed), None) => CommandResult::Passed,
            (Some(CommandResult::Passed) | None, command) => {
                let command = command.as_deref().unwrap_or("true");
                let timing = &setup.policy.timing;
                self.command(id, command, "", timing.clean_timeout, timing).await?
            }
            (Some(other), _) => other,
        };
        let why = match result {
            CommandResult::Passed => {
                self.commit(|state| request::cleaned(state, id, host.since, self.now())).await?;
                return Ok(EffectResult::Fine);
            }
            // An unreachable host cannot be cleaned: it waits until it is reachable.
            CommandResult::Cut(message) => {
                return Ok(EffectResult::Failed(Failure { class: ErrorClass::Transient, message }));
            }
            CommandResult::Failed(why) => format!("cleaning failed: {why}"),
        };
        let at = self.now();
        self.commit(|state| {
            let cleaning = state.instance(id).is_some_and(|i| i.phase == Phase::Cleaning);
            let out_of_service = || Change::OutOfService { instance: id.clone(), reason: why.clone() }.at(at);
            cleaning.then(out_of_service).into_iter().collect()
        })
        .await?;
        Ok(EffectResult::Fine)
    }

    /// Greenroom's part of cleaning; `None`: it is turned off. A host that stays with its trust domain keeps the cache.
    async fn run_clean_script(
        &self,
        host: &Instance,
        endpoint: &Endpoint,
        setup: &PoolSetup,
    ) -> Result<Option<CommandResult>, EngineError> {
        let Some(cleaning) = &setup.cleaning else { return Ok(None) };
        let keeps_cache = host.domain.is_some() && !setup.policy.clean_unbinds;
        let owner = self.host.leadership.identity().await?.owner;
        let with_mark = format!("exec /bin/sh -s -- {}", Mark::new(&owner, &self.pool, &host.id).as_str());
        let timing = &setup.policy.timing;
        let (within, start_within) = (timing.clean_timeout, timing.connect_timeout);
        let Some(root) = cleaning.by_root.get(&host.id) else {
            let command = if keeps_cache { format!("{with_mark} {KEEP_CACHE}") } else { with_mark };
            return self.command(&host.id, &command, &cleaning.by_account, within, timing).await.map(Some);
        };
        let as_root = Endpoint { user: root.user.clone(), ..endpoint.clone() };
        let text = if keeps_cache { &root.clean_keeping_cache } else { &root.clean };
        let command = RemoteCommand { text, input: &root.script, within, start_within, shared: false };
        Ok(Some(match self.command_at(&host.id, &as_root, command).await {
            Ok(CommandResult::Passed) => {
                // Cleaning has ended the login that the link uses.
                let text = if keeps_cache { format!("{with_mark} {KEEP_CACHE}") } else { with_mark };
                let proof = RemoteCommand { text: &text, input: &cleaning.proof, ..command };
                self.prove(&host.id, endpoint, proof).await
            }
            Ok(other) => other,
            Err(problem) => CommandResult::Cut(problem.to_string()),
        }))
    }

    /// Shows that a stage can begin on a host that root has cleaned.
    async fn prove(&self, id: &InstanceId, endpoint: &Endpoint, proof: RemoteCommand<'_>) -> CommandResult {
        // A clean host on which no stage begins would fail one job after the other. A network may fail once.
        let mut tried = self.command_at(id, endpoint, proof).await;
        if matches!(tried, Err(ConnectError::Lost { .. })) {
            tried = self.command_at(id, endpoint, proof).await;
        }
        match tried {
            Ok(result) => result,
            Err(
                problem @ (ConnectError::Lost { .. }
                | ConnectError::Refused { .. }
                | ConnectError::NotBegun { .. }),
            ) => CommandResult::Failed(format!("no stage begins on the clean host: {problem}")),
            Err(problem) => CommandResult::Cut(problem.to_string()),
        }
    }
}
