//! A git repository for jobs to clone.

use std::path::{Path, PathBuf};

use crate::program;

/// Makes `demo.git` in a directory: one commit on `main`.
pub fn repository(home: &Path) -> PathBuf {
    let path = home.join("demo.git");
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=lab", "-c", "user.email=lab@localhost"];
        let mut command = program::command("git", home);
        command.args(identity).args(arguments).env("GIT_CONFIG_NOSYSTEM", "1");
        let output = command.current_dir(&path).output().expect("git runs");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::create_dir(&path).expect("the repository has a directory");
    git(&["init", "--quiet", "--initial-branch=main"]);
    std::fs::write(path.join("README.md"), "a demonstration\n").expect("a file for the commit");
    git(&["add", "README.md"]);
    git(&["commit", "--quiet", "-m", "one"]);
    path
}
