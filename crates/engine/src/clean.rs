//! Cleans a static host after its last job, and takes it out of service where that fails.

use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::Change;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::{DrainReason, Instance, Phase};
use greenroom_core::plan::request;
use greenroom_ports::connector::{ConnectError, Mark, RemoteCommand, StageEnd};
use greenroom_ports::dialect;
use greenroom_ports::setup::PoolSetup;
use greenroom_ports::tail::Tail;

use super::effect::{CommandResult, EffectResult, failed_as};
use super::{Engine, EngineError};

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
        let (script, left) = self.run_clean_script(host, &endpoint, setup).await?;
        let result = match (script, &setup.clean_command) {
            // The script has shown that the host runs commands.
            (Some(CommandResult::Passed), None) => CommandResult::Passed,
            (Some(CommandResult::Passed) | None, command) => {
                let command = command.as_deref().unwrap_or_else(|| dialect::of(&endpoint).check());
                let timing = &setup.policy.timing;
                self.command(id, command, "", timing.clean_timeout, timing).await?
            }
            (Some(other), _) => other,
        };
        let (why, is_unfit) = match result {
            CommandResult::Passed => match self.fitness(id, &endpoint, setup).await {
                Ok(CommandResult::Passed) => {
                    self.commit(|state| request::cleaned(state, id, host.since, &left, self.now())).await?;
                    return Ok(EffectResult::Fine);
                }
                Ok(CommandResult::Failed(message) | CommandResult::Cut(message)) => {
                    let message = self.with_last_job(id, message).await?;
                    (DrainReason::Unfit { message }.to_string(), true)
                }
                // An unreachable host cannot be checked: it is cleaned once more when it is reachable.
                Err(problem) => {
                    let message = problem.to_string();
                    return Ok(EffectResult::Failed(Failure { class: ErrorClass::Transient, message }));
                }
            },
            // An unreachable host cannot be cleaned: it waits until it is reachable.
            CommandResult::Cut(message) => {
                return Ok(EffectResult::Failed(Failure { class: ErrorClass::Transient, message }));
            }
            CommandResult::Failed(why) => {
                let after = self.last_job(id).await?.map(|job| format!(" after {job}")).unwrap_or_default();
                (format!("cleaning{after} failed: {why}"), false)
            }
        };
        let at = self.now();
        self.commit(|state| {
            let cleaning = state.instance(id).is_some_and(|i| i.phase == Phase::Cleaning);
            let out_of_service = || Change::OutOfService { instance: id.clone(), reason: why.clone() }.at(at);
            cleaning.then(out_of_service).into_iter().collect()
        })
        .await?;
        Ok(if is_unfit { EffectResult::Unfit(why) } else { EffectResult::Fine })
    }

    /// A reason for which a host leaves service, with the job that left it last.
    pub(super) async fn with_last_job(&self, id: &InstanceId, why: String) -> Result<String, EngineError> {
        Ok(match self.last_job(id).await? {
            Some(job) => format!("{why} (after {job})"),
            None => why,
        })
    }

    /// The job that left the host last, and its project, as far as the attempts show that.
    async fn last_job(&self, id: &InstanceId) -> Result<Option<String>, EngineError> {
        let attempts = self.host.attempts.attempts_of(&self.pool).await?;
        let there = attempts.into_values().filter(|seen| seen.used && seen.instance.as_ref() == Some(id));
        let ended = there.filter_map(|seen| Some((seen.closed?.at, seen.job?)));
        let last = ended.reduce(|last, next| if next.0.since(last.0).is_zero() { last } else { next });
        Ok(last.map(|(_, job)| format!("job {} of `{}`", job.key, job.project)))
    }

    /// Greenroom's part of cleaning; `None`: it is turned off. A host that stays with its trust domain keeps the cache, and
    /// the images that are returned.
    async fn run_clean_script(
        &self,
        host: &Instance,
        endpoint: &Endpoint,
        setup: &PoolSetup,
    ) -> Result<(Option<CommandResult>, Vec<LeftImage>), EngineError> {
        let none = Vec::new;
        let Some(cleaning) = &setup.cleaning else { return Ok((None, none())) };
        let keeps_cache = host.domain.is_some() && !setup.policy.clean_unbinds;
        let owner = self.host.leadership.identity().await?.owner;
        let mark = Mark::new(&owner, &self.pool, &host.id);
        let reader = dialect::of(endpoint).clean(&mark, keeps_cache);
        let timing = &setup.policy.timing;
        let within = timing.clean_timeout;
        let start_within = timing.connect_timeout;
        let Some(root) = cleaning.by_root.get(&host.id) else {
            let result = self.command(&host.id, &reader, &cleaning.by_account, within, timing).await?;
            return Ok((Some(result), none()));
        };
        let as_root = Endpoint { user: root.user.clone(), ..endpoint.clone() };
        let text = if keeps_cache { &root.clean_keeping_cache } else { &root.clean };
        let command = RemoteCommand { text, input: &root.script, within, start_within, shared: false };
        let (result, left) = match self.command_at(&host.id, &as_root, command).await {
            Ok(CommandResult::Passed) => {
                // Cleaning has ended the login that the link uses.
                let proof = RemoteCommand { text: &reader, input: &cleaning.proof, ..command };
                self.prove(&host.id, endpoint, proof).await
            }
            Ok(other) => (other, none()),
            Err(problem) => (CommandResult::Cut(problem.to_string()), none()),
        };
        Ok((Some(result), left))
    }

    /// Shows that a stage can begin on a host that root has cleaned. The images that are left there.
    async fn prove(
        &self,
        id: &InstanceId,
        endpoint: &Endpoint,
        proof: RemoteCommand<'_>,
    ) -> (CommandResult, Vec<LeftImage>) {
        // A clean host on which no stage begins would fail one job after the other. A network may fail once.
        let mut output = Tail::default();
        let mut tried = self.connector.command(id, endpoint, proof, &mut output).await;
        if matches!(tried, Err(ConnectError::Lost { .. })) {
            output = Tail::default();
            tried = self.connector.command(id, endpoint, proof, &mut output).await;
        }
        let output = output.text();
        let result = match tried {
            Ok(StageEnd::Exited(0)) => return (CommandResult::Passed, left_images(&output)),
            Ok(end) => failed_as(&end, proof.within, &output),
            Err(
                problem @ (ConnectError::Lost { .. }
                | ConnectError::Refused { .. }
                | ConnectError::NotBegun { .. }
                | ConnectError::NoContainer { .. }),
            ) => CommandResult::Failed(format!("no stage begins on the clean host: {problem}")),
            Err(problem) => CommandResult::Cut(problem.to_string()),
        };
        (result, Vec::new())
    }
}

/// The name and the digest of an image that a cleaning has left.
type LeftImage = (String, String);

/// The lines `left DIGEST NAME` of an output.
fn left_images(output: &str) -> Vec<LeftImage> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("left ")?.split_once(' '));
    lines.map(|(digest, name)| (name.to_owned(), digest.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::left_images;

    #[test]
    fn only_whole_lines_name_images() {
        let left =
            left_images("left sha256:0a r.io/a:1\nleft sha256:0b\nxleft a b\nleft sha256:0a r.io/b:2\n");
        let expected = [("r.io/a:1", "sha256:0a"), ("r.io/b:2", "sha256:0a")];
        assert_eq!(left, expected.map(|(name, digest)| (name.to_owned(), digest.to_owned())));
    }
}
