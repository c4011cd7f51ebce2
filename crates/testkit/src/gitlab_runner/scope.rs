//! The reach of a cancellation or a timeout: the runner's nested contexts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::events::{Shared, State};
use super::record::Outcome;

/// Why a scope ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    Canceled,
    JobTimeout,
    PrepareTimeout,
    SourcesTimeout,
    ScriptTimeout,
    AfterScriptTimeout,
    Interrupted,
    /// Of one call; has no consequence but the signals.
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

    /// The same deadlines for the run stages, without those of the preparation.
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
