//! The runner's own config.toml: whether its `[[runners]]` sections call Greenroom correctly.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser as _;
use greenroom_core::ids::PoolName;
use greenroom_keys::near::nearest_or_all;
use greenroom_ports::finding::Finding;
use greenroom_ssh::STOP_MARGIN;
use toml::{Table, Value};

use super::code::{self, Code};
use crate::cli::args::{Cli, Command, RunnerCall};
use crate::cli::ui::plural;
use crate::cli::when::whole;

/// The value that GitLab Runner uses if the key is missing, zero or negative.
const KILL_TIMEOUT_DEFAULT: i64 = 600;
/// The longest time that the runner waits for `run` before it calls `cleanup` beside it, in seconds.
pub(in crate::cli) const KILL_TIMEOUT_LIMIT: i64 = 300;
/// The default of `prepare_exec_timeout` in seconds.
pub(in crate::cli) const EXEC_TIMEOUT_DEFAULT: i64 = 3600;

/// The needs of a pool in its `[[runners]]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolNeeds {
    /// `max_instances` × `capacity_per_instance`.
    pub slots: u64,
    pub shell: &'static str,
    pub acquire_timeout: Duration,
    pub stop_grace: Duration,
    /// The time that pulls of images may take; `None`: jobs run on the instance itself.
    pub pull_timeout: Option<Duration>,
}

/// The facts to check.
#[derive(Debug)]
pub struct RunnerFacts<'a> {
    /// The runner's configuration.
    pub path: &'a Path,
    /// Greenroom's configuration that this check reads.
    pub config: &'a Path,
    pub pools: &'a BTreeMap<PoolName, PoolNeeds>,
}

/// The four executables of a section.
pub(in crate::cli) const EXECS: [&str; 4] = ["config", "prepare", "run", "cleanup"];

/// Checks the file, and the executables that it names.
pub(super) fn check(facts: &RunnerFacts<'_>) -> Vec<Finding> {
    let path = facts.path.display();
    let text = match std::fs::read_to_string(facts.path) {
        Ok(text) => text,
        Err(error) => {
            let what = format!(
                "the runner's configuration `{path}` cannot be read ({error}): its `[[runners]]` sections \
                 are not checked"
            );
            let remedy = "run doctor as root, or name the file with `--runner-config`";
            return vec![code::RUNNER_CONFIG_UNREADABLE.found(what, remedy)];
        }
    };
    judge(facts, &text)
}

/// Checks the text of the file.
fn judge(facts: &RunnerFacts<'_>, text: &str) -> Vec<Finding> {
    let path = facts.path.display();
    let table: Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            // The error's own text quotes the line, which may contain a token.
            let error: toml::de::Error = error;
            let what = format!("`{path}` is not valid TOML: {}", error.message());
            return vec![code::RUNNER_CONFIG_INVALID.found(what, format!("correct `{path}`"))];
        }
    };
    let stanzas: Vec<Stanza<'_>> = stanzas(&table).filter(Stanza::is_ours).collect();
    if stanzas.is_empty() {
        let what =
            format!("no `[[runners]]` section in `{path}` with `executor = \"custom\"` runs Greenroom");
        let remedy = "run `greenroom init --merge-runner`, or add the section that docs/doctor.md shows under `runner-stanza-missing`";
        return vec![code::RUNNER_STANZA_MISSING.found(what, remedy)];
    }
    let concurrent = table.get("concurrent").and_then(Value::as_integer).unwrap_or(1).max(1);
    stanzas.iter().flat_map(|stanza| judge_stanza(facts, stanza, concurrent)).collect()
}

/// One `[[runners]]`.
#[derive(Debug)]
struct Stanza<'a> {
    title: String,
    runner: &'a Table,
    custom: Option<&'a Table>,
}

fn stanzas(table: &Table) -> impl Iterator<Item = Stanza<'_>> {
    let runners = table.get("runners").and_then(Value::as_array);
    runners.into_iter().flatten().filter_map(Value::as_table).enumerate().map(|(at, runner)| {
        let name = runner.get("name").and_then(Value::as_str);
        let title = name.map_or(format!("runner {}", at + 1), |name| format!("runner `{name}`"));
        Stanza { title, runner, custom: runner.get("custom").and_then(Value::as_table) }
    })
}

