//! A directory with a program of `provider new`, and runs of the kit on it.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use greenroom_testkit::program;
use greenroom_testkit::skipped::skipped;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");

/// The site of one test. Dropping it ends its machines.
pub(crate) struct Site {
    home: TempDir,
}

impl Site {
    /// A site with a program `good` in this language. `None`: the machine lacks what the program needs.
    pub(crate) fn new(language: &str) -> Option<Self> {
        let tools = match language {
            "sh" => &["jq", "flock"][..],
            "go" => &["go"],
            _ => &["python3"],
        };
        if let Some(missing) = tools.iter().find(|tool| !has(tool)) {
            skipped(format!("`{missing}` is missing"));
            return None;
        }
        if !Path::new("/usr/sbin/sshd").exists() {
            skipped("`sshd` is missing");
            return None;
        }
        let site = Self { home: tempfile::tempdir().expect("a directory") };
        let made =
            site.greenroom(&["provider", "new", "good", "--language", language, "--directory", "."]).output();
        let made = made.expect("the binary runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(site)
    }

    pub(crate) fn path(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn greenroom(&self, arguments: &[&str]) -> Command {
        let mut command = program::command(GREENROOM, self.path());
        command.args(arguments).current_dir(self.path());
        command
    }

    /// The kit on a program, with machines that are deleted behind its back, too.
    pub(crate) fn kit(&self, program: &str, more: &[&str]) -> Command {
        let mut command = self.greenroom(&["provider", "test"]);
        command.arg(self.path().join(program)).args(["--settings", "settings.toml", "--user", &user()]);
        command
            .args(["--boot-timeout", "60", "--end-timeout", "20"])
            .arg("--delete-with")
            .arg(self.path().join("delete"));
        command.args(more);
        command
    }

    /// Adds a program that breaks one promise.
    pub(crate) fn add_broken(&self, fault: &str) {
        let path = self.path().join(fault);
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.path().join("ca"));
        assert!(keygen.status().is_ok_and(|status| status.success()), "ssh-keygen makes no authority");
        std::fs::write(&path, include_str!("misbehaving.py")).expect("a program");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }

    /// The directories of machines that are not terminated.
    pub(crate) fn machines(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path().join("machines")).into_iter().flatten().flatten();
        // What begins with a dot is being made.
        let made = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
        let is_living = |path: &PathBuf| path.join("record.json").exists() && !path.join("ended").exists();
        made.map(|entry| entry.path()).filter(is_living).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let home = self.path().display().to_string();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let is_sshd = String::from_utf8_lossy(&arguments).contains(&format!("{home}/machines/"));
            if let (true, Some(pid)) = (is_sshd, entry.file_name().to_str().and_then(|pid| pid.parse().ok()))
            {
                let pid = rustix::process::Pid::from_raw(pid).expect("a process");
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
            }
        }
    }
}

/// True if this machine can take the network from one program. Says so if not.
pub(crate) fn can_go_offline() -> bool {
    let works = |options: &[&str]| {
        let unshare = Command::new("unshare").args(options).args(["--net", "--", "true"]).output();
        unshare.is_ok_and(|output| output.status.success())
    };
    let can = works(&[]) || works(&["--map-current-user"]);
    if !can {
        skipped("namespaces are not permitted");
    }
    can
}

fn has(tool: &str) -> bool {
    let search = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search).any(|folder| folder.join(tool).is_file())
}

pub(crate) fn user() -> String {
    let named = Command::new("id").arg("-un").output().expect("id runs");
    String::from_utf8_lossy(&named.stdout).trim().to_owned()
}

/// The report of a run with `--json`.
pub(crate) fn report(output: &Output) -> Value {
    let parsed = serde_json::from_slice(&output.stdout);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(parsed.is_ok(), "{stdout}{stderr}");
    parsed.unwrap_or_default()
}

/// The names of the checks with this result.
pub(crate) fn checks<'a>(report: &'a Value, result: &str) -> BTreeSet<&'a str> {
    let all = report["checks"].as_array().into_iter().flatten();
    all.filter(|check| check["result"] == result).filter_map(|check| check["name"].as_str()).collect()
}
