//! A whole job: prepare cycles, the run phase with its limit, cleanup, and the reported result.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::attempt::{Attempt, Build};
use super::events::{Event, Phase, Shared, State};
use super::exit_code::Failure;
use super::record::{Call, Outcome};
use super::variables::go_duration;

/// The number of times that the runner tries to prepare.
const PREPARATION_ATTEMPTS: usize = 3;

/// Plays the job to its end; the last event has the reported result.
pub(super) fn play(build: &Arc<Build>) {
    let shared = Arc::clone(&build.shared);
    shared.emit(Event::Says("Running with gitlab-runner 19.4.0 (d79f3e7b)".into()));
    let result = run_job(build);
    if result == Err(Failure::Gone) || shared.lock().gone.is_some() {
        return;
    }
    let outcome = result.as_ref().map_or_else(Failure::outcome, |()| Outcome::Success);
    let last_line = match &result {
        Ok(()) => "Job succeeded".into(),
        Err(failure @ Failure::System(_)) => {
            format!("ERROR: Job failed (system failure): {}", failure.message())
        }
        Err(failure) => format!("ERROR: Job failed: {}", failure.message()),
    };
    shared.emit(Event::Says(last_line));
    build.release();
    shared.emit(Event::Finished { outcome, at: shared.now() });
}

fn run_job(build: &Arc<Build>) -> Result<(), Failure> {
    let job = Scope::preparation(&build.shared).within(Some(build.job.timeout), Cause::JobTimeout);
    let preparation = job.within(build.runner.prepare_timeout, Cause::PrepareTimeout);
    build.shared.emit(Event::Says("Preparing the \"custom\" executor".into()));
    let attempt = Arc::new(prepared(build, &preparation)?);
    let result = match attempt.stage("prepare_script", &preparation).unwrap_or(Ok(())) {
        Ok(()) => run_phase(&attempt, &job.run()),
        Err(Failure::System(text)) => Err(Failure::System(format!("prepare environment: {text}"))),
        Err(failure) => Err(failure),
    };
    attempt.clean_up();
    result
}

/// Up to three cycles of config and prepare, each with a cleanup of its own when it fails.
fn prepared(build: &Arc<Build>, scope: &Scope) -> Result<Attempt, Failure> {
    let mut result = Err(Failure::Gone);
    for number in 1..=PREPARATION_ATTEMPTS {
        let attempt = Attempt::new(Arc::clone(build), number);
        let prepare = || attempt.call(Call::Prepare, None, scope).map(drop);
        let failure = match attempt.configure(scope).and_then(|()| prepare()) {
            Ok(()) => return Ok(attempt),
            Err(Failure::Gone) => return Err(Failure::Gone),
            Err(failure) => failure,
        };
        attempt.clean_up();
        // The job's own failure is checked before a cancellation: exit 1 hides a timeout.
        if matches!(failure, Failure::Build { .. } | Failure::Configuration(_)) {
            return Err(failure);
        }
        if let Some(cause) = scope.ended() {
            return Err(Failure::Ended(cause));
        }
        let says = |line: String| build.shared.emit(Event::Says(line));
        says(format!("ERROR: Preparation failed: {}", failure.message()));
        says(format!("Will be retried in {:?} ...", build.runner.pace.prepare_retry));
        // The wait follows the last attempt as well.
        build.shared.pause(build.runner.pace.prepare_retry);
        result = Err(failure);
    }
    result
}

/// Runs the stages beside this thread, which continues with cleanup when the job was ended and they take too long.
fn run_phase(attempt: &Arc<Attempt>, scope: &Scope) -> Result<(), Failure> {
    let shared = &attempt.build.shared;
    let slot = Arc::new(Mutex::new(None));
    let of_thread = (Arc::clone(attempt), scope.clone(), Arc::clone(&slot));
    std::thread::spawn(move || {
        let (attempt, scope, slot) = of_thread;
        let result = execute_stages(&attempt, &scope);
        scope.shared.tell(|_| *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result));
    });
    let finished = || slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let gone = |state: &State| state.gone.map(|_| Err(Failure::Gone));
    let cause = loop {
        let seen = shared.wait(scope.next_deadline(), |state| {
            let over = gone(state).or_else(finished).map(Seen::Over);
            over.or_else(|| scope.ended_in(state).map(Seen::Ended))
        });
        match seen {
            Some(Seen::Over(result)) => return result,
            Some(Seen::Ended(cause)) => break cause,
            None => {}
        }
    };
    let until = Instant::now().checked_add(attempt.build.runner.pace.run_end);
    match shared.wait(until, |state| gone(state).or_else(finished)) {
        Some(Err(Failure::Gone)) => return Err(Failure::Gone),
        Some(_) => {}
        None => shared.emit(Event::Logs("Timed out waiting for the build to finish".into())),
    }
    Err(Failure::Ended(cause))
}