impl Stanza<'_> {
    fn is_ours(&self) -> bool {
        let is_custom = self.runner.get("executor").and_then(Value::as_str) == Some("custom");
        is_custom && EXECS.iter().any(|name| self.exec(name).is_some_and(is_greenroom))
    }

    fn exec(&self, name: &str) -> Option<&str> {
        let path = self.custom?.get(&format!("{name}_exec"))?.as_str()?;
        (!path.is_empty()).then_some(path)
    }

    fn args(&self, name: &str) -> Vec<&str> {
        let args = self.custom.and_then(|c| c.get(&format!("{name}_args"))).and_then(Value::as_array);
        args.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// A number of seconds; GitLab Runner uses its default for values that are not positive.
    fn seconds(&self, key: &str, default: i64) -> i64 {
        let given = self.custom.and_then(|c| c.get(key)).and_then(Value::as_integer);
        given.filter(|seconds| *seconds > 0).unwrap_or(default)
    }
}

/// True if the path of an executable is that of Greenroom.
pub(in crate::cli) fn is_greenroom(path: &str) -> bool {
    Path::new(path).file_name().is_some_and(|name| name == "greenroom")
}

fn judge_stanza(facts: &RunnerFacts<'_>, stanza: &Stanza<'_>, concurrent: i64) -> Vec<Finding> {
    let mut found: Vec<Finding> = EXECS.iter().filter_map(|name| executable(stanza, name)).collect();
    let called: Vec<Result<Called, Finding>> = EXECS
        .iter()
        .filter(|name| stanza.exec(name).is_some_and(is_greenroom))
        .map(|name| called(stanza, name))
        .collect();
    let (calls, wrong): (Vec<_>, Vec<_>) = called.into_iter().partition(Result::is_ok);
    found.extend(wrong.into_iter().filter_map(Result::err));
    let calls: Vec<Called> = calls.into_iter().filter_map(Result::ok).collect();
    found.extend(other_config(facts, stanza, &calls));
    let serving = match serving(facts, stanza, &calls) {
        Ok(serving) => serving,
        Err(unknown) => {
            found.push(unknown);
            return found;
        }
    };
    found.extend(kill_timeout(stanza, &serving));
    found.extend(prepare_timeout(stanza, &serving));
    found.extend(dash(stanza, &serving));
    found.extend(shell(stanza, &serving));
    found.extend(capacity(stanza, &serving, concurrent));
    found
}

/// Checks that it is set, absolute, and an executable file.
fn executable(stanza: &Stanza<'_>, name: &str) -> Option<Finding> {
    let title = &stanza.title;
    let key = format!("{name}_exec");
    let Some(path) = stanza.exec(name) else {
        let code: &Code =
            if name == "cleanup" { &code::RUNNER_CLEANUP_MISSING } else { &code::RUNNER_EXEC_MISSING };
        let what = format!("{title} has no `{key}`");
        let like = EXECS.iter().filter_map(|other| stanza.exec(other)).find(|path| is_greenroom(path));
        let like = like.unwrap_or("/usr/bin/greenroom");
        let remedy =
            format!("add `{key} = \"{like}\"` and `{name}_args = [\"{name}\"]` under `[runners.custom]`");
        return Some(code.found(what, remedy));
    };
    if !Path::new(path).is_absolute() {
        let what = format!(
            "{title}: `{key}` is the relative path `{path}`, which the runner resolves in the job's directory"
        );
        return Some(code::RUNNER_EXEC_RELATIVE.found(what, format!("set `{key}` to the absolute path")));
    }
    let problem = not_executable(Path::new(path))?;
    let what = format!("{title}: `{key}` is `{path}`, {problem}");
    Some(code::RUNNER_EXEC_BROKEN.found(what, format!("correct `{key}`, or install Greenroom there")))
}

fn not_executable(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("which does not exist".to_owned()),
        Err(error) => Some(format!("which cannot be checked: {error}")),
        Ok(known) if !known.is_file() => Some("which is not a file".to_owned()),
        Ok(known) if known.permissions().mode() & 0o111 == 0 => Some("which is not executable".to_owned()),
        Ok(_) => None,
    }
}

/// The effect of a runner's call.
#[derive(Debug)]
struct Called {
    pool: Option<String>,
    config: Option<PathBuf>,
}

