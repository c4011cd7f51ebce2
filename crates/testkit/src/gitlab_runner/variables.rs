//! The variables of a job: those that GitLab sends, and those that the runner makes of them for `CUSTOM_ENV_*` and the
//! scripts.

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde_json::{Map, Value, json};

use super::build::{Build, Places};
use super::expand::expand;
use super::feature_flags;
use super::job::{Job, Variable};
use super::runner::Runner;

/// GitLab's predefined variables, then the job's own: the list in the job response.
pub(super) fn from_gitlab(runner: &Runner, job: &Job) -> Vec<Variable> {
    let url = &runner.url;
    let host = url.split("://").last().unwrap_or(url);
    let (namespace, project) = job.project_path.rsplit_once('/').unwrap_or(("", &job.project_path));
    let id = job.id.to_string();
    let slug = |text: &str| text.to_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let sha = "0".repeat(40);
    let public = [
        ("CI", "true".to_owned()),
        ("GITLAB_CI", "true".into()),
        ("CI_SERVER", "yes".into()),
        ("CI_SERVER_NAME", "GitLab".into()),
        ("CI_SERVER_URL", url.clone()),
        ("CI_SERVER_HOST", host.split(':').next().unwrap_or(host).into()),
        ("CI_SERVER_VERSION", "19.4.0".into()),
        ("CI_API_V4_URL", format!("{url}/api/v4")),
        ("CI_PIPELINE_ID", id.clone()),
        ("CI_PIPELINE_URL", format!("{url}/{}/-/pipelines/{id}", job.project_path)),
        ("CI_JOB_ID", id.clone()),
        ("CI_JOB_URL", format!("{url}/{}/-/jobs/{id}", job.project_path)),
        ("CI_JOB_NAME", job.name.clone()),
        ("CI_JOB_STAGE", job.stage.clone()),
        ("CI_JOB_STARTED_AT", "2026-11-21T00:41:10Z".into()),
        ("CI_JOB_TIMEOUT", timeout_seconds(job).to_string()),
        ("CI_PROJECT_ID", job.project_id.to_string()),
        ("CI_PROJECT_NAME", project.into()),
        ("CI_PROJECT_PATH", job.project_path.clone()),
        ("CI_PROJECT_PATH_SLUG", slug(&job.project_path)),
        ("CI_PROJECT_NAMESPACE", namespace.into()),
        ("CI_PROJECT_URL", format!("{url}/{}", job.project_path)),
        ("CI_DEFAULT_BRANCH", "main".into()),
        ("CI_COMMIT_SHA", sha.clone()),
        ("CI_COMMIT_SHORT_SHA", sha[..8].into()),
        ("CI_COMMIT_REF_NAME", job.git_ref.clone()),
        ("CI_COMMIT_BRANCH", job.git_ref.clone()),
        ("CI_COMMIT_REF_SLUG", slug(&job.git_ref)),
        ("CI_COMMIT_TITLE", "a commit with spaces & \"quotes\"".into()),
        ("CI_COMMIT_MESSAGE", "line one\nline two $HOME".into()),
        ("CI_RUNNER_ID", "1".into()),
        ("CI_RUNNER_DESCRIPTION", runner.description.clone()),
        ("GITLAB_USER_LOGIN", "lab".into()),
        ("GITLAB_USER_NAME", "L. Äb".into()),
    ];
    let mut variables: Vec<Variable> =
        public.iter().map(|(key, value)| Variable::public(key, value)).collect();
    let strategy = if job.repository.is_some() { "fetch" } else { "none" };
    variables.push(Variable::public("GIT_STRATEGY", strategy));
    let secret =
        |key, value: &str, masked| Variable { public: false, masked, ..Variable::public(key, value) };
    variables.push(secret("CI_JOB_TOKEN", &job.token, true));
    variables.push(secret("CI_REPOSITORY_URL", &clone_url(runner, job), false));
    variables.push(secret("CI_BUILD_TOKEN", &job.token, true));
    variables.extend(job.variables.iter().cloned());
    variables
}

/// The project's clone URL; `get_sources` uses the job's local repository instead.
pub(super) fn clone_url(runner: &Runner, job: &Job) -> String {
    let (scheme, host) = runner.url.split_once("://").unwrap_or(("http", &runner.url));
    let path = job.clone_path.as_ref().unwrap_or(&job.project_path);
    format!("{scheme}://gitlab-ci-token:{}@{host}/{path}.git", job.token)
}

