//! The results of a played job: its outcome, its log, and a record of every call.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    Config,
    Prepare,
    Run,
    Cleanup,
}

impl Call {
    pub fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Prepare => "prepare",
            Self::Run => "run",
            Self::Cleanup => "cleanup",
        }
    }
}

/// The exit of the driver's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    NotStarted(String),
}

/// A signal that the runner sent to a call's process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    pub signal: i32,
    pub at: Duration,
    /// False if no process of the group was left.
    pub delivered: bool,
}

/// The result for GitLab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Success,
    ScriptFailure {
        exit_code: i64,
    },
    RunnerSystemFailure,
    RunnerConfigurationError,
    JobCanceled,
    JobExecutionTimeout,
    /// `unknown_failure`, or `runner_interrupted` if the server supports it.
    RunnerInterrupted,
    /// The runner was gone before it could report.
    None,
}

/// One call of the driver; times count from the start of the job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallRecord {
    pub call: Call,
    pub stage: Option<String>,
    /// The arguments after the configured ones: the script's path and the stage, or none.
    pub argv_tail: Vec<String>,
    pub attempt: usize,
    pub tmpdir: PathBuf,
    pub pid: Option<i32>,
    pub began: Duration,
    /// The moment when the process itself ended.
    pub exited: Option<Duration>,
    /// The moment when its pipes were closed as well: only then does the runner go on.
    pub ended: Option<Duration>,
    pub exit: Option<Exit>,
    pub signals: Vec<Sent>,
    /// True if the runner abandoned the call after both kill timeouts.
    pub abandoned: bool,
    pub ci_job_status: String,
    pub ci_project_dir: String,
    /// The content that an earlier call of the attempt left in `BUILD_EXIT_CODE_FILE`.
    pub stale_exit_code: Option<Vec<u8>>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl CallRecord {
    /// The call and the end of what it has written, for messages of failed tests.
    pub fn describe(&self) -> String {
        let written = [self.stdout.as_slice(), &self.stderr].concat();
        story(std::slice::from_ref(self), &written)
    }

    /// `config`, `prepare`, `cleanup`, or the name of the stage.
    pub fn name(&self) -> &str {
        self.stage.as_deref().unwrap_or(self.call.name())
    }

    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn exit_code(&self) -> Option<i32> {
        match self.exit {
            Some(Exit::Code(code)) => Some(code),
            _ => None,
        }
    }

    /// The time from the start of the call to the closing of its pipes.
    pub fn took(&self) -> Option<Duration> {
        self.ended.map(|ended| ended.saturating_sub(self.began))
    }
}

#[derive(Debug, Clone)]
pub struct JobResult {
    pub outcome: Outcome,
    /// The job log: the driver's output in order of arrival, between the runner's own lines.
    pub log: Vec<u8>,
    /// The output of `cleanup`, and the warnings about it.
    pub runner_log: Vec<u8>,
    pub calls: Vec<CallRecord>,
    /// The time until the final status would have been sent.
    pub took: Duration,
}

impl JobResult {
    /// Names of all calls in order: `config`, `prepare`, `prepare_script`, …, `cleanup`.
    pub fn call_names(&self) -> Vec<&str> {
        self.calls.iter().map(CallRecord::name).collect()
    }

    /// The last call of this name; fails the test if there is none.
    #[track_caller]
    pub fn call(&self, name: &str) -> &CallRecord {
        let found = self.calls.iter().rev().find(|call| call.name() == name);
        found.unwrap_or_else(|| panic!("no call `{name}` in:\n{}", self.describe()))
    }

    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&self.log).into_owned()
    }

    pub fn runner_log_text(&self) -> String {
        String::from_utf8_lossy(&self.runner_log).into_owned()
    }

    /// Fails the test with all events if the job did not end like this.
    #[track_caller]
    pub fn expect_outcome(&self, outcome: &Outcome) -> &Self {
        assert_eq!(&self.outcome, outcome, "\n{}", self.describe());
        self
    }

    pub fn describe(&self) -> String {
        format!("outcome {:?} after {:?}\n{}", self.outcome, self.took, story(&self.calls, &self.log))
    }
}

/// The calls and the end of the log, for messages of failed tests.
pub(super) fn story(calls: &[CallRecord], log: &[u8]) -> String {
    let mut text = String::new();
    for call in calls {
        let line = format!(
            "  {:9.3?} {} (attempt {}, pid {:?}): {:?}, pipes closed at {:?}, signals {:?}",
            call.began,
            call.name(),
            call.attempt,
            call.pid,
            call.exit,
            call.ended,
            call.signals
        );
        writeln!(text, "{line}").expect("a String takes every line");
    }
    let tail = String::from_utf8_lossy(log);
    let skip = tail.lines().count().saturating_sub(40);
    for line in tail.lines().skip(skip) {
        writeln!(text, "  | {line}").expect("a String takes every line");
    }
    text
}