/// Parses the arguments as the call will.
fn called(stanza: &Stanza<'_>, name: &str) -> Result<Called, Finding> {
    let args = stanza.args(name);
    let appended: &[&str] = if name == "run" { &["script", "stage"] } else { &[] };
    let line = std::iter::once("greenroom").chain(args.iter().copied()).chain(appended.iter().copied());
    let wrong = |problem: &str| {
        let what = format!("{}: `{name}_args` are {args:?}: {problem}", stanza.title);
        code::RUNNER_ARGS.found(what, format!("set `{name}_args = [\"{name}\"]`"))
    };
    let cli = Cli::try_parse_from(line).map_err(|error| {
        // The first line is the message; the rest is usage.
        let text = error.to_string();
        wrong(text.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })?;
    // From the arguments only, not from the environment of this check.
    let config = args.iter().any(|arg| arg.starts_with("--config")).then_some(cli.place.config).flatten();
    let pool = match (name, cli.command) {
        ("config", Command::Runner(RunnerCall::Config(option)))
        | ("prepare", Command::Runner(RunnerCall::Prepare(option)))
        | ("cleanup", Command::Runner(RunnerCall::Cleanup(option))) => option.pool,
        ("run", Command::Runner(RunnerCall::Run { .. })) => None,
        _ => return Err(wrong("this calls another command")),
    };
    Ok(Called { pool, config })
}

fn other_config(facts: &RunnerFacts<'_>, stanza: &Stanza<'_>, calls: &[Called]) -> Option<Finding> {
    let other = calls.iter().filter_map(|call| call.config.as_deref()).find(|path| *path != facts.config)?;
    let other = other.display();
    let own = facts.config.display();
    let what = format!("{} calls Greenroom with `--config {other}`, but doctor read `{own}`", stanza.title);
    Some(code::RUNNER_OTHER_CONFIG.found(what, format!("run `greenroom --config {other} doctor`")))
}

/// The pools that can serve the jobs of a section.
fn serving<'a>(
    facts: &'a RunnerFacts<'_>,
    stanza: &Stanza<'_>,
    calls: &[Called],
) -> Result<Vec<(&'a PoolName, &'a PoolNeeds)>, Finding> {
    let named: Vec<&str> = calls.iter().filter_map(|call| call.pool.as_deref()).collect();
    if let Some(unknown) = named.iter().find(|name| !facts.pools.keys().any(|pool| pool.as_str() == **name)) {
        let what =
            format!("{} calls Greenroom with `--pool {unknown}`, which is not configured", stanza.title);
        let help = nearest_or_all(unknown, facts.pools.keys().map(PoolName::as_str));
        return Err(code::RUNNER_UNKNOWN_POOL.found(what, help));
    }
    let is_meant = |pool: &PoolName| named.is_empty() || named.contains(&pool.as_str());
    Ok(facts.pools.iter().filter(|(pool, _)| is_meant(pool)).collect())
}

fn kill_timeout(stanza: &Stanza<'_>, serving: &[(&PoolName, &PoolNeeds)]) -> Option<Finding> {
    let given = stanza.seconds("graceful_kill_timeout", KILL_TIMEOUT_DEFAULT);
    let grace = serving.iter().map(|(_, needs)| needs.stop_grace).max().unwrap_or_default();
    let least = i64::try_from(grace.saturating_add(STOP_MARGIN).as_secs()).unwrap_or(i64::MAX);
    let title = &stanza.title;
    if given >= KILL_TIMEOUT_LIMIT {
        let what = format!(
            "{title}: `graceful_kill_timeout` is {given} s (default {KILL_TIMEOUT_DEFAULT}): after \
             {KILL_TIMEOUT_LIMIT} s the runner calls `cleanup` while `run` is still running"
        );
        let remedy = "set `graceful_kill_timeout = 60` under `[runners.custom]`";
        return Some(code::RUNNER_KILL_TIMEOUT.found(what, remedy));
    }
    (given < least).then(|| {
        let what =
            format!("{title}: `graceful_kill_timeout` is {given} s, but stopping a stage can take {least} s");
        let remedy = format!("set it to {least} or higher, or shorten `stop_grace` under `[timing]`");
        code::RUNNER_KILL_TIMEOUT_SHORT.found(what, remedy)
    })
}

