//! A whole job: prepare cycles, the run phase with its limit, cleanup, and the reported result.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::attempt::Attempt;
use super::build::Build;
use super::events::{Event, State};
use super::exit_code::Failure;
use super::record::{Call, Outcome};
use super::scope::{Cause, Scope};
use super::stages;

/// How often the runner tries to prepare.
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
        let result = stages::execute(&attempt, &scope);
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

/// What ends the wait for the stages.
enum Seen {
    Over(Result<(), Failure>),
    Ended(Cause),
}
