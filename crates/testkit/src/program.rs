//! Programs that tests start, with an explicit environment.
//!
//! Only the search path comes from the machine's own environment: no locale, time zone, settings of git or start-up
//! file of a shell changes a test's result. The search path never has GitLab Runner, whether it is installed or not.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::REPOSITORY;

/// A directory with a `gitlab-runner` that fails like a missing one.
const WITHOUT_RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/without-runner");

/// The whole environment of a program whose home is this directory.
pub fn environment(home: &Path) -> [(OsString, OsString); 2] {
    let machine = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let folders = std::iter::once(WITHOUT_RUNNER.into()).chain(std::env::split_paths(&machine));
    let path = std::env::join_paths(folders).expect("folders that were split can be joined");
    [("PATH".into(), path), ("HOME".into(), home.into())]
}

/// A program with the [`environment`] of this home, and without input.
pub fn command(program: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(environment(home)).stdin(Stdio::null());
    command
}

// Runs tests again as on a user's machine (`scripts/users-machine`).

/// The time limit of the repeated tests, in seconds.
const LIMIT: &str = "300";

/// Runs these tests of this executable there. Each must exist, and pass.
#[track_caller]
pub fn on_a_users_machine(tests: &[&str]) {
    let mut command = Command::new("timeout");
    command.arg(LIMIT).arg(format!("{REPOSITORY}/scripts/users-machine"));
    command.arg(std::env::current_exe().expect("this executable has a path")).arg("--exact").args(tests);
    let output = command.stdin(Stdio::null()).output().expect("timeout of coreutils runs");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let passed = printed.contains(&format!("ok. {} passed;", tests.len()));
    assert!(output.status.success() && passed, "{}\n{printed}", output.status);
}
