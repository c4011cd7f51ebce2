//! The command `try`: runs a whole job with the calls that GitLab Runner makes.
//!
//! The calls come in the order in which the runner makes them, each in a process group of its own, with the runner's
//! protocol variables, a TMPDIR and a job response. No GitLab is needed.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anstyle::AnsiColor;
use fs_err as fs;
use greenroom_core::instance::Instance;
use greenroom_core::time::Pretty;
use greenroom_manager::runner_host::Role;

use super::args::{GlobalOptions, TryOptions};
use super::context::Context;
use super::error::CliError;
use super::{program, ui};

/// The server of the jobs of `try`. No other job has it, so their IDs never collide with those of a real GitLab.
const SERVER: &str = "http://greenroom.invalid";
/// The IDs of these jobs: above those of any GitLab, and exact in any JSON parser.
const IDS: std::ops::Range<u64> = 1_000_000_000_000..10_000_000_000_000;

/// Runs one job on a pool.
pub(super) async fn try_job(place: &GlobalOptions, options: TryOptions) -> Result<bool, CliError> {
    let mut given = Vec::new();
    for (flag, path) in [("--config", &place.config), ("--state-dir", &place.state_dir)] {
        if let Some(path) = path {
            given.extend([OsString::from(flag), std::path::absolute(path)?.into_os_string()]);
        }
    }
    let TryOptions { pool, script } = options;
    let passed =
        Trial { program: program::driver()?, place: given, pool: pool.clone(), script }.run().await?;
    release_hosts(place, pool.as_deref()).await?;
    Ok(passed)
}

/// Static hosts that would stay with the trust domain of this job, which has no other: they serve the next one.
async fn release_hosts(place: &GlobalOptions, pool: Option<&str>) -> Result<(), CliError> {
    let context = Context::open(place, Role::Operator)?;
    // An invalid configuration has already failed the job.
    let Ok(config) = context.config() else { return Ok(()) };
    for pool in config.pools.keys().filter(|name| pool.is_none_or(|only| only == name.as_str())) {
        let engine = context.engine(pool)?;
        let Ok(state) = engine.store.load().await else { continue };
        // No other job has this server.
        let tried =
            |host: &Instance| host.domain.as_ref().is_some_and(|domain| domain.as_str().contains(SERVER));
        let stays = state.policy.as_ref().is_some_and(|policy| !policy.clean_unbinds);
        let hosts = state.instances.values().filter(|host| stays && host.is_static() && tried(host));
        for host in hosts.filter(|host| host.holders.is_empty()) {
            engine.unbind(&host.id, false).await?;
        }
    }
    Ok(())
}

/// A job to try.
#[derive(Debug)]
struct Trial {
    program: PathBuf,
    /// `--config`, `--state-dir` for every call.
    place: Vec<OsString>,
    pool: Option<String>,
    script: String,
}

/// The stages of a small job, with the text of each script.
fn stages(script: &str) -> [(&'static str, String); 4] {
    let wrap =
        |body: &str| format!("#!/usr/bin/env bash\nset -eo pipefail\n({body}\n) < /dev/null\nexit 0\n");
    [
        ("prepare_script", wrap("echo \"Running on $(hostname) via greenroom try...\"")),
        ("get_sources", wrap("mkdir -p \"$HOME/try\" && echo 'Skipping Git repository setup'")),
        ("build_script", wrap(script)),
        ("cleanup_file_variables", wrap("true")),
    ]
}

impl Trial {
    /// Runs the job; true if its script passed.
    async fn run(&self) -> Result<bool, CliError> {
        let tmpdir = make_tmpdir()?;
        write_response(&tmpdir, self.pool.as_deref())?;
        let began = Instant::now();
        let mut env = protocol(&tmpdir);
        let outcome = self.play(&tmpdir, &mut env).await;
        // As the runner does, `cleanup` comes even after an error: otherwise the job would keep its instance.
        let cleaned = self.call("cleanup", &[], &env, &tmpdir, true).await;
        fs::remove_dir_all(&tmpdir).ok();
        let passed = outcome?;
        cleaned?;
        let took = Pretty(began.elapsed());
        let result = if passed { "job succeeded" } else { "job failed" };
        let colour = if passed { AnsiColor::Green } else { AnsiColor::Red };
        ui::out(&format!("{} in {took}\n", ui::paint(colour, result)));
        Ok(passed)
    }

    async fn play(&self, tmpdir: &Path, env: &mut Vec<(OsString, OsString)>) -> Result<bool, CliError> {
        let (status, printed) = self.call("config", &[], env, tmpdir, false).await?;
        if !status.success() {
            return Ok(false);
        }
        env.extend(job_env(&printed)?);
        if !self.call("prepare", &[], env, tmpdir, true).await?.0.success() {
            return Ok(false);
        }
        for (number, (stage, text)) in stages(&self.script).into_iter().enumerate() {
            let dir = tmpdir.join(format!("script{number}"));
            fs::create_dir(&dir)?;
            let script = dir.join("script");
            fs::write(&script, text)?;
            fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700))?;
            let arguments = [script.into_os_string(), OsString::from(stage)];
            if !self.call("run", &arguments, env, tmpdir, true).await?.0.success() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One call, as the runner starts it. Ctrl-C stops it as the runner would: TERM to its process group.
    async fn call(
        &self,
        name: &str,
        arguments: &[OsString],
        env: &[(OsString, OsString)],
        tmpdir: &Path,
        shown: bool,
    ) -> Result<(ExitStatus, Vec<u8>), CliError> {
        let stage = arguments.last().map(|s| format!(" {}", s.display())).unwrap_or_default();
        let began = Instant::now();
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.place).arg(name);
        if let (Some(pool), "config" | "prepare" | "cleanup") = (&self.pool, name) {
            command.args(["--pool", pool]);
        }
        command.args(arguments).env_clear().envs(env.iter().cloned()).current_dir(tmpdir);
        command.stdin(Stdio::null()).process_group(0);
        if !shown {
            command.stdout(Stdio::piped());
        }
        let child = command.spawn()?;
        let group = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        let mut ended = Box::pin(child.wait_with_output());
        let output = tokio::select! {
            output = &mut ended => output?,
            _ = tokio::signal::ctrl_c() => {
                if let Some(group) = group {
                    rustix::process::kill_process_group(group, rustix::process::Signal::TERM).ok();
                }
                ended.await?
            }
        };
        let took = Pretty(began.elapsed());
        let mark = if output.status.success() { "✓" } else { "✗" };
        ui::out(&ui::paint(AnsiColor::BrightBlack, &format!("{mark} {name}{stage} {took}\n")));
        Ok((output.status, output.stdout))
    }
}

