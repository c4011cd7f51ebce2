//! Runs tests again as on a user's machine (`scripts/users-machine`).

use std::process::{Command, Stdio};

use crate::REPOSITORY;

/// How many seconds they may take.
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
