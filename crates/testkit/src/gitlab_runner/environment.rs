//! The environment of a call: four layers, where a later one wins.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Lowest to highest: the runner process's own, the protocol's, `job_env`, `CUSTOM_ENV_*`.
pub(super) fn layers(
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use super::layers;

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
        let environment = layers(&of_runner, Path::new("/t"), &job_env, &variables);
        let value = |key: &str| environment.get(OsStr::new(key)).and_then(|value| value.to_str());
        assert_eq!(value("PATH"), Some("/job"));
        assert_eq!(value("TMPDIR"), Some("/t"));
        assert_eq!(value("SYSTEM_FAILURE_EXIT_CODE"), Some("9"));
        assert_eq!(value("CUSTOM_ENV_A"), Some("two"));
        assert_eq!(value("CUSTOM_ENV_B"), Some("job"));
        assert_eq!(value("HOME"), None, "nothing of the test's own environment gets through");
    }
}
