//! The variables of a job: those that GitLab sends, and those that the runner makes of them for `CUSTOM_ENV_*` and the
//! scripts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::attempt::{Build, Places};
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
    let runner = &build.runner;
    let job = &build.job;
    let flags = FEATURES_ON.map(|key| (key, "true")).into_iter();
    let flags = flags.chain(FEATURES_OFF.map(|key| (key, "false")));
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

// `$VAR` in the values of job variables, and Go's durations.

/// Replaces `$NAME` and `${NAME}`; unknown names become empty, `$$` a dollar.
pub(super) fn expand(value: &OsStr, get: &dyn Fn(&str) -> Option<OsString>) -> OsString {
    let mut rest = value.as_bytes();
    let mut expanded = Vec::new();
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        expanded.extend_from_slice(&rest[..at]);
        let (name, used) = name_after_dollar(&rest[at + 1..]);
        match name {
            Some(name) if name != "$" => expanded.extend(get(name).unwrap_or_default().into_vec()),
            _ => expanded.push(b'$'),
        }
        rest = &rest[at + 1 + used..];
    }
    expanded.extend_from_slice(rest);
    OsString::from_vec(expanded)
}

/// The name, and its length after the dollar in bytes.
fn name_after_dollar(rest: &[u8]) -> (Option<&str>, usize) {
    let text = |bytes| std::str::from_utf8(bytes).ok();
    match rest.first() {
        Some(b'$') => (Some("$"), 1),
        Some(b'{') => match rest.iter().position(|byte| *byte == b'}') {
            Some(end) => (text(&rest[1..end]), end + 1),
            None => (None, 0),
        },
        _ => {
            let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
            let length = rest.iter().take_while(is_name).count();
            (if length == 0 { None } else { text(&rest[..length]) }, length)
        }
    }
}

/// Reads `3s`, `1.5m`, `1h30m`, `250ms` as Go's `time.ParseDuration` does.
pub(super) fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let length = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let unit = match &after[..length] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += Duration::try_from_secs_f64(number * unit).ok()?;
        rest = &after[length..];
    }
    Some(total)
}

// The environment of a call: four environment_layers, where a later one wins.

/// Lowest to highest: the runner process's own, the protocol's, `job_env`, `CUSTOM_ENV_*`.
pub(super) fn environment_layers(
    of_runner: &[(OsString, OsString)],
    tmpdir: &Path,
    job_env: &[(String, String)],
    job_variables: &[(String, OsString)],
) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = of_runner.iter().cloned().collect();
    let mut set = |key: &OsStr, value: &OsStr| environment.insert(key.into(), value.into());
    set("TMPDIR".as_ref(), tmpdir.as_os_str());
    set("BUILD_FAILURE_EXIT_CODE".as_ref(), "1".as_ref());
    set("SYSTEM_FAILURE_EXIT_CODE".as_ref(), "2".as_ref());
    set("BUILD_EXIT_CODE_FILE".as_ref(), tmpdir.join("build_exit_code").as_os_str());
    set("JOB_RESPONSE_FILE".as_ref(), tmpdir.join("response.json").as_os_str());
    for (key, value) in job_env {
        set(key.as_ref(), value.as_ref());
    }
    for (key, value) in job_variables {
        set(format!("CUSTOM_ENV_{key}").as_ref(), value);
    }
    environment
}

// The feature flags of GitLab Runner 19.4 and their defaults: each is a variable of every job.

pub(super) const FEATURES_ON: [&str; 12] = [
    "FF_ENABLE_JOB_INPUTS_INTERPOLATION",
    "FF_MASK_ALL_DEFAULT_TOKENS",
    "FF_SECRET_RESOLVING_FAILS_IF_MISSING",
    "FF_TIMESTAMPS",
    "FF_USE_ADAPTIVE_REQUEST_CONCURRENCY",
    "FF_USE_DIRECT_DOWNLOAD",
    "FF_USE_DOCKER_AUTOSCALER_DIAL_STDIO",
    "FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY",
    "FF_USE_FASTZIP",
    "FF_USE_GITALY_CORRELATION_ID",
    "FF_USE_GIT_BUNDLE_URIS",
    "FF_USE_POD_ACTIVE_DEADLINE_SECONDS",
];

