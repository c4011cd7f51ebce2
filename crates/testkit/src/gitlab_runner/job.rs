//! A job as GitLab would send it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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
    /// Further steps, called as `step_<name>`.
    pub steps: Vec<(String, Vec<String>)>,
    pub after_script: Vec<String>,
    pub image: Option<String>,
    /// More fields of `image`, in the format of the job response.
    pub image_options: Value,
    /// In the format of the job response.
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
        let (kind, format) = ("archive", "zip");
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
