//! The check between two jobs: whether an instance that a job has left is fit for the next one.

use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::{DrainReason, Instance};
use greenroom_core::plan::{Effect, checks, request};
use greenroom_core::pool::PoolState;
use greenroom_ports::connector::{ConnectError, RemoteCommand};
use greenroom_ports::dialect;
use greenroom_ports::setup::PoolSetup;

use super::container::leftovers;
use super::effect::{CommandResult, EffectResult};
use super::{Engine, EngineError};

/// Greenroom's part of the check, a script for `/bin/sh`.
pub const SCRIPT: &str = include_str!("recheck.sh");
/// The space that has to be free for builds.
const KIB: u32 = 100 * 1024;
/// The inodes that have to be free for builds, on file systems that count them.
const INODES: u32 = 1_000;

impl Engine {
    /// The checks to begin before the next pass: a job may wait for their end, and a pass may wait for the provider.
    pub(super) async fn due_rechecks(&self, state: &PoolState) -> Result<Vec<Effect>, EngineError> {
        let due = checks::due_rechecks(state, self.now()).map(|i| Effect::Recheck { instance: i.id.clone() });
        let due: Vec<Effect> = due.collect();
        if due.is_empty() || self.host.leadership.identity().await?.moved.is_some() {
            return Ok(Vec::new());
        }
        Ok(due)
    }

    /// Checks an instance that a job has left. A connection that fails says nothing about its fitness.
    pub(super) async fn recheck(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        let state = self.store.load().await?;
        let due = state.instance(id).filter(|i| i.awaits_recheck());
        // As a job would reach it: a job may wait, and a call of the provider takes time.
        let Some((instance, left, endpoint)) = due.and_then(|i| Some((i, i.released?, i.endpoint.clone()?)))
        else {
            return Ok(EffectResult::Fine);
        };
        let problem = match self.turn_over(instance, &endpoint, setup).await {
            Ok(CommandResult::Passed) => {
                self.commit(|state| checks::recheck_passed(state, id, left, self.now())).await?;
                return Ok(EffectResult::Fine);
            }
            Ok(CommandResult::Failed(message) | CommandResult::Cut(message)) => {
                self.commit(|state| checks::recheck_failed(state, id, &message, self.now())).await?;
                return Ok(EffectResult::Unfit(DrainReason::Unfit { message }.to_string()));
            }
            Err(problem) => problem,
        };
        let message = problem.to_string();
        if !matches!(problem, ConnectError::HostFault { .. } | ConnectError::Local { .. }) {
            self.commit(|state| request::doubt(state, id, &message, self.now())).await?;
        }
        Ok(EffectResult::Failed(Failure { class: ErrorClass::Transient, message }))
    }

    /// Removes what jobs have left with the engine, and then checks. No job comes meanwhile, so present jobs are known.
    async fn turn_over(
        &self,
        instance: &Instance,
        endpoint: &Endpoint,
        setup: &PoolSetup,
    ) -> Result<CommandResult, ConnectError> {
        let removal = setup.pulls.as_ref().and_then(|pulls| leftovers::remove(instance, pulls.engine()));
        if let Some(removal) = removal {
            match self.command_on(&instance.id, endpoint, removal.command(&setup.policy.timing)).await? {
                CommandResult::Passed => {}
                other => return Ok(other),
            }
        }
        self.fitness(&instance.id, endpoint, setup).await
    }

    /// Checks that the next job can begin on the instance: Greenroom's part of the check, then the operator's.
    pub(super) async fn fitness(
        &self,
        id: &InstanceId,
        endpoint: &Endpoint,
        setup: &PoolSetup,
    ) -> Result<CommandResult, ConnectError> {
        let timing = &setup.policy.timing;
        let within = timing.ready_timeout;
        let start_within = timing.connect_timeout;
        let dialect = dialect::of(endpoint);
        let builds = dialect.quote(&setup.recheck.builds_dir);
        let text = dialect.read_script(&format!("{builds} {KIB} {INODES}"));
        let own = RemoteCommand { text: &text, input: SCRIPT, within, start_within, shared: true };
        match self.command_on(id, endpoint, own).await? {
            CommandResult::Passed => {}
            CommandResult::Failed(why) => {
                // What the script prints is the reason.
                let reason = why.strip_prefix("exit status 1: ").unwrap_or(&why);
                return Ok(CommandResult::Failed(reason.to_owned()));
            }
            cut @ CommandResult::Cut(_) => return Ok(cut),
        }
        let Some(command) = &setup.recheck.command else { return Ok(CommandResult::Passed) };
        let operators = RemoteCommand { text: command, input: "", within, start_within, shared: false };
        let result = self.command_on(id, endpoint, operators).await?;
        Ok(match result {
            CommandResult::Failed(why) => CommandResult::Failed(format!("`recheck_command`: {why}")),
            other => other,
        })
    }

    /// A command that does not begin twice in a row does not begin for a job, either.
    async fn command_on(
        &self,
        id: &InstanceId,
        endpoint: &Endpoint,
        command: RemoteCommand<'_>,
    ) -> Result<CommandResult, ConnectError> {
        let mut tried = self.command_at(id, endpoint, command).await;
        if matches!(tried, Err(ConnectError::NotBegun { .. } | ConnectError::Lost { .. })) {
            tried = self.command_at(id, endpoint, command).await;
        }
        match tried {
            Err(ConnectError::NotBegun { why, .. }) => {
                Ok(CommandResult::Failed(format!("no command begins there: {why}")))
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// A job left directories under names that it could know, such as those of an earlier check with any process id.
    #[test]
    fn what_a_job_has_left_does_not_make_an_instance_unfit() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        let left = "mkdir \"$1/.greenroom-check.$$\" \"$1/.greenroom-check.XXXXXXXXXX\" && exec sh -c \"$0\" check \"$1\" 1 1";
        let output = Command::new("sh").args(["-c", left, SCRIPT, at]).env("TMPDIR", at).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read_dir(at).unwrap().count(), 2, "the check leaves nothing");
    }
}
