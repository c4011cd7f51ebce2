//! The places where a job's secret must not be visible while it runs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use greenroom_harness::place::SOON;
use greenroom_harness::processes::Kind;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;

const SECRET: &str = "hush-4f1d9c";

/// Every file below, with its mode.
fn files(dir: &Path, found: &mut Vec<(std::path::PathBuf, u32)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.path().symlink_metadata() else { continue };
        if meta.is_dir() {
            files(&entry.path(), found);
        } else if meta.is_file() {
            found.push((entry.path(), meta.permissions().mode()));
        }
    }
}

#[test]
fn a_secret_is_in_no_file_of_ours_no_argument_and_no_lasting_environment() {
    let place = Setting::new().pool("idle_count", 1).open();
    let job =
        Job::new(1).masked("TOKEN", SECRET).script(["echo up; for i in $(seq 100); do sleep 0.1; done"]);
    let mut handle = place.runner().start(&job);
    handle.wait_for_stage("build_script").wait_for_output("\nup\n", SOON);
    let state = place.path().join("state");
    let mut found = Vec::new();
    files(&state, &mut found);
    assert!(found.len() > 5, "{found:?}");
    for (path, mode) in &found {
        // Files that the job itself wrote into its own directories are not checked.
        if path.starts_with(state.join("builds")) || path.components().any(|part| part.as_os_str() == "work")
        {
            continue;
        }
        let bytes = std::fs::read(path).unwrap_or_default();
        let seen = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!seen, "{} holds the secret", path.display());
        // An empty lock file has no content; only this user can read its directory.
        assert!(bytes.is_empty() || (mode & 0o077) < 1, "{} can be read by others: {mode:o}", path.display());
    }
    for process in place.processes() {
        assert!(!process.arguments_text().contains(SECRET), "{process:?}");
        if matches!(process.kind, Kind::Keeper | Kind::Instance) {
            let environment = String::from_utf8_lossy(&process.environment()).into_owned();
            assert!(!environment.contains(SECRET) && !environment.contains("CUSTOM_ENV_"), "{process:?}");
        }
    }
    handle.abort();
    handle.finish();
}