fn make_tmpdir() -> Result<PathBuf, CliError> {
    let unique = format!("greenroom-try-{}-{}", std::process::id(), nanos());
    let path = std::env::temp_dir().join(unique);
    // It has this mode from the start, and no call uses a directory that is there already.
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&path)?;
    Ok(path)
}

fn nanos() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos()
}

/// A random ID for a job. Two attempts with the same ID would count as one job: the newer would replace the older.
fn job_id() -> std::io::Result<u64> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(IDS.start + u64::from_ne_bytes(random) % (IDS.end - IDS.start))
}

/// A job response with the fields that a driver may rely on.
fn write_response(tmpdir: &Path, pool: Option<&str>) -> Result<(), CliError> {
    let variable = |key: &str, value: &str| serde_json::json!({ "key": key, "value": value, "public": true });
    let response = serde_json::json!({
        "id": job_id()?,
        "token": "no-token",
        "job_info": { "name": "try", "stage": "test", "project_id": 1, "project_name": "demo",
                      "project_full_path": "try/demo" },
        "git_info": { "ref": "main", "protected": true },
        "runner_info": { "timeout": 3600 },
        "variables": [
            variable("CI_SERVER_URL", SERVER),
            variable("CI_PROJECT_PATH", "try/demo"),
            variable("GREENROOM_TRY_POOL", pool.unwrap_or_default()),
        ],
        "steps": [],
    });
    let path = tmpdir.join("response.json");
    fs::write(&path, response.to_string())?;
    fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(())
}

/// The runner's protocol variables over a sparse environment.
fn protocol(tmpdir: &Path) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = ["PATH", "HOME", "LANG", "TZ", "NO_COLOR"]
        .iter()
        .filter_map(|key| std::env::var_os(key).map(|value| (OsString::from(key), value)))
        .collect();
    let mut set = |key: &str, value: &OsStr| env.push((OsString::from(key), value.to_owned()));
    set("TMPDIR", tmpdir.as_os_str());
    set("BUILD_FAILURE_EXIT_CODE", OsStr::new("1"));
    set("SYSTEM_FAILURE_EXIT_CODE", OsStr::new("2"));
    set("BUILD_EXIT_CODE_FILE", tmpdir.join("build_exit_code").as_os_str());
    set("JOB_RESPONSE_FILE", tmpdir.join("response.json").as_os_str());
    set("CUSTOM_ENV_CI_JOB_SERVICES", OsStr::new(""));
    env
}

/// The variables that `config` adds to the environment of the later calls.
fn job_env(printed: &[u8]) -> Result<Vec<(OsString, OsString)>, CliError> {
    let config: serde_json::Value = serde_json::from_slice(printed)?;
    let env = config.get("job_env").and_then(serde_json::Value::as_object);
    Ok(env
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| value.as_str().map(|v| (OsString::from(key), OsString::from(v))))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn concurrent_trials_never_share_a_job_id() {
        let ids: Vec<u64> = std::thread::scope(|scope| {
            let draw = || (0..20).map(|_| job_id().unwrap()).collect::<Vec<u64>>();
            let threads: Vec<_> = (0..20).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| IDS.contains(id)), "{ids:?}");
        let distinct: BTreeSet<&u64> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }
}