pub(super) const FEATURES_OFF: [&str; 40] = [
    "FF_CLEAN_UP_FAILED_CACHE_EXTRACT",
    "FF_CONCRETE",
    "FF_DISABLE_AUTOMATIC_TOKEN_ROTATION",
    "FF_DISABLE_POWERSHELL_STDIN",
    "FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR",
    "FF_DISABLE_UMASK_FOR_KUBERNETES_EXECUTOR",
    "FF_ENABLE_BASH_EXIT_CODE_CHECK",
    "FF_ENABLE_JOB_CLEANUP",
    "FF_EXPORT_HIGH_CARDINALITY_METRICS",
    "FF_GIT_URLS_WITHOUT_TOKENS",
    "FF_HASH_CACHE_KEYS",
    "FF_KUBERNETES_HONOR_ENTRYPOINT",
    "FF_LOG_IMAGES_CONFIGURED_FOR_JOB",
    "FF_NETWORK_PER_BUILD",
    "FF_POSIXLY_CORRECT_ESCAPES",
    "FF_PRINT_POD_EVENTS",
    "FF_RESOLVE_FULL_TLS_CHAIN",
    "FF_SCRIPT_SECTIONS",
    "FF_SCRIPT_TO_STEP_MIGRATION",
    "FF_SUSPENDABLE_ENVIRONMENTS",
    "FF_TEST_FEATURE",
    "FF_USE_ADVANCED_POD_SPEC_CONFIGURATION",
    "FF_USE_DUMB_INIT_WITH_KUBERNETES_EXECUTOR",
    "FF_USE_DYNAMIC_TRACE_FORCE_SEND_INTERVAL",
    "FF_USE_FLEETING_ACQUIRE_HEARTBEATS",
    "FF_USE_GIT_NATIVE_CLONE",
    "FF_USE_GIT_PROACTIVE_AUTH",
    "FF_USE_INIT_WITH_DOCKER_EXECUTOR",
    "FF_USE_JOB_ROUTER",
    "FF_USE_LEGACY_BASH_EVAL",
    "FF_USE_LEGACY_GCS_CACHE_ADAPTER",
    "FF_USE_LEGACY_KUBERNETES_EXECUTION_STRATEGY",
    "FF_USE_LEGACY_S3_CACHE_ADAPTER",
    "FF_USE_NATIVE_CONTAINER_STOP",
    "FF_USE_PARALLEL_ARTIFACT_TRANSFER",
    "FF_USE_PARALLEL_CACHE_TRANSFER",
    "FF_USE_POWERSHELL_PATH_RESOLVER",
    "FF_USE_WINDOWS_JOB_OBJECT",
    "FF_USE_WINDOWS_LEGACY_PROCESS_STRATEGY",
    "FF_WAIT_FOR_POD_TO_BE_REACHABLE",
];

#[cfg(test)]
mod tests {
    use std::ffi::{OsStr, OsString};
    use std::path::Path;
    use std::time::Duration;

    use super::{environment_layers, expand, go_duration};

    #[test]
    fn variables_are_expanded_once_and_unknown_ones_vanish() {
        let get = |name: &str| (name == "A").then(|| OsString::from("$B"));
        for (value, expected) in
            [("x$A", "x$B"), ("${A}y", "$By"), ("$B-", "-"), ("$$A", "$A"), ("5$", "5$"), ("$-", "$-")]
        {
            assert_eq!(expand(OsStr::new(value), &get), OsStr::new(expected), "{value}");
        }
    }

    #[test]
    fn durations_are_those_of_go() {
        assert_eq!(go_duration("3s"), Some(Duration::from_secs(3)));
        assert_eq!(go_duration("1h30m"), Some(Duration::from_mins(90)));
        assert_eq!(go_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(go_duration("3"), None);
        assert_eq!(go_duration("x"), None);
    }

    #[test]
    fn each_layer_of_the_environment_wins_over_the_one_below() {
        let of_runner = [
            ("PATH".into(), "/runner".into()),
            ("TMPDIR".into(), "/runner".into()),
            ("CUSTOM_ENV_A".into(), "runner".into()),
        ];
        let job_env = [
            ("PATH".into(), "/job".into()),
            ("SYSTEM_FAILURE_EXIT_CODE".into(), "9".into()),
            ("CUSTOM_ENV_A".into(), "job".into()),
            ("CUSTOM_ENV_B".into(), "job".into()),
        ];
        let variables = [("A".into(), "one".into()), ("A".into(), "two".into())];
        let environment = environment_layers(&of_runner, Path::new("/t"), &job_env, &variables);
        let value = |key: &str| environment.get(OsStr::new(key)).and_then(|value| value.to_str());
        assert_eq!(value("PATH"), Some("/job"));
        assert_eq!(value("TMPDIR"), Some("/t"));
        assert_eq!(value("SYSTEM_FAILURE_EXIT_CODE"), Some("9"));
        assert_eq!(value("CUSTOM_ENV_A"), Some("two"));
        assert_eq!(value("CUSTOM_ENV_B"), Some("job"));
        assert_eq!(value("HOME"), None, "nothing of the test's own environment gets through");
    }
}
