//! The four calls of GitLab Runner: `config`, `prepare`, `run`, `cleanup`; and the summary at the end of a job's log.
//!
//! For pools with `summary = true`, `prepare` begins the summary, each `run` adds a row, and the last stage prints it. Nothing
//! of it decides anything: a problem costs the job its summary.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_core::attempt::End;
use greenroom_core::container::account::{ContainerAccount, FailureAccount, FailureClass, ImageSource};
use greenroom_core::container::spec::ContainerJob;
use greenroom_core::execution::{Execution, Shell};
use greenroom_core::ids::PoolName;
use greenroom_core::job::JobFacts;
use greenroom_core::job_end::{JobEnd, StageFailure, SummaryRow, judge, table};
use greenroom_engine::acquire::{AcquireError, Acquired};
use greenroom_engine::stage::{StageError, StageKind};
use greenroom_manager::gitlab::config_json::ConfigOutput;
use greenroom_manager::gitlab::env::JobEnv;
use greenroom_manager::gitlab::exit::Outcome;
use greenroom_manager::gitlab::stage::Stage;
use greenroom_ports::attempts::{AttemptRecord, Attempts as _, Closing};
use greenroom_ports::clock::Clock as _;
use greenroom_ports::connector::StageEnd;
use greenroom_ssh::output::ProcessOutput;

use super::args::{GlobalOptions, PoolOption};
use super::error::{Blame, CliError};
use super::job::{DriverCall, JobDirs, choose, response_of};
use super::{containers, messages, setup, ui};
use crate::config::Config;

/// `config`: one JSON document on standard output and nothing else. Writes nothing, opens no state.
pub(super) fn config(place: &GlobalOptions, option: &PoolOption, env: &JobEnv) -> Result<Outcome, CliError> {
    let path = place.config_file()?;
    let (config, _) = Config::read(&path).map_err(CliError::config)?;
    let response = response_of(env)?;
    let pool = choose(&config, option.pool.as_deref(), &response)?;
    let state_dir = match &place.state_dir {
        Some(given) => std::path::absolute(given)?,
        None => config.state_dir.clone(),
    };
    let dirs = JobDirs::of(pool, &state_dir, env, &response)?;
    let answer = ConfigOutput {
        version: env!("CARGO_PKG_VERSION"),
        pool: &pool.name,
        state_dir: &state_dir,
        shell: pool.shell.as_str(),
        builds_dir: &dirs.builds,
        cache_dir: &dirs.cache,
    };
    ui::out(&format!("{}\n", answer.to_json()?));
    Ok(Outcome::Success)
}

/// `prepare`: an instance that responds, or one sentence with the reason.
pub(super) async fn prepare(
    place: &GlobalOptions,
    option: &PoolOption,
    env: JobEnv,
) -> Result<Outcome, CliError> {
    let call = DriverCall::open(place, env)?;
    let response = call.response()?;
    let pool = call.pool(option.pool.as_deref(), &response)?;
    call.context.note_config();
    // An unreadable configuration does not fail the job: the recorded policy applies.
    let configured = call.configured(&pool);
    let containers = containers::wanted(&call, &pool, configured, &response)?;
    let shell = configured.map_or(Shell::Bash.into(), setup::stage_shell);
    let dirs =
        configured.and_then(|pool| JobDirs::of(pool, &call.context.state_path, &call.env, &response).ok());
    let ordered = match configured {
        Some(pool) => containers::ordered(&call, pool, &response, dirs.as_ref())?,
        None => None,
    };
    let (order, launch) = ordered.map(|ordered| (Arc::new(ordered.order), ordered.launch)).unzip();
    let record = AttemptRecord {
        job: JobFacts {
            images: containers.as_ref().map(ContainerJob::images).unwrap_or_default(),
            order,
            ..response.facts.clone()
        },
        pool: pool.clone(),
        execution: match containers {
            Some(_) => Execution::Container { shell },
            None => Execution::Machine { shell },
        },
        builds_dir: dirs.as_ref().map(|dirs| dirs.builds.clone()),
        begun: call.context.host.now(),
        assignment: None,
        order: launch,
    };
    let engine = call.context.engine(&pool)?;
    let mut say = |progress| ui::tell(&messages::progress(&pool, &progress, call.context.host.now()));
    let policy = || call.policy(&pool);
    match engine.acquire(&call.attempt, &record, &policy, &mut say).await {
        Ok(acquired) => {
            let instance = &acquired.assignment.instance;
            ui::tell(&messages::ready(instance, acquired.waited, acquired.account));
            if let Some(fingerprint) = acquired.assignment.endpoint.first_use() {
                ui::tell(&messages::first_use(instance, fingerprint));
            }
            let mut prepared = None;
            if let (Some(job), Some(dirs)) = (&containers, &dirs) {
                let began = call.context.host.now();
                containers::create(&call, &engine, &response, &acquired, (job, dirs)).await?;
                prepared = Some(call.context.host.now().since(began));
            } else {
                containers::end_pulls(&call, &engine, configured, &acquired).await?;
            }
            if configured.is_some_and(|pool| pool.summary) {
                begin_summary(&call, &acquired, prepared);
            }
            Ok(Outcome::Success)
        }
        Err(AcquireError::Impossible(sentence)) => Err(CliError::impossible(sentence)),
        Err(error @ AcquireError::TimedOut { .. }) => Err(CliError::system(error)
            .help(format!("run `greenroom pool status {pool}` to see which jobs hold the instances"))),
        Err(error) => Err(CliError::system(error)),
    }
}

