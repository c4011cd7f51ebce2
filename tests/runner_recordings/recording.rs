//! A recording: what the job was, what the real runner did, and how both sides are brought to one form.

use std::path::{Path, PathBuf};

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::gitlab_runner::repository::repository;
use serde_json::Value;

use crate::driver::{Lab, Sighting};

pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/runner-19.4")
}

#[derive(Debug)]
pub struct Recording {
    pub value: Value,
}

/// A call in the form in which recorded and played ones are compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub job: u64,
    pub call: String,
    pub argv_tail: Vec<String>,
    pub attempt: usize,
    pub job_env: Option<String>,
    pub status: String,
    pub project_dir: String,
    pub concurrent: String,
    pub stale: Option<String>,
    pub signals: Vec<String>,
    pub exit: Option<i64>,
}

/// The moments at which a call began and ended, in seconds; none where it was killed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub began: f64,
    pub ended: Option<f64>,
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key)?.as_str().map(str::to_owned)
}

fn lines(value: &Value, key: &str) -> Vec<String> {
    let lines = value.get(key).and_then(Value::as_array).into_iter().flatten();
    lines.filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Recording {
    pub fn read(scenario: &str) -> Self {
        let file = directory().join("calls").join(format!("{scenario}.json"));
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self { value: serde_json::from_slice(&bytes).expect("a recording is JSON") }
    }

    /// The ids of its jobs, in the order in which they were taken.
    pub fn job_ids(&self) -> Vec<u64> {
        let calls = self.value["calls"].as_array().expect("a recording has calls");
        let mut ids: Vec<u64> = calls.iter().filter_map(|call| call["job"].as_u64()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The job as it was, with the lab's repository in the place of the recorded one.
    pub fn job(&self, id: u64, lab: &Lab) -> Job {
        let said = &self.value["job"];
        let mut job = Job::new(id).script(lines(said, "script")).after_script(lines(said, "after_script"));
        job.clone_path = Some("git/demo".into());
        for (list, masked) in [("variables", false), ("masked", true)] {
            for (key, value) in said.get(list).and_then(Value::as_object).into_iter().flatten() {
                let value = value.as_str().expect("a variable is text");
                job = if masked { job.masked(key, value) } else { job.variable(key, value) };
            }
        }
        job.image = text(said, "image");
        let entries = |key: &str| {
            let list = said.get("override").and_then(|lists| lists.get(key)).and_then(Value::as_array);
            list.cloned().unwrap_or_default()
        };
        (job.services, job.artifacts, job.cache) =
            (entries("services"), entries("artifacts"), entries("cache"));
        if text(said, "git").as_deref() == Some("fetch") {
            job = job.repository(&repository(lab.path()));
        }
        job
    }

    /// The reported outcomes, in our words; `running` is what GitLab believes of a runner that is gone.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let outcomes = self.value["outcome"].as_array().expect("a recording has outcomes");
        let ours = outcomes.iter().map(|outcome| {
            let exit_code = outcome.get("exit_code").and_then(Value::as_i64).unwrap_or_default();
            match (outcome["state_reported"].as_str(), outcome["failure_reason"].as_str()) {
                (Some("success"), _) => Outcome::Success,
                (Some("running"), _) => Outcome::None,
                (_, Some("script_failure")) => Outcome::ScriptFailure { exit_code },
                (_, Some("runner_system_failure")) => Outcome::RunnerSystemFailure,
                (_, Some("job_canceled")) => Outcome::JobCanceled,
                (_, Some("job_execution_timeout")) => Outcome::JobExecutionTimeout,
                (_, Some("unknown_failure")) => Outcome::RunnerInterrupted,
                other => panic!("an outcome nobody translated: {other:?}"),
            }
        });
        ours.collect()
    }

    /// The calls of the recording; of one that wrote a record at its start and another at its end, only the latter.
    pub fn seen(&self) -> Vec<(Seen, Span)> {
        let calls = self.value["calls"].as_array().expect("a recording has calls");
        let again = |at: usize| {
            let next = calls.get(at + 1).filter(|next| next["stage"] == calls[at]["stage"]);
            next.is_some_and(|next| next["t"] == calls[at]["t"] && next["job"] == calls[at]["job"])
        };
        let calls = calls.iter().enumerate();
        let calls = calls.filter(|(at, call)| call.get("killed").is_none() || !again(*at));
        calls.map(|(_, call)| (recorded(call), span(call))).collect()
    }
}

fn recorded(call: &Value) -> Seen {
    let attempt = text(call, "tmpdir").and_then(|name| name.strip_prefix("attempt ")?.parse().ok());
    let signals = call["signals"].as_array().into_iter().flatten();
    Seen {
        job: call["job"].as_u64().expect("a call has a job"),
        call: text(call, "call").expect("a call has a name"),
        argv_tail: lines(call, "argv_tail"),
        attempt: attempt.expect("a call belongs to an attempt"),
        job_env: text(call, "job_env_seen"),
        status: text(call, "ci_job_status").unwrap_or_default(),
        project_dir: text(call, "ci_project_dir").unwrap_or_default(),
        concurrent: text(call, "ci_concurrent_project_id").unwrap_or_default(),
        stale: text(call, "stale_exit_code_file"),
        signals: signals.filter_map(|signal| text(signal, "signal")).collect(),
        exit: call["exit"].as_i64(),
    }
}

fn span(call: &Value) -> Span {
    let began = call["t"].as_f64().expect("a call has a time");
    Span { began, ended: call["end"].as_f64().filter(|_| !call["exit"].is_null()) }
}

/// The driver's own sightings in the form of the recordings.
pub fn played(lab: &Lab) -> Vec<(Seen, Span)> {
    let sightings = lab.sightings();
    let mut attempts: Vec<(u64, String)> = Vec::new();
    let mut seen = Vec::new();
    let start = sightings.first().map_or(0.0, |first| first.began);
    for sighting in &sightings {
        let job = sighting.fact("job").parse().expect("a job's id is a number");
        let own = (job, sighting.fact("tmpdir").to_owned());
        if !attempts.contains(&own) {
            attempts.push(own.clone());
        }
        let of_job = attempts.iter().filter(|(id, _)| *id == job);
        let attempt = of_job.enumerate().find(|(_, other)| **other == own).map_or(0, |(at, _)| at + 1);
        let ended = sighting.get("end").and_then(|end| end.parse::<f64>().ok());
        let span = Span { began: sighting.began - start, ended: ended.map(|end| end - start) };
        seen.push((from_sighting(sighting, lab, job, attempt), span));
    }
    seen
}

fn from_sighting(sighting: &Sighting, lab: &Lab, job: u64, attempt: usize) -> Seen {
    let owned = |text: &str| text.to_owned();
    let own_dir = |text: &str| text.replace(&lab.path().display().to_string(), "/srv/lab");
    Seen {
        job,
        call: owned(sighting.fact("call")),
        argv_tail: sighting
            .all("arg")
            .into_iter()
            .map(|arg| plain_path(arg, sighting.fact("tmpdir")))
            .collect(),
        attempt,
        job_env: sighting.get("job_env").map(owned),
        status: owned(sighting.fact("status")),
        project_dir: own_dir(sighting.fact("project_dir")),
        concurrent: owned(sighting.fact("concurrent")),
        stale: sighting.get("stale").map(owned),
        signals: sighting.all("signal").into_iter().map(owned).collect(),
        exit: sighting.get("exit").and_then(|code| code.parse().ok()),
    }
}

/// `$TMPDIR/script0000/script`, as the recordings name the script.
fn plain_path(argument: &str, tmpdir: &str) -> String {
    let Some(rest) = argument.strip_prefix(tmpdir).and_then(|rest| rest.strip_prefix("/script")) else {
        return argument.to_owned();
    };
    let rest = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
    format!("$TMPDIR/script0000{rest}")
}
