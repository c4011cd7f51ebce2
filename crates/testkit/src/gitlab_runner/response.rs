//! `JOB_RESPONSE_FILE`: the whole job as the runner writes it.

use serde_json::{Value, json};

use super::expand::expand;
use super::job::{Job, Variable};
use super::runner::Runner;
use super::variables;

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

/// Its name is expanded; the other fields are as GitLab sent them.
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

/// Those of the project's own registry come first.
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