/// The event that ends the wait for the stages.
enum Seen {
    Over(Result<(), Failure>),
    Ended(Cause),
}

// The reach of a cancellation or a timeout: the runner's nested contexts.

/// The reasons for which a scope ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    Canceled,
    JobTimeout,
    PrepareTimeout,
    SourcesTimeout,
    ScriptTimeout,
    AfterScriptTimeout,
    Interrupted,
    /// The time limit of one call was over; this has no consequence but the signals.
    ExecTimeout,
}

impl Cause {
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Canceled => Outcome::JobCanceled,
            Self::Interrupted => Outcome::RunnerInterrupted,
            _ => Outcome::JobExecutionTimeout,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Config, prepare, prepare_script: cancel and job timeout, but not the runner's own end.
    Preparation,
    /// All run stages from get_sources on.
    Run,
    /// The script's steps: also what GitLab's `canceling` ends.
    Script,
    /// Cleanup, and calls by hand.
    Nothing,
}

#[derive(Debug, Clone)]
pub(super) struct Scope {
    pub(super) shared: Arc<Shared>,
    reach: Reach,
    deadlines: Vec<(Instant, Cause)>,
}

impl Scope {
    pub(super) fn detached(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), reach: Reach::Nothing, deadlines: Vec::new() }
    }

    pub(super) fn preparation(shared: &Arc<Shared>) -> Self {
        Self { reach: Reach::Preparation, ..Self::detached(shared) }
    }

    /// The scope of the run stages: this one without the deadlines of the preparation.
    pub(super) fn run(&self) -> Self {
        let keep = |(at, cause): &(Instant, Cause)| (*cause == Cause::JobTimeout).then_some((*at, *cause));
        Self {
            reach: Reach::Run,
            deadlines: self.deadlines.iter().filter_map(keep).collect(),
            ..self.clone()
        }
    }

    pub(super) fn script(&self) -> Self {
        Self { reach: Reach::Script, ..self.clone() }
    }

    pub(super) fn within(&self, time: Option<Duration>, cause: Cause) -> Self {
        let mut scope = self.clone();
        // A limit beyond the clock's range is no limit.
        scope.deadlines.extend(time.and_then(|time| Instant::now().checked_add(time)).map(|at| (at, cause)));
        scope
    }

    pub(super) fn ended(&self) -> Option<Cause> {
        self.ended_in(&self.shared.lock())
    }

    pub(super) fn ended_in(&self, state: &State) -> Option<Cause> {
        let requested = match self.reach {
            Reach::Nothing => None,
            Reach::Preparation => state.job_ended,
            Reach::Run => state.job_ended.or(state.interrupted()),
            Reach::Script => state.job_ended.or(state.interrupted()).or(state.script_ended),
        };
        let now = Instant::now();
        requested.or_else(|| self.deadlines.iter().find(|(at, _)| *at <= now).map(|(_, cause)| *cause))
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.iter().map(|(at, _)| *at).min()
    }
}

// The run stages of a job in the runner's order, for every way in which they can end.

/// Default of `RUNNER_AFTER_SCRIPT_TIMEOUT`.
const AFTER_SCRIPT_TIMEOUT: Duration = Duration::from_mins(5);

/// Runs every stage after `prepare_script`.
fn execute_stages(attempt: &Attempt, scope: &Scope) -> Result<(), Failure> {
    let stage = |name: &str| attempt.stage(name, scope).unwrap_or(Ok(()));
    match inputs(attempt, scope) {
        // No further call is made, not even the stage that removes the file variables.
        Err(failure @ Failure::Ended(Cause::SourcesTimeout)) => return Err(failure),
        Err(failure) => {
            for name in ["archive_cache_on_failure", "upload_artifacts_on_failure", "cleanup_file_variables"]
            {
                drop(stage(name));
            }
            return Err(failure);
        }
        Ok(()) => {}
    }
    let shared = &attempt.build.shared;
    shared.emit(Event::Phase(Phase::Script));
    let script = steps(attempt, scope);
    shared.emit(Event::Phase(Phase::AfterScript));
    attempt.build.lock_places().job_status = status_after(&script, scope).into();
    let after = after_script(attempt, scope);
    let result = script.and(after);
    let archived = stage(if result.is_ok() { "archive_cache" } else { "archive_cache_on_failure" });
    // A failed cache stage does not select the uploads of a failed job.
    let upload = if result.is_ok() { "upload_artifacts_on_success" } else { "upload_artifacts_on_failure" };
    let uploaded = stage(upload);
    // Its failure is only logged.
    drop(stage("cleanup_file_variables"));
    result.and(archived).and(uploaded)
}

