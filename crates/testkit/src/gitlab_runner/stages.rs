//! The run stages of a job in the runner's order, for every way in which they can end.

use std::time::Duration;

use super::attempt::Attempt;
use super::events::{Event, Phase};
use super::exit_code::Failure;
use super::expand::go_duration;
use super::scope::{Cause, Scope};

/// Default of `RUNNER_AFTER_SCRIPT_TIMEOUT`.
const AFTER_SCRIPT_TIMEOUT: Duration = Duration::from_mins(5);

/// Everything after `prepare_script`.
pub(super) fn execute(attempt: &Attempt, scope: &Scope) -> Result<(), Failure> {
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
