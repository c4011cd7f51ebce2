//! A job as GitLab would send it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::runner::Runner;
use super::variables::{self, expand};

/// A variable of the job; `raw` ones are not expanded, `file` ones reach the script as the path of a file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Variable {
    pub key: String,
    pub value: OsString,
    pub public: bool,
    pub file: bool,
    pub masked: bool,
    pub raw: bool,
}

impl Variable {
    pub fn public(key: &str, value: impl AsRef<OsStr>) -> Self {
        Self { key: key.into(), value: value.as_ref().into(), public: true, ..Self::default() }
    }
}

/// Replaces a correct `JOB_RESPONSE_FILE`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum RawResponse {
    Bytes(Vec<u8>),
    Missing,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub token: String,
    pub name: String,
    pub stage: String,
    pub project_id: u64,
    /// `group/project`.
    pub project_path: String,
    /// Path of the clone URL, from which the project directory follows. Default: the project's path.
    pub clone_path: Option<String>,
    pub namespace_id: u64,
    pub root_namespace_id: u64,
    pub git_ref: String,
    pub protected: Option<bool>,
    /// Overrides of GitLab's own variables, then the project's own; later ones win.
    pub variables: Vec<Variable>,
    pub script: Vec<String>,
    /// Further steps of the job, called as `step_<name>`.
    pub steps: Vec<(String, Vec<String>)>,
    pub after_script: Vec<String>,
    pub image: Option<String>,
    /// Further fields of `image`, in the format of the job response.
    pub image_options: Value,
    /// The services, in the format of the job response.
    pub services: Vec<Value>,
    /// Registry, user and password of each further entry in `credentials`.
    pub credentials: Vec<[String; 3]>,
    pub artifacts: Vec<Value>,
    pub cache: Vec<Value>,
    /// Jobs whose artifacts are downloaded.
    pub dependencies: Vec<Value>,
    /// The repository that `get_sources` clones; none means that it only makes the directory.
    pub repository: Option<PathBuf>,
    pub timeout: Duration,
    pub raw_response: Option<RawResponse>,
}

impl Job {
    pub fn new(id: u64) -> Self {
        Self {
            id,
            token: format!("glcbt-lab-job-token-{id}"),
            name: "lab-job".into(),
            stage: "test".into(),
            project_id: 1,
            project_path: "g/demo".into(),
            clone_path: None,
            namespace_id: 0,
            root_namespace_id: 0,
            git_ref: "main".into(),
            protected: None,
            variables: Vec::new(),
            script: vec!["true".into()],
            steps: Vec::new(),
            after_script: Vec::new(),
            image: None,
            image_options: json!({}),
            services: Vec::new(),
            credentials: Vec::new(),
            artifacts: Vec::new(),
            cache: Vec::new(),
            dependencies: Vec::new(),
            repository: None,
            timeout: Duration::from_hours(1),
            raw_response: None,
        }
    }

    #[must_use]
    pub fn project(mut self, id: u64, path: &str) -> Self {
        self.project_id = id;
        self.project_path = path.into();
        self
    }

    #[must_use]
    pub fn namespace(mut self, id: u64, root: u64) -> Self {
        self.namespace_id = id;
        self.root_namespace_id = root;
        self
    }

    #[must_use]
    pub fn script<S: AsRef<str>>(mut self, lines: impl IntoIterator<Item = S>) -> Self {
        self.script = lines.into_iter().map(|line| line.as_ref().into()).collect();
        self
    }

    #[must_use]
    pub fn after_script<S: AsRef<str>>(mut self, lines: impl IntoIterator<Item = S>) -> Self {
        self.after_script = lines.into_iter().map(|line| line.as_ref().into()).collect();
        self
    }

    /// A further server-side step, such as `release`.
    #[must_use]
    pub fn step<S: AsRef<str>>(mut self, name: &str, lines: impl IntoIterator<Item = S>) -> Self {
        self.steps.push((name.into(), lines.into_iter().map(|line| line.as_ref().into()).collect()));
        self
    }

    #[must_use]
    pub fn variable(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push(Variable::public(key, value));
        self
    }

    #[must_use]
    pub fn masked(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push(Variable { public: false, masked: true, ..Variable::public(key, value) });
        self
    }