/// `run`: a stage's script on the job's instance. A stage with an unknown name is run like any other.
pub(super) async fn run(
    place: &GlobalOptions,
    script: &Path,
    stage: &str,
    env: JobEnv,
) -> Result<Outcome, CliError> {
    let began = Instant::now();
    let Ok(stage) = stage.parse::<Stage>();
    let code_file = env.code_file();
    if let Some(file) = &code_file {
        // The runner never removes it: a file from an earlier stage would count as this stage's.
        file.clear()?;
    }
    let script = File::open(script).map_err(|problem| {
        CliError::say(format!("cannot open the script of stage `{stage}`, `{}`: {problem}", script.display()))
    })?;
    let call = DriverCall::open_bare(place, env)?;
    let pool = call.env.pool()?.unwrap_or_else(|| PoolName::new("unknown"));
    // `prepare` recorded the pool of the attempt; without a record, the variable of `config` has to do.
    let pool = call.context.host.pool_of(&call.attempt)?.unwrap_or(pool);
    let engine = call.context.engine(&pool)?;
    let mut output = ProcessOutput::new()?;
    let kind = StageKind {
        in_container: !stage.is_runners(),
        prepares: stage.prepares(),
        before_container: stage.is_before_scripts(),
        last: stage.is_last(),
    };
    let tell = |notice: &str| {
        // It may come in the middle of the stage's output, which a link moves directly.
        ui::note_line(true);
        ui::tell(notice);
    };
    let ended = engine.stage(&call.attempt, (script, kind), &mut output, &tell).await;
    ui::note_line(output.open_line().is_some());
    let outcome = match ended {
        Ok(StageEnd::Exited(status)) => {
            let outcome = Outcome::of_exit(status);
            if let Outcome::Build(code) = outcome {
                let failure = StageFailure::Exited { stage: stage.to_string(), status: code.get() };
                note_stage(&call, &stage, &failure);
            } else if let Err(problem) =
                call.context.host.note_stage_success(&call.attempt, &stage.to_string())
            {
                tracing::warn!("cannot note that the stage succeeded: {problem}");
            }
            outcome
        }
        Ok(StageEnd::Signalled(signal)) => {
            let name = stage.to_string();
            let signal_name = signal.clone();
            note_stage(&call, &stage, &StageFailure::Killed { stage: name, signal: signal_name });
            ui::tell(&messages::killed(&stage, &signal));
            Outcome::of_signal(&signal)
        }
        Ok(StageEnd::Impossible(why)) => {
            note_failure(&call, FailureClass::Job, &why);
            note_stage(&call, &stage, &StageFailure::Impossible { reason: why.clone() });
            ui::tell(&why);
            Outcome::IMPOSSIBLE
        }
        Ok(StageEnd::Stopped) => {
            note_stage(&call, &stage, &StageFailure::Stopped { stage: stage.to_string() });
            ui::tell("the stage was stopped; the job keeps its instance for the remaining stages");
            Outcome::System
        }
        Err(error) => {
            let of_instance = matches!(
                error,
                StageError::NotBegun { .. } | StageError::Lost { .. } | StageError::Ended { .. }
            );
            let by_job = error.is_by_job();
            let reason = error.to_string();
            if kind.in_container && of_instance {
                let class = if by_job { FailureClass::Job } else { FailureClass::System };
                note_failure(&call, class, &reason);
            }
            let failure = if by_job {
                StageFailure::UsedUp { reason }
            } else {
                StageFailure::System { reason, stage: Some(stage.to_string()) }
            };
            note_stage(&call, &stage, &failure);
            note_in_summary(&call, &stage, began.elapsed(), by_job.then_some(Outcome::IMPOSSIBLE));
            return Err(if by_job { CliError::by_job(error) } else { CliError::system(error) });
        }
    };
    if let Some(Err(problem)) = code_file.map(|file| file.record(outcome)) {
        // The exit status still shows whether the script failed.
        ui::tell(&format!("cannot record the script's exit code for the runner: {problem}"));
    }
    note_in_summary(&call, &stage, began.elapsed(), Some(outcome));
    Ok(outcome)
}

/// Keeps why a stage in a container failed, for `explain`. The job does not depend on it.
fn note_failure(call: &DriverCall, class: FailureClass, why: &str) {
    let failure = FailureAccount { class, message: why.to_owned() };
    if let Err(problem) = call.context.host.note_container_failure(&call.attempt, failure) {
        tracing::warn!("cannot note why the stage failed: {problem}");
    }
}