/// GitLab counts whole seconds.
pub(super) fn timeout_seconds(job: &Job) -> u64 {
    job.timeout.as_secs() + u64::from(job.timeout.subsec_nanos() > 0)
}

/// All variables of the job in the order of the runner, expanded; file variables keep their content.
pub(super) fn all(build: &Build, places: &Places) -> Vec<Variable> {
    let (runner, job) = (&build.runner, &build.job);
    let flags = feature_flags::ON.map(|key| (key, "true")).into_iter();
    let flags = flags.chain(feature_flags::OFF.map(|key| (key, "false")));
    let mut variables: Vec<Variable> = flags.map(|(key, value)| Variable::public(key, value)).collect();
    let mut add = |key: &str, value: &str| variables.push(Variable::public(key, value));
    if let Some(image) = &job.image {
        add("CI_JOB_IMAGE", image);
    }
    add("CI_RUNNER_SHORT_TOKEN", &runner.short_token);
    for (key, value) in &runner.variables {
        variables.push(Variable::public(key, value));
    }
    let mut add = |key: &str, value: &str| variables.push(Variable::public(key, value));
    add("CI_BUILDS_DIR", &places.builds_dir);
    add("CI_PROJECT_DIR", &places.project_dir);
    add("CI_CONCURRENT_ID", &build.slot.concurrent_id.to_string());
    add("CI_CONCURRENT_PROJECT_ID", &build.slot.concurrent_project_id.to_string());
    add("CI_SERVER", "yes");
    add("CI_JOB_STATUS", &places.job_status);
    add("CI_JOB_TIMEOUT", &timeout_seconds(job).to_string());
    variables.extend(from_gitlab(runner, job));
    let mut add = |key: &str, value: &str| variables.push(Variable::public(key, value));
    add("CI_SHARED_ENVIRONMENT", "true");
    add("CI_RUNNER_VERSION", "19.4.0-lab");
    add("CI_RUNNER_REVISION", "d79f3e7b");
    add("CI_RUNNER_EXECUTABLE_ARCH", "linux/amd64");
    add("RUNNER_TEMP_PROJECT_DIR", &places.temp_project_dir());
    expand_all(&variables, places)
}

fn expand_all(variables: &[Variable], places: &Places) -> Vec<Variable> {
    let by_key: BTreeMap<&str, &Variable> = variables.iter().map(|var| (var.key.as_str(), var)).collect();
    let get = |name: &str| {
        by_key.get(name).map(|var| {
            let path = || format!("{}/{name}", places.temp_project_dir()).into();
            if var.file { path() } else { var.value.clone() }
        })
    };
    let value = |var: &Variable| if var.raw { var.value.clone() } else { expand(&var.value, &get) };
    variables.iter().map(|var| Variable { value: value(var), ..var.clone() }).collect()
}

/// `CUSTOM_ENV_*` without the prefix, `CI_JOB_SERVICES` last.
pub(super) fn custom_env(build: &Build, places: &Places) -> Vec<(String, OsString)> {
    let mut variables: Vec<(String, OsString)> =
        all(build, places).into_iter().map(|variable| (variable.key, variable.value)).collect();
    variables.push(("CI_JOB_SERVICES".into(), services(&build.job).into()));
    variables
}

/// The services as the driver gets them: an empty text, or a JSON array with Go's escapes.
fn services(job: &Job) -> String {
    if job.services.is_empty() {
        return String::new();
    }
    let texts: Vec<String> = job.services.iter().map(service).collect();
    let json = format!("[{}]", texts.join(","));
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Written by hand for the order of its keys, which is Go's.
fn service(service: &Value) -> String {
    let field = |key: &str, default: Value| service.get(key).cloned().unwrap_or(default);
    let alias = field("alias", json!(""));
    let first_alias = alias.as_str().and_then(|all| all.split([' ', ',']).next()).unwrap_or_default();
    let mut text = format!(
        "{{\"name\":{},\"alias\":{},\"entrypoint\":{},\"command\":{}",
        field("name", json!("")),
        json!(first_alias),
        field("entrypoint", Value::Null),
        field("command", Value::Null)
    );
    let variables = field("variables", json!([]));
    let pairs: Map<String, Value> = variables
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pair| Some((pair.get("key")?.as_str()?.to_owned(), pair.get("value")?.clone())))
        .collect();
    if !pairs.is_empty() {
        text += ",\"variables\":";
        text += &Value::Object(pairs).to_string();
    }
    text + "}"
}