    #[must_use]
    pub fn file(mut self, key: &str, content: impl AsRef<OsStr>) -> Self {
        self.variables.push(Variable { file: true, ..Variable::public(key, content) });
        self
    }

    #[must_use]
    pub fn raw(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push(Variable { raw: true, ..Variable::public(key, value) });
        self
    }

    #[must_use]
    pub fn image(mut self, name: &str) -> Self {
        self.image = Some(name.into());
        self
    }

    /// A further field of `image`, such as `entrypoint`.
    #[must_use]
    pub fn image_option(mut self, key: &str, value: Value) -> Self {
        self.image_options[key] = value;
        self
    }

    /// A service, as the job response has it.
    #[must_use]
    pub fn service(mut self, service: Value) -> Self {
        self.services.push(service);
        self
    }

    /// Registry credentials that GitLab gives to the job.
    #[must_use]
    pub fn credential(mut self, registry: &str, user: &str, password: &str) -> Self {
        self.credentials.push([registry, user, password].map(str::to_owned));
        self
    }

    /// Clones this repository in `get_sources`, according to `GIT_STRATEGY` (clone, fetch, none, empty).
    #[must_use]
    pub fn repository(mut self, path: &Path) -> Self {
        self.repository = Some(path.into());
        self
    }

    /// A cache entry: adds `restore_cache` and, depending on `when`, `archive_cache` or `archive_cache_on_failure`.
    #[must_use]
    pub fn cache(mut self, path: &str, when: &str) -> Self {
        let entry =
            json!({"key": "k", "paths": [path], "policy": "pull-push", "untracked": false, "when": when});
        self.cache.push(entry);
        self
    }

    /// An artifact: adds `upload_artifacts_on_success` or `upload_artifacts_on_failure`, depending on `when`.
    #[must_use]
    pub fn artifact(mut self, path: &str, when: &str) -> Self {
        let kind = "archive";
        let format = "zip";
        self.artifacts.push(json!({
            "name": "a", "paths": [path], "when": when, "artifact_type": kind, "artifact_format": format,
        }));
        self
    }

    /// A job whose artifacts are downloaded: adds `download_artifacts`.
    #[must_use]
    pub fn dependency(mut self, id: u64, name: &str) -> Self {
        let file = json!({"filename": "artifacts.zip", "size": 1});
        self.dependencies.push(json!({"id": id, "token": "t", "name": name, "artifacts_file": file}));
        self
    }

    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    #[must_use]
    pub fn script_timeout(self, timeout: Duration) -> Self {
        self.variable("RUNNER_SCRIPT_TIMEOUT", format!("{}ms", timeout.as_millis()))
    }

    #[must_use]
    pub fn after_script_timeout(self, timeout: Duration) -> Self {
        self.variable("RUNNER_AFTER_SCRIPT_TIMEOUT", format!("{}ms", timeout.as_millis()))
    }

    #[must_use]
    pub fn get_sources_attempts(self, attempts: u32) -> Self {
        self.variable("GET_SOURCES_ATTEMPTS", attempts.to_string())
    }

    #[must_use]
    pub fn raw_response(mut self, response: RawResponse) -> Self {
        self.raw_response = Some(response);
        self
    }
}

// `JOB_RESPONSE_FILE`: the whole job as the runner writes it.

