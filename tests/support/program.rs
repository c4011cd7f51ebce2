//! Programs that tests start, with an environment that the tests state.
//!
//! The machine's own environment stays out, but for the search path: no locale, time zone, settings of git or start-up
//! file of a shell changes what a test sees. GitLab Runner is missing in the search path, installed or not.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

/// Has a `gitlab-runner` that fails as a missing one does.
const WITHOUT_RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/bin");

/// The whole environment of a program whose home is this directory.
pub(crate) fn environment(home: &Path) -> [(OsString, OsString); 2] {
    let machine = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let folders = std::iter::once(WITHOUT_RUNNER.into()).chain(std::env::split_paths(&machine));
    let path = std::env::join_paths(folders).expect("folders that were split can be joined");
    [("PATH".into(), path), ("HOME".into(), home.into())]
}

/// A program with this environment, and without input.
pub(crate) fn command(program: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(environment(home)).stdin(Stdio::null());
    command
}
