//! The environment variables that GitLab Runner sets.
//!
//! Read once. Only the protocol's own names count: the author of a pipeline can set variables that begin with
//! `CUSTOM_ENV_`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use greenroom_core::container::variables::{ADDED_BY_RUNNER, Environment};
use greenroom_core::ids::{AttemptName, NameError, PoolName};
use greenroom_core::job_end::RunnerStatus;
use greenroom_core::text::Secret;

use super::exit::{CodeFile, ExitCodes};

/// Names that `config` passes to the later calls of a job, as `job_env`.
pub(super) const STATE_DIR: &str = "GREENROOM_STATE_DIR";
pub(super) const POOL: &str = "GREENROOM_POOL";

/// The protocol's part of the environment. Each method defines the meaning of a variable that is not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobEnv {
    tmpdir: Option<OsString>,
    build_failure: Option<OsString>,
    system_failure: Option<OsString>,
    code_file: Option<OsString>,
    response_file: Option<OsString>,
    state_dir: Option<OsString>,
    pool: Option<OsString>,
    job_status: Option<OsString>,
    concurrent: Option<OsString>,
}

/// A variable that the runner always sets is missing or invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    #[error(
        "`{name}` is not set: GitLab Runner sets it for each call (to run a job without GitLab Runner, use \
         `greenroom try`)"
    )]
    Unset { name: &'static str },
    #[error("`TMPDIR` does not name an attempt")]
    Attempt(#[source] NameError),
    #[error("`{POOL}` does not name a pool")]
    Pool(#[source] NameError),
}

impl JobEnv {
    /// Reads the needed variables by name, because a job's environment has hundreds. An empty value counts as none.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        Self {
            tmpdir: set("TMPDIR"),
            build_failure: set("BUILD_FAILURE_EXIT_CODE"),
            system_failure: set("SYSTEM_FAILURE_EXIT_CODE"),
            code_file: set("BUILD_EXIT_CODE_FILE"),
            response_file: set("JOB_RESPONSE_FILE"),
            state_dir: set(STATE_DIR),
            pool: set(POOL),
            job_status: set("CUSTOM_ENV_CI_JOB_STATUS"),
            concurrent: set("CUSTOM_ENV_CI_CONCURRENT_PROJECT_ID"),
        }
    }

    /// Reads a recorded environment; of duplicates the last one counts.
    #[cfg(test)]
    pub(super) fn of<N: AsRef<std::ffi::OsStr>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables: Vec<(OsString, OsString)> =
            variables.into_iter().map(|(name, value)| (name.as_ref().to_owned(), value.into())).collect();
        let last = |name: &str| variables.iter().rev().find(|(known, _)| known == name);
        Self::read(|name| Some(last(name)?.1.clone()))
    }

    /// The directory of this attempt: the runner removes it when `cleanup` has returned.
    pub fn tmpdir(&self) -> Result<&Path, EnvError> {
        self.tmpdir.as_deref().map(Path::new).ok_or(EnvError::Unset { name: "TMPDIR" })
    }

    /// The attempt's name: the base name of TMPDIR, the same in every call from `config` to `cleanup`.
    pub fn attempt(&self) -> Result<AttemptName, EnvError> {
        let base = self.tmpdir()?.file_name().unwrap_or_default();
        AttemptName::parse(&base.to_string_lossy()).map_err(EnvError::Attempt)
    }

    /// The path of the job's response.
    pub fn response_file(&self) -> Result<&Path, EnvError> {
        self.response_file.as_deref().map(Path::new).ok_or(EnvError::Unset { name: "JOB_RESPONSE_FILE" })
    }

    /// The exit codes that the runner understands.
    pub fn exit_codes(&self) -> ExitCodes {
        ExitCodes::of(self.build_failure.as_deref(), self.system_failure.as_deref())
    }

    /// The job's status, as the runner reports it for people; `None` if it reports none. It decides nothing.
    pub fn job_status(&self) -> Option<RunnerStatus> {
        RunnerStatus::parse(self.job_status.as_ref()?.to_str()?)
    }

    /// The number of this job among the runner's concurrent jobs of its project; `None` if the runner states none. A job
    /// can forge it (see [`RunnerSlot`](super::config_json::RunnerSlot)).
    pub fn concurrent_number(&self) -> Option<u32> {
        self.concurrent.as_ref()?.to_str()?.parse().ok()
    }

    /// The file for a script's own exit code; `None` if the runner names none.
    pub fn code_file(&self) -> Option<CodeFile> {
        self.code_file.as_ref().map(|path| CodeFile::at(PathBuf::from(path)))
    }

    /// The state directory that `config` chose; absent in `config` itself and in the cleanup after a failed one.
    pub fn state_dir(&self) -> Option<&Path> {
        self.state_dir.as_deref().map(Path::new)
    }

    /// The pool that `config` chose; absent when [`state_dir`](Self::state_dir) is.
    pub fn pool(&self) -> Result<Option<PoolName>, EnvError> {
        let Some(pool) = &self.pool else { return Ok(None) };
        PoolName::parse(&pool.to_string_lossy()).map(Some).map_err(EnvError::Pool)
    }
}