pub(super) fn response(runner: &Runner, job: &Job) -> Value {
    let seconds = variables::timeout_seconds(job);
    let (_, project) = job.project_path.rsplit_once('/').unwrap_or(("", &job.project_path));
    let sha = "0".repeat(40);
    json!({
        "id": job.id,
        "token": job.token,
        "allow_git_fetch": true,
        "job_info": {
            "name": job.name, "stage": job.stage, "pipeline_id": job.id,
            "project_id": job.project_id, "project_name": project, "project_full_path": job.project_path,
            "namespace_id": job.namespace_id, "root_namespace_id": job.root_namespace_id,
            "organization_id": 0, "instance_id": "", "instance_uuid": "", "user_id": 0,
            "time_in_queue_seconds": 0, "project_jobs_running_on_instance_runners_count": "0",
            "queue_size": 0, "queue_depth": 0,
        },
        "git_info": {
            "repo_url": variables::clone_url(runner, job), "repo_object_format": "sha1", "ref": job.git_ref,
            "sha": sha, "before_sha": sha, "ref_type": "branch",
            "refspecs": [format!("+refs/heads/{0}:refs/remotes/origin/{0}", job.git_ref)],
            "depth": 20, "protected": job.protected,
        },
        "runner_info": {"uuid": runner.description, "timeout": seconds},
        "inputs": {},
        "variables": variables::from_gitlab(runner, job).iter().map(variable).collect::<Vec<_>>(),
        "steps": steps(job, seconds),
        "image": image(runner, job),
        "services": job.services.iter().map(service).collect::<Vec<_>>(),
        "artifacts": job.artifacts,
        "cache": job.cache,
        "credentials": credentials(job),
        "dependencies": job.dependencies,
        "features": features(),
        "policy_options": {"execution_policy_job": false, "policy_name": ""},
        "suspend_options": {},
    })
}

fn variable(variable: &Variable) -> Value {
    let Variable { key, value, public, file, masked, raw } = variable;
    let value = value.to_string_lossy();
    json!({"key": key, "value": value, "public": public, "file": file, "masked": masked, "raw": raw})
}

fn steps(job: &Job, seconds: u64) -> Vec<Value> {
    let step = |name: &str, script: &[String], timeout: u64, when: &str, allow_failure: bool| {
        json!({
            "name": name, "script": script, "timeout": timeout, "when": when, "allow_failure": allow_failure,
        })
    };
    let mut steps = vec![step("script", &job.script, seconds, "on_success", false)];
    steps.extend(job.steps.iter().map(|(name, script)| step(name, script, seconds, "on_success", false)));
    if !job.after_script.is_empty() {
        steps.push(step("after_script", &job.after_script, seconds, "always", true));
    }
    steps
}

/// The image in the job response. Variables in its name are expanded; the other fields are as GitLab sent them.
fn image(runner: &Runner, job: &Job) -> Value {
    let variables = variables::from_gitlab(runner, job);
    let get = |key: &str| {
        let found = variables.iter().rev().find(|variable| variable.key == key);
        found.map(|variable| variable.value.clone())
    };
    let name = expand(job.image.as_deref().unwrap_or_default().as_ref(), &get);
    let mut image = json!({"name": name.to_string_lossy(), "executor_opts": executor_opts()});
    for (key, value) in job.image_options.as_object().into_iter().flatten() {
        image[key] = value.clone();
    }
    image
}

/// The registry credentials of a job: those of the project's own registry come first.
fn credentials(job: &Job) -> Value {
    let own = ["127.0.0.1:5000".to_owned(), "gitlab-ci-token".to_owned(), job.token.clone()];
    let all = std::iter::once(&own).chain(&job.credentials);
    let entry = |[url, username, password]: &[String; 3]| json!({"type": "registry", "url": url, "username": username, "password": password});
    all.map(entry).collect()
}

fn executor_opts() -> Value {
    json!({"docker": {"platform": "", "user": ""}, "kubernetes": {"user": ""}})
}

/// Adds what the runner adds when it writes a service.
fn service(service: &Value) -> Value {
    let mut service = service.clone();
    if service.get("executor_opts").is_none() {
        service["executor_opts"] = executor_opts();
    }
    for variable in service.get_mut("variables").and_then(Value::as_array_mut).into_iter().flatten() {
        for flag in ["public", "file", "masked", "raw"] {
            if variable.get(flag).is_none() {
                variable[flag] = json!(false);
            }
        }
    }
    service
}

fn features() -> Value {
    json!({
        "trace_sections": true,
        "token_mask_prefixes": ["glpat-", "glcbt-"],
        "failure_reasons": [
            "unknown_failure", "script_failure", "api_failure", "stuck_or_timeout_failure",
            "runner_system_failure", "missing_dependency_failure", "runner_unsupported", "stale_schedule",
            "job_execution_timeout", "archived_failure", "unmet_prerequisites", "scheduler_failure",
            "data_integrity_failure", "image_pull_failure", "configuration_error", "job_canceled",
        ],
        "tracing": null,
    })
}