/// Keeps why a stage did not succeed, for `history` and `explain`. A failure in `after_script`, or in the last stage, does
/// not fail the job.
fn note_stage(call: &DriverCall, stage: &Stage, failure: &StageFailure) {
    let is_failure = matches!(
        failure,
        StageFailure::Exited { .. }
            | StageFailure::Killed { .. }
            | StageFailure::UsedUp { .. }
            | StageFailure::System { .. }
    );
    if is_failure && (*stage == Stage::AfterScript || stage.is_last()) {
        return;
    }
    if let Err(problem) = call.context.host.note_stage_failure(&call.attempt, failure) {
        tracing::warn!("cannot note why the stage failed: {problem}");
    }
}

/// Judges how the job of a closed attempt ended, from the status that the runner gives and from what [`note_stage`] kept.
fn ending(call: &DriverCall, closing: &Closing) -> Option<JobEnd> {
    let record = closing.record.as_ref()?;
    let noted = call.context.host.stage_failure(&call.attempt);
    let lasted = call.context.host.now().since(record.begun);
    judge(call.env.job_status(), noted.as_ref(), closing.used, (lasted, record.job.timeout))
}

/// `cleanup`: releases the instance and returns. It is silent on success: the runner logs its stderr as a warning.
pub(super) async fn cleanup(
    place: &GlobalOptions,
    option: &PoolOption,
    env: JobEnv,
) -> Result<Outcome, CliError> {
    let call = DriverCall::open_bare(place, env)?;
    let closing = call.context.host.close_attempt(&call.attempt, End::CleanedUp).await?;
    let named = option.pool.as_deref().map(PoolName::parse).transpose()?;
    let recorded = closing.record.as_ref().map(|record| record.pool.clone());
    let Some(pool) = recorded.or(named).or(call.env.pool()?) else {
        // No `prepare` ever came: the attempt has no grant, and the mark rejects a late one.
        return Ok(Outcome::Success);
    };
    if closing.record.is_none() {
        return Ok(Outcome::Success);
    }
    let end = ending(&call, &closing);
    if let Some(problem) = call.context.engine(&pool)?.release(&call.attempt, &closing, end.as_ref()).await? {
        ui::tell(&format!("pool `{pool}` is not being reconciled: cannot start a keeper ({problem})"));
    }
    Ok(Outcome::Success)
}

/// Reports an error to the runner: one sentence, and an exit status that shows whether the job caused it.
pub(super) fn failed(error: &CliError) -> Outcome {
    ui::err(&error.for_job());
    match error.blame {
        Blame::Job => Outcome::IMPOSSIBLE,
        Blame::System => Outcome::System,
    }
}

/// Begins the summary of a job that has its instance; [`note_in_summary`] adds the stages. `containers`: how long they took,
/// if the job has any.
fn begin_summary(call: &DriverCall, acquired: &Acquired, containers: Option<Duration>) {
    let account = containers.and_then(|_| call.context.host.containers_of(&call.attempt));
    let rows = summary_rows(acquired, containers, account.as_ref());
    if let Err(problem) = call.context.host.begin_summary(&call.attempt, &rows) {
        tracing::warn!("cannot begin the summary of the job: {problem}");
    }
}

fn summary_rows(
    acquired: &Acquired,
    containers: Option<Duration>,
    account: Option<&ContainerAccount>,
) -> Vec<SummaryRow> {
    let mut rows = vec![SummaryRow::new("waited", acquired.waited, acquired.account.to_string())];
    let instance = acquired.assignment.instance.as_str();
    rows.extend(acquired.booted.map(|boot| SummaryRow::new("booted", boot, instance)));
    rows.extend(containers.map(|took| SummaryRow::new("containers", took, "")));
    let images = account.into_iter().flat_map(|account| {
        std::iter::once(&account.image).chain(account.services.iter().map(|service| &service.image))
    });
    rows.extend(images.filter_map(|image| match image.source {
        Some(ImageSource::Pulled { after, .. }) => {
            Some(SummaryRow::new("pulled", after, image.name.as_str()))
        }
        Some(ImageSource::Present) | None => None,
    }));
    rows
}

/// Adds the row of a stage, if the job has a summary; after the last one, prints it. `outcome`: `None`, the stage could not be
/// run.
fn note_in_summary(call: &DriverCall, stage: &Stage, took: Duration, outcome: Option<Outcome>) {
    let host = &call.context.host;
    let row = || SummaryRow::new(stage.to_string(), took, stage_ending(outcome));
    let shown = host.add_to_summary(&call.attempt, row).and_then(|has_one| {
        if has_one && stage.is_last() { host.summary(&call.attempt) } else { Ok(Vec::new()) }
    });
    match shown {
        Ok(rows) if rows.is_empty() => {}
        Ok(rows) => ui::err(&format!("greenroom: summary of this job\n{}", table(&rows))),
        Err(problem) => tracing::warn!("cannot write the summary of the job: {problem}"),
    }
}

fn stage_ending(outcome: Option<Outcome>) -> String {
    match outcome {
        Some(Outcome::Success) => String::new(),
        Some(Outcome::Build(code)) => format!("exit status {code}"),
        Some(Outcome::System) => "stopped".to_owned(),
        None => "system failure".to_owned(),
    }
}