fn prepare_timeout(stanza: &Stanza<'_>, serving: &[(&PoolName, &PoolNeeds)]) -> Option<Finding> {
    let given = stanza.seconds("prepare_exec_timeout", EXEC_TIMEOUT_DEFAULT);
    let given = Duration::from_secs(u64::try_from(given).unwrap_or(u64::MAX));
    let limit = |needs: &PoolNeeds| needs.acquire_timeout + needs.pull_timeout.unwrap_or_default();
    let (_, needs) = serving.iter().max_by_key(|(_, needs)| limit(needs))?;
    let wanted = limit(needs);
    (given <= wanted).then(|| {
        let (pulls, keys) = match needs.pull_timeout {
            Some(_) => (" and its images", "`acquire_timeout` + `pull_timeout`"),
            None => ("", "`acquire_timeout`"),
        };
        let what = format!(
            "{}: `prepare_exec_timeout` is {}, but a job may wait {} for its instance{pulls} ({keys})",
            stanza.title,
            whole(given),
            whole(wanted)
        );
        let remedy =
            format!("set `prepare_exec_timeout = {}`, or shorten `acquire_timeout`", wanted.as_secs() + 60);
        code::RUNNER_PREPARE_TIMEOUT.found(what, remedy)
    })
}

/// The runner's flag for scripts that dash can read.
const FOR_DASH: &str = "FF_POSIXLY_CORRECT_ESCAPES";

/// Jobs in containers choose their shell with their image.
fn dash(stanza: &Stanza<'_>, serving: &[(&PoolName, &PoolNeeds)]) -> Option<Finding> {
    let (pool, _) = serving.iter().find(|(_, needs)| needs.pull_timeout.is_some())?;
    let flags = stanza.runner.get("feature_flags").and_then(Value::as_table);
    let environment = stanza.runner.get("environment").and_then(Value::as_array);
    let mut variables = environment.into_iter().flatten().filter_map(Value::as_str);
    let is_set = flags.and_then(|flags| flags.get(FOR_DASH)).and_then(Value::as_bool) == Some(true)
        || variables.any(|variable| {
            let value = variable.strip_prefix(FOR_DASH).and_then(|rest| rest.strip_prefix('='));
            value.is_some_and(|value| ["1", "true"].contains(&value.to_ascii_lowercase().as_str()))
        });
    (!is_set).then(|| {
        let what = format!(
            "{}: jobs of pool `{pool}` run in containers, and fail in images whose only shell is dash",
            stanza.title
        );
        code::RUNNER_DASH.found(what, format!("set `{FOR_DASH} = true` under `[runners.feature_flags]`"))
    })
}

fn shell(stanza: &Stanza<'_>, serving: &[(&PoolName, &PoolNeeds)]) -> Option<Finding> {
    let given = stanza.runner.get("shell").and_then(Value::as_str).filter(|shell| !shell.is_empty())?;
    let (pool, needs) = serving.iter().find(|(_, needs)| needs.shell != given)?;
    let what = format!(
        "{}: `shell` is \"{given}\", but jobs of pool `{pool}` get \"{}\", the pool's shell",
        stanza.title, needs.shell
    );
    Some(code::RUNNER_SHELL.noted(what))
}

/// Compares the jobs that the runner accepts with the slots of its pools.
fn capacity(stanza: &Stanza<'_>, serving: &[(&PoolName, &PoolNeeds)], concurrent: i64) -> Option<Finding> {
    let limit = stanza.runner.get("limit").and_then(Value::as_integer).filter(|limit| *limit > 0);
    let (jobs, key) = match limit {
        Some(limit) if limit <= concurrent => (limit, "limit"),
        _ => (concurrent, "concurrent"),
    };
    let jobs = u64::try_from(jobs).unwrap_or(0);
    let slots = serving.iter().fold(0_u64, |sum, (_, needs)| sum.saturating_add(needs.slots));
    let pools: Vec<String> = serving.iter().map(|(pool, _)| format!("`{pool}`")).collect();
    let (pool, has) = if pools.len() == 1 { ("pool", "has") } else { ("pools", "have") };
    let compared = format!(
        "{} accepts {} (`{key}`), but {pool} {} {has} {} (`max_instances` × `capacity_per_instance`)",
        stanza.title,
        plural(usize::try_from(jobs).unwrap_or(usize::MAX), "job"),
        pools.join(", "),
        plural(usize::try_from(slots).unwrap_or(usize::MAX), "slot"),
    );
    match jobs.cmp(&slots) {
        Ordering::Equal => None,
        Ordering::Greater => {
            let what = format!("{compared}: further jobs wait while their timeout runs");
            Some(code::RUNNER_TOO_MANY_JOBS.found(what, format!("set `limit = {slots}` under `[[runners]]`")))
        }
        Ordering::Less => {
            let remedy = format!("set `{key} = {slots}` if that many jobs should run");
            Some(code::RUNNER_TOO_FEW_JOBS.found(compared, remedy))
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