/// The variables that the runner adds to those of the job's response. A job's variable of the same name replaces one.
pub fn added_by_runner(variable: impl Fn(&str) -> Option<OsString>) -> Environment {
    let given = |name: &&str| {
        let value = variable(&format!("CUSTOM_ENV_{name}"))?.into_string().ok()?;
        Some(((*name).into(), Secret::new(value.into())))
    };
    ADDED_BY_RUNNER.iter().filter_map(given).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    fn env(variables: &[(&str, &str)]) -> JobEnv {
        JobEnv::of(variables.iter().copied())
    }

    #[test]
    fn an_attempt_is_called_like_its_directory() {
        for (tmpdir, name) in [
            ("/tmp/custom-executor123", "custom-executor123"),
            ("/tmp/custom-executor9/", "custom-executor9"),
        ] {
            assert_eq!(env(&[("TMPDIR", tmpdir)]).attempt().unwrap().as_str(), name);
        }
    }

    #[test]
    fn outside_of_a_runner_the_missing_variable_is_named() {
        let nothing = env(&[("TMPDIR", "")]);
        let message = nothing.attempt().unwrap_err().to_string();
        assert!(message.starts_with("`TMPDIR` is not set") && message.contains("greenroom try"), "{message}");
        assert!(nothing.response_file().unwrap_err().to_string().starts_with("`JOB_RESPONSE_FILE`"));
        assert_eq!((nothing.state_dir(), nothing.pool(), nothing.code_file()), (None, Ok(None), None));
        assert_eq!(nothing.exit_codes(), ExitCodes::default());
    }

    #[test]
    fn a_tmpdir_that_names_no_attempt_is_refused() {
        for tmpdir in ["/", "/tmp/..", "/tmp/.hidden", "/tmp/a b"] {
            assert!(matches!(env(&[("TMPDIR", tmpdir)]).attempt(), Err(EnvError::Attempt(_))), "{tmpdir}");
        }
    }

    #[test]
    fn variables_that_are_no_utf_8_disturb_nothing() {
        let strange = OsString::from_vec(vec![b'C', 0xff]);
        let variables = [
            (strange.clone(), strange.clone()),
            (OsString::from("TMPDIR"), OsString::from("/tmp/x1")),
            (OsString::from("GREENROOM_POOL"), strange.clone()),
            (OsString::from("JOB_RESPONSE_FILE"), strange.clone()),
        ];
        let env = JobEnv::of(variables);
        assert_eq!(env.attempt().unwrap().as_str(), "x1");
        assert!(env.pool().is_err());
        assert_eq!(env.response_file().unwrap().as_os_str(), strange);
    }

    #[test]
    fn what_a_pipeline_sets_never_counts() {
        let forged =
            [("CUSTOM_ENV_TMPDIR", "/x"), ("CUSTOM_ENV_GREENROOM_POOL", "gold"), ("TMPDIR", "/tmp/a")];
        let env = env(&forged);
        assert_eq!(env.attempt().unwrap().as_str(), "a");
        assert_eq!(env.pool(), Ok(None));
    }

    #[test]
    fn of_the_jobs_variables_only_the_runners_own_are_added() {
        let set = [("CUSTOM_ENV_CI_BUILDS_DIR", "/b"), ("CUSTOM_ENV_SECRET", "s"), ("CI_PROJECT_DIR", "/p")];
        let value = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let added: Vec<_> =
            added_by_runner(value).into_iter().map(|(k, v)| (k, v.expose().clone())).collect();
        assert_eq!(added, [("CI_BUILDS_DIR".into(), "/b".into())]);
    }

    #[test]
    fn no_secret_of_the_job_is_kept() {
        let env =
            env(&[("CUSTOM_ENV_CI_JOB_TOKEN", "glcbt-1"), ("PASSWORD", "hunter2"), ("TMPDIR", "/tmp/a")]);
        let shown = format!("{env:?}");
        assert!(!shown.contains("glcbt") && !shown.contains("hunter2"), "{shown}");
    }
}

/// Recordings of a real GitLab Runner 19.4, read the way a call reads them.
#[cfg(test)]
mod recordings {
    use std::ffi::OsString;
    use std::path::Path;

    use serde_json::Value;

    use super::super::exit::{ExitCodes, Outcome};
    use super::JobEnv;

    const ENVIRONMENT: &str = include_str!("../../../../tests/fixtures/runner-19.4/environment.json");

    /// The environment of one recorded call, `$TMPDIR` replaced.
    fn recorded(call: &str, tmpdir: &str) -> Vec<(OsString, OsString)> {
        let all: Value = serde_json::from_str(ENVIRONMENT).unwrap();
        let mut variables = all["run-build_script"].as_object().unwrap().clone();
        if call != "run-build_script" {
            let key = format!("{call} (differences to run-build_script)");
            for (name, value) in all[&key].as_object().unwrap() {
                match value {
                    Value::Null => variables.remove(name),
                    other => variables.insert(name.clone(), other.clone()),
                };
            }
        }
        let text = |value: &Value| value.as_str().unwrap().replace("$TMPDIR", tmpdir);
        variables.iter().map(|(name, value)| (name.into(), text(value).into())).collect()
    }

    #[test]
    fn every_recorded_call_names_its_attempt_and_its_files() {
        for call in
            ["config", "prepare", "run-prepare_script", "run-get_sources", "run-build_script", "cleanup"]
        {
            let env = JobEnv::of(recorded(call, "/tmp/custom-executor42"));
            assert_eq!(env.attempt().unwrap().as_str(), "custom-executor42", "{call}");
            assert_eq!(
                env.response_file().unwrap(),
                Path::new("/tmp/custom-executor42/response.json"),
                "{call}"
            );
            assert_eq!(env.exit_codes(), ExitCodes { build_failure: 1, system_failure: 2 }, "{call}");
            assert_eq!(
                (env.state_dir(), env.pool().unwrap()),
                (None, None),
                "the recording driver is not us"
            );
        }
    }

    #[test]
    fn a_failed_script_writes_its_code_where_the_recorded_runner_looks() {
        let dir = tempfile::tempdir().unwrap();
        let env = JobEnv::of(recorded("run-build_script", dir.path().to_str().unwrap()));
        let file = env.code_file().unwrap();
        file.clear().unwrap();
        file.record(Outcome::of_exit(42)).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("build_exit_code")).unwrap(), "42\n");
    }
}