/// Sources, caches and artifacts, each as often as the job requires.
fn inputs(attempt: &Attempt, scope: &Scope) -> Result<(), Failure> {
    let limit = attempt.build.runner.get_sources_timeout;
    retried(attempt, &scope.within(limit, Cause::SourcesTimeout), "get_sources", "GET_SOURCES_ATTEMPTS")?;
    retried(attempt, scope, "restore_cache", "RESTORE_CACHE_ATTEMPTS")?;
    retried(attempt, scope, "download_artifacts", "ARTIFACT_DOWNLOAD_ATTEMPTS")
}

/// Retries on any error; the waits double and ignore a cancellation.
fn retried(attempt: &Attempt, scope: &Scope, name: &str, variable: &str) -> Result<(), Failure> {
    let configured = attempt.build.variable(variable).and_then(|text| text.parse().ok());
    let attempts: u32 = configured.filter(|count| (1..=10).contains(count)).unwrap_or(1);
    let pace = attempt.build.runner.pace;
    let mut wait = pace.stage_retry;
    let mut result = Ok(());
    for number in 1..=attempts {
        if number > 1 {
            attempt.build.shared.pause(wait);
            wait = (wait * 2).min(pace.stage_retry_cap);
        }
        result = Ok(());
        if number == 2 && name == "get_sources" {
            result = attempt.stage("clear_worktree", scope).unwrap_or(Ok(()));
        }
        // A worktree that could not be cleared has used this attempt up.
        result = result.and_then(|()| attempt.stage(name, scope).unwrap_or(Ok(())));
        match result {
            Ok(()) | Err(Failure::Gone | Failure::Ended(Cause::SourcesTimeout)) => return result,
            Err(_) => {}
        }
    }
    result
}

/// The script and the further steps; the first failure ends them.
fn steps(attempt: &Attempt, scope: &Scope) -> Result<(), Failure> {
    let limit = attempt.build.variable("RUNNER_SCRIPT_TIMEOUT").and_then(|text| go_duration(&text));
    let scope = scope.script().within(limit, Cause::ScriptTimeout);
    let note = "WARNING: Starting with version 17.0 the 'build_script' stage will be replaced with 'step_script': \
                https://gitlab.com/groups/gitlab-org/-/epics/6112";
    attempt.build.shared.emit(Event::Says(note.into()));
    attempt.stage("build_script", &scope).unwrap_or(Ok(()))?;
    for (name, _) in &attempt.build.job.steps {
        attempt.stage(&format!("step_{}", name.to_lowercase()), &scope).unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// `CI_JOB_STATUS` of all later calls. A job that was ended as a whole counts as failed, as in the recordings.
fn status_after(script: &Result<(), Failure>, scope: &Scope) -> &'static str {
    match (script, scope.ended()) {
        (Ok(()), None) => "success",
        (Err(Failure::Ended(Cause::Canceled)), None) => "canceled",
        (Err(Failure::Ended(_)), None) => "timedout",
        _ => "failed",
    }
}

/// Runs after the script in any case, with a time limit of its own; its failure counts only if the job requires that.
fn after_script(attempt: &Attempt, scope: &Scope) -> Result<(), Failure> {
    let configured =
        attempt.build.variable("RUNNER_AFTER_SCRIPT_TIMEOUT").and_then(|text| go_duration(&text));
    let limit = scope.within(Some(configured.unwrap_or(AFTER_SCRIPT_TIMEOUT)), Cause::AfterScriptTimeout);
    let result = attempt.stage("after_script", &limit).unwrap_or(Ok(()));
    match attempt.build.variable("AFTER_SCRIPT_IGNORE_ERRORS").as_deref() {
        Some("false" | "0") => result,
        _ => Ok(()),
    }
}
