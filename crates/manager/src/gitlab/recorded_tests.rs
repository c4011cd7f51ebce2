//! Recordings of a real GitLab Runner 19.4, read the way a call reads them.

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use super::env::JobEnv;
use super::exit::{ExitCodes, Outcome};

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
    for call in ["config", "prepare", "run-prepare_script", "run-get_sources", "run-build_script", "cleanup"]
    {
        let env = JobEnv::of(recorded(call, "/tmp/custom-executor42"));
        assert_eq!(env.attempt().unwrap().as_str(), "custom-executor42", "{call}");
        assert_eq!(env.response_file().unwrap(), Path::new("/tmp/custom-executor42/response.json"), "{call}");
        assert_eq!(env.exit_codes(), ExitCodes { build_failure: 1, system_failure: 2 }, "{call}");
        assert_eq!((env.state_dir(), env.pool().unwrap()), (None, None), "the recording driver is not us");
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
